package sessions

import (
	"cmp"
	"strconv"
)

// An ID names a session, once and for ever: no two sessions of a cluster have
// the same one. The zero ID names none.
type ID struct {
	Replica uint64 // the replica in whose process the session lives
	Epoch   uint64 // which life of that process: it grows at each start
	Seq     uint64 // which session of that life, from 1
}

// IsZero reports whether id names no session.
func (id ID) IsZero() bool { return id == ID{} }

// String returns replica.epoch.seq, as in "3.1.2".
func (id ID) String() string {
	b := make([]byte, 0, 24)
	b = strconv.AppendUint(b, id.Replica, 10)
	b = append(b, '.')
	b = strconv.AppendUint(b, id.Epoch, 10)
	b = append(b, '.')
	b = strconv.AppendUint(b, id.Seq, 10)
	return string(b)
}

// Compare orders ids by replica, epoch and sequence. It returns -1, 0 or 1.
func (id ID) Compare(other ID) int {
	return cmp.Or(
		cmp.Compare(id.Replica, other.Replica),
		cmp.Compare(id.Epoch, other.Epoch),
		cmp.Compare(id.Seq, other.Seq),
	)
}
