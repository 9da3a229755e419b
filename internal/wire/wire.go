// Package wire is the durable format: what stands in the log and in snapshots.
//
// Log entries and snapshots live as long as the cluster, and five replicas of
// two versions may read them during an upgrade. So each begins with a version
// byte; within a version every array has exactly the length that is written here,
// and of two lengths the short one if that can say it; a new field or operation
// raises the version, is appended, and takes no old number. There are no maps,
// whose order would differ between replicas.
//
// The encoding is msgpack, written and read field by field: no reflection, and
// every length is checked before anything is allocated for it.
package wire

import (
	"errors"
	"fmt"
	"time"
)

// Limits that decide an outcome. They are constants of the format and not options,
// since two replicas with different ones would diverge.
const (
	// MaxName is the longest lock name, in bytes.
	MaxName = 512
	// MaxOwner is the longest owner name, in bytes.
	MaxOwner = 256
	// MaxCommands is how many commands one entry may carry.
	MaxCommands = 1 << 14
	// MaxWaiters is how many claims may stand in one line.
	MaxWaiters = 1 << 20
	// MaxTTL is the longest TTL of a session; a longer one counts as this.
	MaxTTL = 24 * time.Hour
)

// A version of the format is a feature level of the cluster: nobody writes anything of
// a version above the level that the log has reached.
const (
	// Version is the newest version that this package knows.
	Version = 3
	// BaseVersion is the level of a log in which nothing says more.
	BaseVersion = 2
)

// A VersionError says which version something has that this package does not know. It
// matches ErrVersion.
type VersionError struct{ Version byte }

func (e *VersionError) Error() string {
	return fmt.Sprintf("wire: version %d, and no more than %d is known", e.Version, Version)
}

// Is makes errors.Is find ErrVersion.
func (e *VersionError) Is(err error) bool { return err == ErrVersion }

var (
	// ErrVersion is matched by a VersionError.
	ErrVersion = errors.New("wire: written by a newer version")
	// ErrMalformed is returned for what no version has written: it was damaged or
	// cut short.
	ErrMalformed = errors.New("wire: malformed")
)

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}
