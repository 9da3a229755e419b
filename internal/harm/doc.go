// Package harm does to its own process what a test cannot ask of a machine that others
// use: it takes its disk's word away, and its clocks. Only tests and examples/torture
// link it. What is done is done for the rest of the process's life, or until it is told
// otherwise, and to no other process.
package harm
