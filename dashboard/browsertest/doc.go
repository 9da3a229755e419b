// Package browsertest looks at the dashboard with a real browser. It is a module of its
// own, so that nobody inherits the browser's driver.
package browsertest
