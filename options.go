package quorumlock

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/benbjohnson/clock"

	"github.com/quorumlock/quorumlock/internal/lab"
	"github.com/quorumlock/quorumlock/internal/peer"
	"github.com/quorumlock/quorumlock/internal/wire"
)

const (
	// MaxNameLen is the longest lock name, in bytes.
	MaxNameLen = wire.MaxName
	// MaxOwnerLen is the longest owner name, in bytes.
	MaxOwnerLen = wire.MaxOwner
	// MaxReasonLen is the longest reason for what is forced, in bytes.
	MaxReasonLen = wire.MaxReason
	// MaxNames is how many names one hold may have.
	MaxNames = wire.MaxNames
	// MaxValueLen is the longest value that a hold publishes, in bytes.
	MaxValueLen = wire.MaxValue
	// MaxJobs is how many jobs' ticks are remembered.
	MaxJobs = wire.MaxJobs
	// MaxPermits is how many permits a counted lock may have.
	MaxPermits = wire.MaxPermits

	// MaxGroups is how many Raft groups a cluster may have.
	MaxGroups = 64

	// DefaultSessionTTL is the SessionTTL of Options that set none.
	DefaultSessionTTL = 10 * time.Second
	// DefaultElectionTimeout is the ElectionTimeout of Options that set none.
	DefaultElectionTimeout = time.Second

	// minElectionTimeout keeps elections well above the heartbeats, the ticks
	// and an ordinary fsync.
	minElectionTimeout = 100 * time.Millisecond
	// maxTTL bounds how long a crashed process can keep others waiting.
	maxTTL = wire.MaxTTL
	// ttlElections is how many election timeouts a TTL must at least last, so
	// that a session outlives a change of leader. See docs/ARCHITECTURE.md.
	ttlElections = 5
)

// Options say who this replica is and where it keeps its log. ReplicaID,
// Address, Dir and, at the first start of a founder, Members are required; every
// other field's zero value is its default.
type Options struct {
	// ReplicaID names this replica for ever: not 0, unique in the cluster, and
	// never used again once its directory is lost.
	ReplicaID uint64
	// Address is the host:port at which the other replicas dial this one.
	Address string
	// Listen is the host:port to bind. Default: Address.
	Listen string
	// Members are the founders of the cluster, replica id to Address: the same
	// map on each of them, this replica included. Five is the number to use: any
	// two may then fail. May be left empty with Join, and on a restart. A majority of
	// them that start with empty directories found a cluster, unless a member of one answers
	// at these addresses: so once Ready has returned on all, set Join in place of Members, or
	// keep the addresses right and delete what is out of date. See docs/OPERATIONS.md,
	// "the founders".
	Members map[uint64]string
	// Join marks the first start of a replica that was added to a running
	// cluster, in place of Members. It may stay set, and be set when a founder is started
	// again: who has it never founds a cluster.
	Join bool
	// Zone says what fails together with this replica, such as a data centre: Members
	// shows it, and Status warns when one zone's loss would take the majority. At most
	// 64 bytes of UTF-8. Default: none.
	Zone string
	// NonVoting keeps a replica that joins from ever being given a vote by itself: it
	// locks like any other, and no majority waits for it. Without it, a replica that
	// has caught up takes a vote when fewer than five replicas have one. No founder can
	// have it.
	NonVoting bool
	// Restore is the path of a backup (see Node.Backup) from which a new cluster is
	// founded: the same file on each founder, at its first start. It may be gone once
	// Ready has returned. What is restored: fencing tokens go on far beyond all that were ever granted,
	// ticks that were claimed stay claimed, and a name whose holder asked for a LockDelay,
	// or a MinHold that was not over, is granted to nobody for as long. Sessions, holds and
	// waits are not: their processes are gone. Nothing is granted, and Ready waits, until
	// the longest TTL of the backup's sessions, at least SessionTTL, has passed. End the
	// old cluster first, and give the new one another Cluster name: see docs/OPERATIONS.md.
	Restore string
	// Dir is where the log and the snapshots are kept. One process at a time may
	// use it, always under the same ReplicaID, Cluster and hostname. If it is removed
	// meanwhile, the process is stopped when the next snapshot is due.
	Dir string
	// Cluster is the name of the cluster: differently named ones refuse each
	// other. Default: "quorumlock".
	Cluster string
	// Groups is over how many Raft groups the names are spread, by a hash: each has
	// a log and a leader of its own, in the same processes, on the same port and
	// in the same directory. It must be the same on all replicas from their first
	// start on, and can never be changed. From 1 to MaxGroups. Default: 1. What
	// more of them change is in docs/ARCHITECTURE.md, "many groups".
	Groups int
	// Owner is shown as the holder's name to those who wait; it decides nothing.
	// At most MaxOwnerLen bytes of UTF-8. Default: hostname/pid.
	Owner string
	// SessionTTL is within what time after a crash a session's locks come free.
	// At least five times ElectionTimeout, at most 24 h. Default: 10 s.
	SessionTTL time.Duration
	// ElectionTimeout is how long a leader may be silent before the others
	// elect a new one; it must be equal on all replicas, and at least three
	// times as long as the slowest fsync of the disks. At least 100 ms. Default: 1 s.
	ElectionTimeout time.Duration
	// TLS, when set, has every connection between replicas encrypted and both
	// sides proven by their certificates. It must be set on all of them or on none:
	// who uses TLS and who does not refuse each other. Default: none, and the port
	// belongs in a network that only the replicas can reach.
	TLS *TLSFiles
	// Logger receives the library's and the engine's log lines. Default: none,
	// a library does not print.
	Logger *slog.Logger
	// OnFatal has the last word before the process is stopped because its disk
	// can no longer be trusted, or an invariant of the log is broken. It has two
	// seconds. The panic that follows cannot be recovered. A write or an fsync of
	// the log that failed is among the causes: the error names the file. Too few
	// file descriptors are not: what needs one waits.
	OnFatal func(error)
	// OnJeopardy is called, in a goroutine of its own, when a session could not
	// be renewed for half of the time for which it can be trusted: its locks
	// will be lost at until unless a renewal succeeds before.
	OnJeopardy func(s *Session, until time.Time)
	// Quotas bound what the callers of this process may ask for; Acquire returns
	// ErrQuota beyond them. At most one for the same names and scope. They are this
	// process's own: other replicas may have others. Default: none.
	Quotas []Quota
	// Tracer is told of every acquire of this process. Package tracing has one for
	// OpenTelemetry. Default: none.
	Tracer Tracer

	certificates *peer.Certificates // what TLS holds, once complete; nil without TLS

	clock  clock.Clock  // tests: the time source of the node's loops
	trust  trustClock   // tests: the clock by which a holder judges its own lease
	faults *peer.Faults // tests: what the network does to messages
	level  byte         // tests: the highest feature level that this process speaks

	backup    *restoration // read from Restore
	backupErr error        // why it could not be read

	hardware *lab.Hardware // of package locktest; nil for the machine's own
}

// complete returns a copy with every default filled in, or an error that lists
// every fault. It has no side effect.
func (o Options) complete() (Options, error) {
	o.fillDefaults()
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format, args...))
	}
	if o.ReplicaID == 0 {
		fault("ReplicaID is 0: it must be a positive number, unique in the cluster")
	}
	checkAddress(fault, "Address", o.Address)
	if o.Listen != o.Address {
		checkAddress(fault, "Listen", o.Listen)
	}
	o.checkMembers(fault)
	if o.Restore != "" && o.Join {
		fault("Restore and Join are both set: a backup is restored by founders")
	}
	if o.Dir == "" {
		fault("Dir is empty: a replica needs a directory for its log")
	}
	if n := len(o.Zone); n > peer.MaxZone || !utf8.ValidString(o.Zone) {
		fault("Zone %q: must be UTF-8 of at most %d bytes", o.Zone, peer.MaxZone)
	}
	if n := len(o.Cluster); n > 128 || !utf8.ValidString(o.Cluster) {
		fault("Cluster %q: must be UTF-8 of at most 128 bytes", o.Cluster)
	}
	if o.Groups < 1 || o.Groups > MaxGroups {
		fault("Groups is %d: must be 1 to %d", o.Groups, MaxGroups)
	}
	if n := len(o.Owner); n > MaxOwnerLen || !utf8.ValidString(o.Owner) {
		fault("Owner %q: must be UTF-8 of at most %d bytes", o.Owner, MaxOwnerLen)
	}
	if o.ElectionTimeout < minElectionTimeout {
		fault("ElectionTimeout is %v: must be at least %v", o.ElectionTimeout, minElectionTimeout)
	}
	if err := checkTTL(o.SessionTTL, o.ElectionTimeout); err != nil {
		fault("SessionTTL is %w", err)
	}
	o.checkQuotas(fault)
	if err := o.loadTLS(); err != nil {
		fault("%w", err)
	}
	if len(faults) > 0 {
		return Options{}, fmt.Errorf("%w: %w", ErrOptions, errors.Join(faults...))
	}
	return o, nil
}

func (o *Options) fillDefaults() {
	if o.Listen == "" {
		o.Listen = o.Address
	}
	if abs, err := filepath.Abs(o.Dir); err == nil && o.Dir != "" {
		o.Dir = abs // the working directory may change before it is used again
	}
	if o.Cluster == "" {
		o.Cluster = "quorumlock"
	}
	if o.Groups == 0 {
		o.Groups = 1
	}
	if o.Owner == "" {
		host, _ := os.Hostname()
		o.Owner = host + "/" + strconv.Itoa(os.Getpid())
	}
	if o.SessionTTL == 0 {
		o.SessionTTL = DefaultSessionTTL
	}
	if o.ElectionTimeout == 0 {
		o.ElectionTimeout = DefaultElectionTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.clock == nil {
		o.clock = clock.New()
	}
	if o.trust == nil {
		o.trust = trustClockFor(o.clock)
	}
	if o.level == 0 {
		o.level = wire.Version
	}
	o.Members, o.Quotas = maps.Clone(o.Members), slices.Clone(o.Quotas)
}

func (o *Options) checkMembers(fault func(string, ...any)) {
	if o.Join && len(o.Members) > 0 {
		fault("Join is set and Members has %d entries: a replica either founds the cluster or joins it", len(o.Members))
	}
	if o.NonVoting && len(o.Members) > 0 {
		fault("NonVoting is set and Members has %d entries: who founds the cluster votes", len(o.Members))
	}
	if len(o.Members) == 0 {
		return // whether that will do depends on what Dir holds
	}
	seen := make(map[string]uint64, len(o.Members))
	for _, id := range slices.Sorted(maps.Keys(o.Members)) {
		addr := o.Members[id]
		if id == 0 {
			fault("Members has replica id 0: ids must be positive")
		}
		checkAddress(fault, fmt.Sprintf("Members[%d]", id), addr)
		if other, dup := seen[addr]; dup {
			fault("Members[%d] and Members[%d] have the same address %q", other, id, addr)
		}
		seen[addr] = id
	}
	switch own, ok := o.Members[o.ReplicaID]; {
	case !ok && o.ReplicaID != 0:
		fault("ReplicaID %d is not among Members %v", o.ReplicaID, slices.Sorted(maps.Keys(o.Members)))
	case ok && own != o.Address:
		fault("Members[%d] is %q but Address is %q: they must be equal", o.ReplicaID, own, o.Address)
	}
}

func checkAddress(fault func(string, ...any), field, addr string) {
	if addr == "" {
		fault("%s is empty: must be host:port", field)
		return
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		fault("%s %q: must be host:port: %v", field, addr, err)
		return
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		fault("%s %q: port must be a number from 1 to 65535", field, addr)
	}
	if host == "" && field != "Listen" {
		fault("%s %q: the host is missing", field, addr)
	}
}

// checkTTL reports a TTL that could not outlive a change of leader.
func checkTTL(ttl, election time.Duration) error {
	switch {
	case ttl < ttlElections*election:
		return fmt.Errorf("%v: must be at least %d times the election timeout of %v, so that a session outlives a change of leader", ttl, ttlElections, election)
	case ttl > maxTTL:
		return fmt.Errorf("%v: must be at most %v", ttl, maxTTL)
	}
	return nil
}

// checkName reports a name that cannot be locked.
func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrName)
	case len(name) > MaxNameLen:
		return fmt.Errorf("%w: %q... has %d bytes, more than %d", ErrName, name[:32], len(name), MaxNameLen)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: %q is not UTF-8", ErrName, name)
	}
	return nil
}
