package wire

import (
	"time"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/sessions"
)

// Limits of what version 2 brought; see those of version 1.
const (
	// MaxNames is how many names one acquisition may have.
	MaxNames = 64
	// MaxPermits is how many permits a counted lock may have.
	MaxPermits = 1 << 16
	// MaxReason is the longest reason, in bytes.
	MaxReason = 256
	// MaxValue is the longest value that a hold publishes, in bytes.
	MaxValue = 1 << 10
	// MaxJobs is how many jobs' ticks are remembered.
	MaxJobs = 1 << 16
	// MaxTerm is the longest time that may run for a hold or a lock; a longer one
	// counts as this.
	MaxTerm = 366 * 24 * time.Hour
)

// more writes the fields of the operations since version 2.
func (w writer) more(c *Command) {
	m := c.More
	switch c.Op {
	case Take:
		w.uint(c.Session)
		w.uint(c.Hold)
		w.array(len(m.Names))
		for _, name := range m.Names {
			w.string(name)
		}
		w.uint(uint64(c.Mode))
		w.bool(c.Wait)
		w.uint(c.Limit)
		w.uint(m.MaxWaits)
		w.uint(m.Permits)
		w.uint(m.Of)
		w.uint(m.MaxHold)
		w.uint(m.MinHold)
		w.uint(m.Delay)
		w.string(m.Value)
	case Start:
		w.hold(c)
	case Downgrade:
		w.hold(c)
		w.uint(m.Call)
	case Resize:
		w.string(c.Name)
		w.uint(m.Of)
		w.uint(m.Call)
	case Revoke:
		w.string(c.Name)
		w.uint(uint64(m.Token))
		w.because(m)
	case Evict:
		w.session(m.Who)
		w.because(m)
	case Ask:
		w.string(c.Name)
		w.because(m)
	case Due:
		w.session(m.Who)
		w.uint(c.Hold)
		w.uint(uint64(m.What))
	case Publish:
		w.hold(c)
		w.uint(m.Call)
		w.string(m.Value)
	case HandOver:
		w.hold(c)
		w.uint(m.Call)
		w.session(m.Who)
	case Claim:
		w.string(c.Name)
		w.int(m.Tick)
		w.uint(m.Call)
	case Forget:
		w.string(c.Name)
		w.uint(m.Call)
	case Restore:
		w.part(m.Part)
	}
}

// hold writes which hold of its process a command is about.
func (w writer) hold(c *Command) {
	w.uint(c.Session)
	w.uint(c.Hold)
	w.uint(uint64(c.Lock))
}

func (w writer) session(id sessions.ID) {
	w.uint(id.Replica)
	w.uint(id.Epoch)
	w.uint(id.Seq)
}

func (w writer) because(m *More) {
	w.uint(m.Call)
	w.string(m.By)
	w.string(m.Reason)
}

// more reads what writer.more wrote.
func (r *reader) more(c *Command) {
	m := new(More)
	c.More = m
	switch c.Op {
	case Take:
		r.take(c, m)
	case Start:
		r.hold(c)
	case Downgrade:
		r.hold(c)
		m.Call = r.uint()
	case Resize:
		c.Name = r.name()
		m.Of, m.Call = r.uint(), r.uint()
	case Revoke:
		c.Name = r.name()
		m.Token = fencing.Token(r.uint())
		r.because(m)
	case Evict:
		m.Who = r.session()
		r.because(m)
	case Ask:
		c.Name = r.name()
		r.because(m)
	case Due:
		m.Who = r.session()
		c.Hold = r.uint()
		m.What = r.uint8()
	case Publish:
		r.hold(c)
		m.Call, m.Value = r.uint(), r.text(MaxValue, "value")
	case HandOver:
		r.hold(c)
		m.Call, m.Who = r.uint(), r.session()
	case Claim:
		c.Name = r.name()
		m.Tick, m.Call = r.int(), r.uint()
	case Forget:
		c.Name = r.name()
		m.Call = r.uint()
	case Restore:
		m.Part = r.part()
	}
}

func (r *reader) take(c *Command, m *More) {
	c.Session, c.Hold = r.uint(), r.uint()
	n := r.arrayLen(MaxNames, "names")
	for i := 0; i < n && r.err == nil; i++ {
		name := r.name()
		if r.err == nil && i > 0 && name <= m.Names[i-1] {
			r.fail("names out of order at %q", name)
		}
		m.Names = append(m.Names, name)
	}
	if r.err == nil && n == 0 {
		r.fail("take of nothing")
	}
	c.Mode, c.Wait, c.Limit = r.uint8(), r.bool(), r.uint()
	m.MaxWaits = r.uint()
	m.Permits, m.Of = r.uint(), r.uint()
	m.MaxHold, m.MinHold, m.Delay = r.uint(), r.uint(), r.uint()
	m.Value = r.text(MaxValue, "value")
}

func (r *reader) name() string {
	name := r.text(MaxName, "name")
	if r.err == nil && name == "" {
		r.fail("empty name")
	}
	return name
}

func (r *reader) hold(c *Command) {
	c.Session, c.Hold, c.Lock = r.uint(), r.uint(), r.uint32()
}

func (r *reader) session() sessions.ID {
	return sessions.ID{Replica: r.uint(), Epoch: r.uint(), Seq: r.uint()}
}

func (r *reader) because(m *More) {
	m.Call = r.uint()
	m.By = r.text(MaxOwner, "by")
	m.Reason = r.text(MaxReason, "reason")
}
