//go:build !unix

package crew

import "errors"

// CanFreeze reports whether this system can stop a process as it stands.
const CanFreeze = false

var errNoFreeze = errors.New("processes cannot be frozen on this system")

func (p *Process) Freeze() error { return errNoFreeze }

func (p *Process) Thaw() error { return errNoFreeze }
