package quorumlock

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/peer"
)

// tagLen is what a proposal is longer in the log than the entry that it carries: a
// number by which its proposer knows it again when it is applied here.
const tagLen = 8

// A forwarder takes proposals from a replica that follows to the one that leads.
// The engine would do that too, but only behind whatever its one loop is about to
// write and sync: that is a sync more than the way needs. What gets lost is
// proposed again by whoever waits for it.
type forwarder struct {
	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan struct{}

	sending sync.Mutex
	links   map[uint64]*peer.Link
}

func newForwarder() *forwarder {
	return &forwarder{
		next:    rand.Uint64(), // so that no former life's numbers come again
		waiting: make(map[uint64]chan struct{}),
		links:   make(map[uint64]*peer.Link),
	}
}

// tag returns the entry with a number before it, and what is closed once it was
// applied here.
func (f *forwarder) tag(entry []byte) (tagged []byte, number uint64, applied <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	ch := make(chan struct{})
	f.waiting[f.next] = ch
	tagged = binary.BigEndian.AppendUint64(make([]byte, 0, tagLen+len(entry)), f.next)
	return append(tagged, entry...), f.next, ch
}

// forget is called when nobody waits for a number any more.
func (f *forwarder) forget(number uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.waiting, number)
}

// seen tells those who wait that what they proposed was applied.
func (f *forwarder) seen(numbers []uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range numbers {
		if ch := f.waiting[n]; ch != nil {
			delete(f.waiting, n)
			close(ch)
		}
	}
}

// untag is the other half of tag. What is too short to be tagged is an empty entry,
// which is malformed on every replica alike.
func untag(cmd []byte) (number uint64, entry []byte) {
	if len(cmd) < tagLen {
		return 0, nil
	}
	return binary.BigEndian.Uint64(cmd), cmd[tagLen:]
}

// forward sends an entry to the leader and waits until it is applied here.
func (s *shard) forward(ctx context.Context, leader uint64, tagged []byte, applied <-chan struct{}) error {
	r := s.r
	if r.carrier.barred.Load() {
		return fmt.Errorf("%w: %w", errDropped, errBarred)
	}
	f := r.forwarder
	f.sending.Lock()
	link := f.links[leader]
	if link == nil {
		link = r.peers.Link(leader, r.where)
		f.links[leader] = link
	}
	sent := s.send(ctx, link, tagged)
	f.sending.Unlock()
	if !sent {
		return fmt.Errorf("%w: replica %d, which leads, cannot be reached", errDropped, leader)
	}
	patience := time.NewTimer(r.patience(ctx))
	defer patience.Stop()
	select {
	case <-applied:
		return nil
	case <-patience.C:
		return errUnknown
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errUnknown, ctx.Err())
	case <-r.closing:
		return ErrClosed
	}
}

// send sends a proposal. That for the first group does not say so: when there was but
// one, there was nothing to say.
func (s *shard) send(ctx context.Context, link *peer.Link, tagged []byte) bool {
	if s.id == shardOf(0) {
		return link.Send(ctx, kindProposal, tagged)
	}
	return link.Send(ctx, kindGroupProposal, append(binary.BigEndian.AppendUint64(nil, s.id), tagged...))
}

// proposed takes what another replica forwarded. If this one leads no more, the
// engine forwards it once again, or drops it.
func (r *replica) proposed(shard uint64, tagged []byte) {
	if !r.enter() {
		return
	}
	defer r.leave()
	if _, err := r.host.Propose(r.shard(shard).session, tagged, 2*r.try); err != nil {
		r.logger.Debug("forwarded proposal dropped", "err", err)
	}
}
