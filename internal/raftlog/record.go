package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
)

// A record is
//
//	version   byte
//	kind      byte      update or checkpoint
//	changes   uvarint   how many follow, each of another replica
//
// and a change is
//
//	shard     uvarint
//	replica   uvarint
//	parts     uvarint   the bits of what follows, in this order
//	bootstrap text      raftpb.Bootstrap
//	state     3 uvarint term, vote, commit
//	snapshot  uvarint, text    index, raftpb.Snapshot
//	extent    2 uvarint first and last index of the log from now on
//	runs      uvarint   how many runs of entries follow
//
// where a text is a uvarint length and so many bytes, and a run is
//
//	first     uvarint   index of the first entry
//	count     uvarint
//	entries             each: length uint32, CRC-32C uint32, raftpb.Entry
//
// The entries of an update are appended, and replace what the log has from their first index
// on. Those of a checkpoint are in the log already, and have moved here.
//
// A new part takes the next bit and stands at the end; a new version is for what old ones
// would misread.
const recordVersion = 1

const (
	kindUpdate     = 1
	kindCheckpoint = 2 // of all replicas: one that is not in it is gone
)

const (
	partRemoved = 1 << iota // what was known of the replica before is gone
	partBootstrap
	partState
	partSnapshot
	partExtent
	partRuns
	allParts = 1<<iota - 1
)

// maxEntries is how many entries a log can have, so that no number on the disk makes
// memory grow without bound.
const maxEntries = 1 << 24

const entryHeader = 8

var (
	errMalformed = errors.New("malformed record")
	errNewer     = errors.New("written by a newer version")
)

// A change is what a record says about one replica.
type change struct {
	id        raftio.NodeInfo
	parts     uint64
	bootstrap []byte
	state     raftpb.State
	snapshot  snapshot
	extent    extent
	runs      []run
}

// A snapshot is the record of one, and not its data. It is kept encoded, as the engine
// writes into what it is given.
type snapshot struct {
	index uint64
	raw   []byte
}

// An extent is the range of a log; that of an empty one ends before it begins.
type extent struct{ first, last uint64 }

// A run is entries that follow one another: as the engine has them or as they were read
// from a segment when it is to be written, as where they are when it was read.
type run struct {
	first   uint64
	entries []raftpb.Entry
	raw     [][]byte
	found   []span
}

// A span is where the bytes of an entry are in a payload.
type span struct{ at, length, sum uint32 }

func appendRecord(b []byte, kind byte, changes []change) []byte {
	b = append(b, recordVersion, kind)
	b = binary.AppendUvarint(b, uint64(len(changes)))
	for i := range changes {
		b = changes[i].append(b)
	}
	return b
}

// recordSize is no less than what a record of these changes takes, so that the bytes of large
// entries are copied once.
func recordSize(changes []change) int {
	size := 2 + binary.MaxVarintLen64
	for i := range changes {
		c := &changes[i]
		size += 12*binary.MaxVarintLen64 + len(c.bootstrap) + len(c.snapshot.raw)
		for _, r := range c.runs {
			size += 2 * binary.MaxVarintLen64
			for k := range r.entries {
				size += entryHeader + r.entries[k].Size()
			}
			for _, raw := range r.raw {
				size += entryHeader + len(raw)
			}
		}
	}
	return size
}

func (c *change) append(b []byte) []byte {
	b = appendUvarints(b, c.id.ShardID, c.id.ReplicaID, c.parts)
	if c.parts&partBootstrap != 0 {
		b = appendText(b, c.bootstrap)
	}
	if c.parts&partState != 0 {
		b = appendUvarints(b, c.state.Term, c.state.Vote, c.state.Commit)
	}
	if c.parts&partSnapshot != 0 {
		b = appendText(appendUvarints(b, c.snapshot.index), c.snapshot.raw)
	}
	if c.parts&partExtent != 0 {
		b = appendUvarints(b, c.extent.first, c.extent.last)
	}
	if c.parts&partRuns != 0 {
		b = appendUvarints(b, uint64(len(c.runs)))
		for i := range c.runs {
			b = c.runs[i].append(b)
		}
	}
	return b
}

func (r *run) append(b []byte) []byte {
	b = appendUvarints(b, r.first, uint64(len(r.entries)+len(r.raw)))
	for i := range r.entries {
		size := r.entries[i].Size()
		at := len(b) + entryHeader
		b = slices.Grow(b, entryHeader+size)[:at+size]
		n, _ := r.entries[i].MarshalTo(b[at:]) // it has no errors
		b = b[:at+n]
		putEntryHeader(b[at-entryHeader:], b[at:])
	}
	for _, raw := range r.raw {
		at := len(b)
		b = append(slices.Grow(b, entryHeader+len(raw))[:at+entryHeader], raw...)
		putEntryHeader(b[at:], raw)
	}
	return b
}

func putEntryHeader(b, entry []byte) {
	binary.LittleEndian.PutUint32(b, uint32(len(entry)))
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(entry, castagnoli))
}

func appendUvarints(b []byte, numbers ...uint64) []byte {
	for _, v := range numbers {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

func appendText(b, text []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// decodeRecord reads a payload. What it returns shares no memory with b.
func decodeRecord(b []byte) (kind byte, changes []change, err error) {
	if len(b) > 0 && b[0] > recordVersion {
		return 0, nil, fmt.Errorf("%w: version %d", errNewer, b[0])
	}
	if len(b) < 2 || b[0] != recordVersion || b[1] != kindUpdate && b[1] != kindCheckpoint {
		return 0, nil, errMalformed
	}
	r := reader{b: b, at: 2}
	n := r.count(3) // a change has three bytes at least
	changes = make([]change, n)
	for i := range changes {
		r.change(&changes[i])
	}
	if r.failed || r.at != len(b) {
		return 0, nil, errMalformed
	}
	return b[1], changes, nil
}

// A reader reads a payload. After its first failure it gives zeroes.
type reader struct {
	b      []byte
	at     int
	failed bool
}

func (r *reader) uvarint() uint64 {
	if r.failed {
		return 0
	}
	v, n := binary.Uvarint(r.b[r.at:])
	if n <= 0 {
		r.failed = true
		return 0
	}
	r.at += n
	return v
}

// count reads how many things follow, each of which has so many bytes at least: nothing is
// made for more than there can be.
func (r *reader) count(size int) int {
	n := r.uvarint()
	if n > uint64((len(r.b)-r.at)/size) {
		r.failed = true
		return 0
	}
	return int(n)
}

func (r *reader) text() []byte {
	n := r.count(1)
	r.at += n
	return slices.Clone(r.b[r.at-n : r.at])
}

func (r *reader) change(c *change) {
	c.id = raftio.NodeInfo{ShardID: r.uvarint(), ReplicaID: r.uvarint()}
	c.parts = r.uvarint()
	if c.parts&^allParts != 0 {
		r.failed = true
	}
	if c.parts&partBootstrap != 0 {
		c.bootstrap = r.text()
	}
	if c.parts&partState != 0 {
		c.state = raftpb.State{Term: r.uvarint(), Vote: r.uvarint(), Commit: r.uvarint()}
	}
	if c.parts&partSnapshot != 0 {
		c.snapshot = snapshot{index: r.uvarint(), raw: r.text()}
	}
	if c.parts&partExtent != 0 {
		c.extent = extent{first: r.uvarint(), last: r.uvarint()}
		if e := c.extent; e.first == 0 || e.last == math.MaxUint64 || e.first > e.last+1 || e.last+1-e.first > maxEntries {
			r.failed = true
		}
	}
	if c.parts&partRuns != 0 {
		c.runs = make([]run, r.count(2))
		for i := range c.runs {
			r.run(&c.runs[i])
		}
	}
}

func (r *reader) run(run *run) {
	run.first = r.uvarint()
	n := r.count(entryHeader)
	if run.first == 0 || run.first > math.MaxUint64-uint64(n) || n > maxEntries {
		r.failed = true
		return
	}
	run.found = make([]span, n)
	for i := range run.found {
		if r.failed || len(r.b)-r.at < entryHeader {
			r.failed = true
			return
		}
		length, sum := binary.LittleEndian.Uint32(r.b[r.at:]), binary.LittleEndian.Uint32(r.b[r.at+4:])
		r.at += entryHeader
		if uint64(length) > uint64(len(r.b)-r.at) {
			r.failed = true
			return
		}
		run.found[i] = span{at: uint32(r.at), length: length, sum: sum}
		r.at += int(length)
	}
}
