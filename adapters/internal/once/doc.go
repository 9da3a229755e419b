// Package once is what the adapters for schedulers have in common: which ticks of a
// schedule are due, who gets one, and who leads. It knows no scheduler.
package once
