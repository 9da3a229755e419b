package crew

import (
	"errors"
	"flag"
	"fmt"
)

// ParseFlags parses the flags of a program that takes no other arguments. Unless ok,
// the program is to exit with status, as package flag would have it: 0 after it was
// asked for help, and 2 after a mistake, which flags' output was told.
func ParseFlags(flags *flag.FlagSet, args []string) (status int, ok bool) {
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0, false
	case err != nil:
		return 2, false
	case flags.NArg() > 0:
		fmt.Fprintf(flags.Output(), "%s: takes no arguments, only flags; got %q\n", flags.Name(), flags.Arg(0))
		return 2, false
	}
	return 0, true
}
