package wire

import (
	"slices"
	"unicode/utf8"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/sessions"
)

// An Op is what a command does. The numbers are part of the format.
type Op uint8

const (
	Boot    Op = 1 // a process begins its life: ends what its former life held
	Open    Op = 2 // opens a session
	Close   Op = 3 // ends a session
	Acquire Op = 4 // takes a lock, or its place in line
	Release Op = 5 // ends one hold
	Cancel  Op = 6 // ends one wait, or the hold that came of it
	Expire  Op = 7 // ends the sessions of a process that was not renewed

	// Since version 2.
	Take      Op = 8  // an acquire with anything beyond a plain exclusive lock
	Start     Op = 9  // the holder knows of its hold: its longest time begins
	Downgrade Op = 10 // makes an exclusive hold a shared one
	Resize    Op = 11 // changes how many permits a counted lock has
	Revoke    Op = 12 // ends a hold over its holder's head
	Evict     Op = 13 // ends a session over its owner's head
	Ask       Op = 14 // asks the holders to give a lock up
	Due       Op = 15 // a time that runs for a hold or a lock is over

	Publish  Op = 16 // changes the value of a hold
	HandOver Op = 17 // ends a hold in favour of one who waits
	Claim    Op = 18 // claims a tick of a job
	Forget   Op = 19 // forgets a job

	// Since version 3.
	Restore Op = 20 // brings back a part of a backup

	lastOp = Restore
)

// since is the version that brought an operation.
func (op Op) since() byte {
	switch {
	case op <= Expire:
		return 1
	case op <= Forget:
		return 2
	}
	return 3
}

// String returns the operation's name in lower case.
func (op Op) String() string {
	names := [...]string{Boot: "boot", Open: "open", Close: "close", Acquire: "acquire",
		Release: "release", Cancel: "cancel", Expire: "expire", Take: "take", Start: "start",
		Downgrade: "downgrade", Resize: "resize", Revoke: "revoke", Evict: "evict", Ask: "ask", Due: "due",
		Publish: "publish", HandOver: "hand over", Claim: "claim", Forget: "forget", Restore: "restore"}
	if int(op) < len(names) && names[op] != "" {
		return names[op]
	}
	return "op?"
}

// An Entry is one entry of the log: everything that one process had to say at one
// moment.
type Entry struct {
	Replica uint64 // who speaks
	Epoch   uint64 // in which life
	Renewal uint64 // number of the renewal that this entry is; 0 for none
	Batch   uint64 // its place in the stream of the process's batches; 0 for outside
	At      int64  // Unix milliseconds by the speaker's wall clock; for display only

	Commands []Command
}

// A Command is one operation. Which fields count depends on Op; the others are
// zero and are not written.
type Command struct {
	Op      Op
	Mode    uint8  // Acquire
	Wait    bool   // Acquire: stand in line if it cannot be had at once
	Lock    uint32 // Release, Cancel: hash of the lock's name, by which the claim is found
	Session uint64 // Open, Close, Acquire, Release, Cancel: session number in the process
	Hold    uint64 // Acquire, Release, Cancel: acquisition number in the process
	Name    string // Acquire
	Limit   uint64 // Acquire: how many may stand in line already
	TTL     uint64 // Open, Expire: milliseconds
	Owner   string // Open
	Replica uint64 // Expire: whose sessions
	Epoch   uint64 // Expire
	Renewal uint64 // Expire: the renewal it was judged by
	More    *More  // since version 2
}

// More is what the operations since version 2 say. It is apart so that the commands
// that are nearly all there are stay small.
type More struct {
	Names    []string      // Take: in strictly ascending order
	Permits  uint64        // Take: how many permits
	Of       uint64        // Take, Resize: how many there are
	MaxWaits uint64        // Take: how many waits its session may have already
	MaxHold  uint64        // Take: milliseconds
	MinHold  uint64        // Take: milliseconds
	Delay    uint64        // Take: milliseconds
	Value    string        // Take, Publish
	Call     uint64        // of what is answered: number of the call in the process
	Token    fencing.Token // Revoke: of the hold
	Who      sessions.ID   // Evict: the session; Due: of the hold; HandOver: who is to have it
	Tick     int64         // Claim
	What     uint8         // Due: which time
	By       string        // Revoke, Evict, Ask: who wants it
	Reason   string        // Revoke, Evict, Ask: and why
	Part     *Part         // since version 3: Restore
}

// arity is how many elements each operation's array has, itself included.
func arity(op Op) int {
	switch op {
	case Boot:
		return 1
	case Open:
		return 4
	case Close:
		return 2
	case Acquire:
		return 7
	case Release, Cancel:
		return 4
	case Expire:
		return 5
	case Forget:
		return 3
	case Start, Resize, Claim:
		return 4
	case Downgrade, Ask:
		return 5
	case Revoke, Due, Publish:
		return 6
	case Evict, Restore:
		return 7
	case HandOver:
		return 8
	case Take:
		return 14
	}
	return 0
}

const entryArity = 6

// AppendEntry appends e's encoding to b, in the lowest version that can say what e
// says. Its caller has checked that: names and owners are within their limits.
func AppendEntry(b []byte, e *Entry) []byte { return AppendEntryOf(1, b, e) }

// AppendEntryOf is AppendEntry in a version that is at least the one given: whoever
// does not know it stops there, whatever the entry says.
func AppendEntryOf(version byte, b []byte, e *Entry) []byte {
	size := 64 // and so most of what it takes
	for i := range e.Commands {
		c := &e.Commands[i]
		version = max(version, c.Op.since())
		size += 32 + len(c.Name)
	}
	return encode(append(slices.Grow(b, size), version), func(w writer) {
		w.array(entryArity)
		w.uint(e.Replica)
		w.uint(e.Epoch)
		w.uint(e.Renewal)
		w.uint(e.Batch)
		w.int(e.At)
		w.array(len(e.Commands))
		for i := range e.Commands {
			w.command(&e.Commands[i])
		}
	})
}

func (w writer) command(c *Command) {
	w.array(arity(c.Op))
	w.uint(uint64(c.Op))
	switch c.Op {
	case Boot:
	case Open:
		w.uint(c.Session)
		w.uint(c.TTL)
		w.string(c.Owner)
	case Close:
		w.uint(c.Session)
	case Acquire:
		w.uint(c.Session)
		w.uint(c.Hold)
		w.string(c.Name)
		w.uint(uint64(c.Mode))
		w.bool(c.Wait)
		w.uint(c.Limit)
	case Release, Cancel:
		w.uint(c.Session)
		w.uint(c.Hold)
		w.uint(uint64(c.Lock))
	case Expire:
		w.uint(c.Replica)
		w.uint(c.Epoch)
		w.uint(c.Renewal)
		w.uint(c.TTL)
	default:
		w.more(c)
	}
}

// VersionOf returns the version of an entry, 0 for none.
func VersionOf(b []byte) byte {
	if len(b) == 0 {
		return 0
	}
	return b[0]
}

// DecodeEntry decodes b into e, whose Commands are reused. It returns an error
// matching ErrVersion or ErrMalformed, and never panics. The answer depends on b
// alone, so every replica of one version gives the same. All texts are views of b
// and not copies: they are good for as long as b is.
func DecodeEntry(b []byte, e *Entry) error {
	commands := e.Commands[:0]
	*e = Entry{Commands: commands}
	if len(b) == 0 {
		return malformed("empty entry")
	}
	if b[0] > Version {
		return &VersionError{b[0]}
	}
	if b[0] == 0 {
		return malformed("entry version 0")
	}
	r := getReader(b[1:])
	defer r.put()
	r.array(entryArity, "entry")
	e.Replica = r.uint()
	e.Epoch = r.uint()
	e.Renewal = r.uint()
	e.Batch = r.uint()
	e.At = r.int()
	n := r.arrayLen(MaxCommands, "commands")
	for i := 0; i < n && r.err == nil; i++ {
		commands = append(commands, Command{})
		r.command(&commands[i], b[0])
	}
	e.Commands = commands
	if r.err == nil && r.left() > 0 {
		r.fail("%d bytes after the entry", r.left())
	}
	if r.err == nil && (e.Replica == 0 || e.Epoch == 0) {
		r.fail("no speaker")
	}
	return r.err
}

func (r *reader) command(c *Command, version byte) {
	n := r.arrayLen(16, "command")
	op := r.uint()
	if op == 0 || op > uint64(lastOp) || Op(op).since() > version {
		r.fail("operation %d", op)
		return
	}
	c.Op = Op(op)
	if n != arity(c.Op) {
		r.fail("%s with %d fields", c.Op, n)
		return
	}
	switch c.Op {
	case Boot:
	case Open:
		c.Session = r.uint()
		c.TTL = r.uint()
		c.Owner = r.text(MaxOwner, "owner")
	case Close:
		c.Session = r.uint()
	case Acquire:
		c.Session = r.uint()
		c.Hold = r.uint()
		c.Name = r.name()
		c.Mode = r.uint8()
		c.Wait = r.bool()
		c.Limit = r.uint()
	case Release, Cancel:
		c.Session = r.uint()
		c.Hold = r.uint()
		c.Lock = r.uint32()
	case Expire:
		c.Replica = r.uint()
		c.Epoch = r.uint()
		c.Renewal = r.uint()
		c.TTL = r.uint()
	default:
		r.more(c)
	}
}

// ValidText reports whether s can stand in an entry: UTF-8 of at most limit bytes.
func ValidText(s string, limit int) bool { return len(s) <= limit && utf8.ValidString(s) }
