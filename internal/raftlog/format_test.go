package raftlog

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("update", false, "write the golden files of the present version anew; "+
	"a version that was ever released must not change")

// everyPart is changes with each part in them, and numbers that no two fields share.
func everyPart() []change {
	return []change{
		{id: raftio.NodeInfo{ShardID: 1, ReplicaID: 300}, parts: allParts, bootstrap: []byte("boot"), state: state(5, 6, 70_000),
			snapshot: snapshot{index: 8, raw: []byte("snap")}, extent: extent{9, 10},
			runs: []run{{first: 9, entries: entries(9, 10, 5, 4)}, {first: 12, raw: [][]byte{[]byte("raw entry")}}}},
		{id: raftio.NodeInfo{ShardID: math.MaxUint64, ReplicaID: 2}, parts: partRemoved},
	}
}

// golden compares b with a file of hex lines.
func golden(t *testing.T, name string, b []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *rewrite {
		var text strings.Builder
		for rest := b; len(rest) > 0; {
			n := min(len(rest), 32)
			text.WriteString(hex.EncodeToString(rest[:n]) + "\n")
			rest = rest[n:]
		}
		require.NoError(t, os.WriteFile(file, []byte(text.String()), 0o666))
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	want, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	require.NoError(t, err)
	require.Equal(t, hex.Dump(want), hex.Dump(b), "the durable format has changed: it needs a new version")
}

func TestGolden(t *testing.T) {
	require.Equal(t, 1, recordVersion, "keep the golden files of old versions, and add one")
	record := appendRecord(nil, kindCheckpoint, everyPart())
	require.GreaterOrEqual(t, recordSize(everyPart()), len(record))
	b := header{salt: 0x0123456789abcdef, number: 7, first: 99, oldest: 3}.append(nil)
	b = append(b, seal(0x0123456789abcdef).close(append(make([]byte, frameHeader), record...), 99)...)
	golden(t, "segment.v1.hex", b)

	h, err := decodeHeader(b)
	require.NoError(t, err)
	require.Equal(t, header{salt: 0x0123456789abcdef, number: 7, first: 99, oldest: 3}, h)
	payload, size, ok := h.salt.open(b[segmentHeader:], 99)
	require.True(t, ok)
	require.Equal(t, len(b)-segmentHeader, size)
	kind, changes, err := decodeRecord(payload)
	require.NoError(t, err)
	require.EqualValues(t, kindCheckpoint, kind)
	want := everyPart()
	require.Equal(t, want[1], changes[1])
	for _, s := range changes[0].runs[0].found {
		var e raftpb.Entry
		index := 9 + uint64((s.at-changes[0].runs[0].found[0].at)/(s.length+entryHeader))
		require.NoError(t, location{length: s.length, sum: s.sum}.decode(payload[s.at:s.at+s.length], index, &e))
		require.Equal(t, entry(index, 5, 4), e)
	}
	raw := changes[0].runs[1].found[0]
	require.Equal(t, "raw entry", string(payload[raw.at:raw.at+raw.length]))
	changes[0].runs, want[0].runs = nil, nil
	require.Equal(t, want[0], changes[0])
}

func TestMalformedRecords(t *testing.T) {
	good := appendRecord(nil, kindUpdate, everyPart())
	for n := range good {
		_, _, err := decodeRecord(good[:n])
		require.ErrorIs(t, err, errMalformed, "cut at %d", n)
	}
	_, _, err := decodeRecord(append(bytes.Clone(good), 0))
	require.ErrorIs(t, err, errMalformed)
	newer := bytes.Clone(good)
	newer[0]++
	_, _, err = decodeRecord(newer)
	require.ErrorIs(t, err, errNewer)
	for what, c := range map[string]change{
		"an unknown part":           {parts: allParts + 1},
		"a log that begins with 0":  {parts: partExtent, extent: extent{0, 3}},
		"a log that ends too early": {parts: partExtent, extent: extent{5, 3}},
		"a log without an end":      {parts: partExtent, extent: extent{5, math.MaxUint64}},
		"too long a log":            {parts: partExtent, extent: extent{5, 5 + maxEntries}},
		"entry 0":                   {parts: partRuns, runs: []run{{entries: entries(1, 2, 3, 4)}}},
		"entries without an end":    {parts: partRuns, runs: []run{{first: math.MaxUint64, entries: entries(1, 2, 3, 4)}}},
	} {
		_, _, err := decodeRecord(appendRecord(nil, kindUpdate, []change{c}))
		require.ErrorIs(t, err, errMalformed, what)
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add(appendRecord(nil, kindUpdate, everyPart()))
	f.Add(appendRecord(nil, kindCheckpoint, everyPart()))
	f.Add([]byte{recordVersion, kindUpdate, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		kind, changes, err := decodeRecord(b)
		if err != nil {
			return
		}
		for i := range changes {
			for _, r := range changes[i].runs {
				for _, s := range r.found {
					_ = b[s.at : s.at+s.length]
				}
			}
			if e := changes[i].extent; e.length() > 1<<10 {
				return // it is allowed, but takes memory
			}
		}
		x := index{}
		x.apply(kind, changes, 1, 0, &Store{})
		x.apply(kind, changes, 1, 0, &Store{})
		for _, n := range x {
			n.between(0, math.MaxUint64)
			n.missing()
		}
	})
}

func FuzzOpenFrame(f *testing.F) {
	f.Add(seal(1).close(append(make([]byte, frameHeader), "payload"...), 5), uint64(5))
	f.Fuzz(func(t *testing.T, b []byte, sequence uint64) {
		if payload, size, ok := seal(1).open(b, sequence); ok {
			require.LessOrEqual(t, len(payload)+frameHeader, size)
		}
		seal(1).later(b, sequence)
		_, _ = decodeHeader(b)
	})
}

// smallLog writes a log with a few records in two segments, and returns the files and what
// the states were after each record of the last segment.
func smallLog(t *testing.T, clean bool) (files map[string][]byte, states []model) {
	t.Helper()
	fs := newFS(t)
	s := open(t, fs, Factory{SegmentSize: 512})
	m := make(model)
	step := func(u raftpb.Update) {
		segments := len(s.segments)
		save(t, s, u)
		m.group(u.ShardID).save(u)
		if len(s.segments) > segments {
			states = nil
		}
		states = append(states, m.clone())
	}
	step(update(1, state(1, 1, 0), entries(1, 2, 1, 100)...))
	step(update(1, state(1, 1, 1), entries(3, 3, 1, 60)...))
	step(update(1, state(2, 1, 2), entries(3, 4, 2, 40)...))
	step(update(2, state(7, 3, 0)))
	step(update(1, state(3, 2, 2), entries(5, 5, 3, 20)...))
	require.Len(t, s.segments, 2)
	require.Len(t, states, 3)
	if clean {
		require.NoError(t, s.Close())
	} else {
		require.NoError(t, s.release())
	}
	files = make(map[string][]byte)
	names, err := fs.List("/d/log")
	require.NoError(t, err)
	for _, name := range names {
		files[name] = getFile(t, fs, name)
	}
	return files, states
}

// openFiles opens a log of such files.
func openFiles(t *testing.T, files map[string][]byte) (*Store, error) {
	t.Helper()
	fs := newFS(t)
	require.NoError(t, fs.MkdirAll("/d/log", 0o755))
	for name, b := range files {
		putFile(t, fs, name, b)
	}
	return Open(fs, "/d/log", Factory{SegmentSize: 512})
}

// damaged opens the files with one of them changed. It returns -1 if that was refused, and
// otherwise which of the states it found.
func damaged(t *testing.T, files map[string][]byte, name string, b []byte, states []model) int {
	t.Helper()
	all := make(map[string][]byte)
	for name, b := range files {
		all[name] = b
	}
	if all[name] = b; b == nil {
		delete(all, name)
	}
	s, err := openFiles(t, all)
	if err != nil {
		require.ErrorContains(t, err, "/d/log")
		require.ErrorContains(t, err, name)
		return -1
	}
	var faults []error
	for i := range states {
		faults = append(faults, states[i].differs(s, true))
	}
	found := slices.Index(faults, nil)
	require.GreaterOrEqual(t, found, 0, "a state that never was: %v", errors.Join(faults...))
	// What was cut is never joined with what follows.
	save(t, s, update(3, state(1, 0, 0), entries(1, 2, 1, 10)...))
	states[found].group(3).save(update(3, state(1, 0, 0), entries(1, 2, 1, 10)...))
	defer delete(states[found], 3)
	s = reopen(t, s, false)
	require.NoError(t, states[found].differs(s, true))
	require.NoError(t, s.Close())
	return found
}

const newest, older = "0000000002.log", "0000000001.log"

// frames returns where those of a segment begin, and where the last one ends.
func frames(t *testing.T, b []byte) (at []int) {
	t.Helper()
	h, err := decodeHeader(b)
	require.NoError(t, err)
	end := segmentHeader
	for sequence := h.first; ; sequence++ {
		at = append(at, end)
		_, size, ok := h.salt.open(b[end:], sequence)
		if !ok {
			return at
		}
		end += size
	}
}

// A write that was cut short anywhere, with whatever behind it, takes back the last record
// and no other.
func TestTornTail(t *testing.T) {
	files, states := smallLog(t, false)
	whole := files[newest]
	at := frames(t, whole)
	start, end := at[len(at)-2], at[len(at)-1]
	r := dice(t)
	for cut := start; cut < end; cut++ {
		zeroed := append(bytes.Clone(whole[:cut]), make([]byte, len(whole)-cut)...)
		garbage := bytes.Clone(zeroed)
		for i := cut; i < len(garbage); i++ {
			garbage[i] = byte(r.Uint32())
		}
		for _, b := range [][]byte{zeroed, garbage, whole[:cut]} {
			found := damaged(t, files, newest, b, states)
			if cut > end-frameAlign && found == len(states)-1 {
				continue // only what fills it up was lost
			}
			require.Equal(t, len(states)-2, found, "cut at %d of %d to %d", cut, start, end)
		}
	}
	// What was lost before a whole record is not a torn write.
	for cut := range start - frameAlign + 1 {
		b := slices.Concat(whole[:cut], bytes.Repeat([]byte{0xa5}, start-cut), whole[start:])
		require.Equal(t, -1, damaged(t, files, newest, b, states), "from %d to %d", cut, start)
	}
}

// A flipped bit anywhere is found; only in the last record of a log that was not closed, it
// looks like a torn write.
func TestFlippedBits(t *testing.T) {
	for _, clean := range []bool{true, false} {
		files, states := smallLog(t, clean)
		for name, whole := range files {
			at := frames(t, whole)
			last, end := at[len(at)-2], at[len(at)-1]
			for i := range end {
				b := bytes.Clone(whole)
				b[i] ^= 1 << (i % 8)
				found := damaged(t, files, name, b, states)
				switch {
				case found == -1, found == len(states)-1: // refused, or it did not matter
					require.True(t, found == -1 || matters(whole, at, i) || clean && name == newest && i >= last, "bit of byte %d of %s was not noticed", i, name)
				case name == newest && !clean && i >= last:
					require.Equal(t, len(states)-2, found)
				default:
					t.Errorf("flipped byte %d of %s: state %d", i, name, found)
				}
			}
		}
	}
}

// matters tells whether byte i is one of those that only fill up.
func matters(b []byte, at []int, i int) bool {
	if i >= 44 && i < segmentHeader {
		return true
	}
	for k := range len(at) - 1 {
		size := frameHeader + int(uint32(b[at[k]])|uint32(b[at[k]+1])<<8)
		if i >= at[k]+size && i < at[k+1] {
			return true
		}
	}
	return false
}

func TestMissingSegments(t *testing.T) {
	files, states := smallLog(t, true)
	require.Equal(t, -1, damaged(t, files, older, nil, states))
	files, _ = smallLog(t, true)
	other, _ := smallLog(t, true)
	require.Equal(t, -1, damaged(t, files, older, other[older], states), "of another log")
	require.Equal(t, -1, damaged(t, files, older, files[newest], states), "of another number")
	files["0000000003.log"] = files[newest]
	require.Equal(t, -1, damaged(t, files, "0000000003.log", files[newest], states))
	files, _ = smallLog(t, true) // a newest one that does not know how much it needs
	h, err := decodeHeader(files[newest])
	require.NoError(t, err)
	h.oldest = h.number
	delete(files, older)
	files[newest] = append(h.append(nil), files[newest][segmentHeader:]...)
	_, err = openFiles(t, files)
	require.ErrorContains(t, err, "entry 1 of shard 1, replica 1 is missing")
	for _, b := range [][]byte{{}, []byte("x"), files[newest][:segmentHeader], bytes.Repeat([]byte{0}, 600)} {
		files, _ = smallLog(t, true)
		require.Equal(t, -1, damaged(t, files, newest, b, states))
		require.Equal(t, -1, damaged(t, files, older, b, states))
	}
	files, _ = smallLog(t, true)
	files["0000000009.txt"], files["spare"], files["new"] = []byte("x"), []byte("x"), []byte("half a segment")
	require.Equal(t, len(states)-1, damaged(t, files, newest, files[newest], states), "other files")
}
