package quorumlock

import (
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// A page that grows, shrinks and grows again finds what was added and not removed,
// and nothing else: also one whose entries know only a part of the hash, and with
// many records of one hash and of hashes side by side.
func TestPageAgainstMap(t *testing.T) {
	rnd := fsmDice(t, 2)
	hashes := map[string]func() uint32{
		"spread": rnd.Uint32,
		"alike":  func() uint32 { return 0xfff<<20 | rnd.Uint32N(1<<14) }, // the ring's end and beyond
		"equal":  func() uint32 { return 7 * rnd.Uint32N(40) << 20 },
	}
	for kind, hash := range hashes {
		t.Run(kind, func(t *testing.T) {
			most := 300
			if kind == "spread" {
				most = 6_000
			}
			var p page
			there := map[string]record{}
			number := uint64(0)
			for _, size := range []int{7, 0, most / 8, 3, most, most / 3, most, 0} {
				for len(there) < size {
					number++
					r := record{hash: hash()&^0xfff | 5, member: 1, seq: number}
					name := strconv.FormatUint(number, 10)
					require.Equal(t, -1, p.find(r.hash, name))
					slot := p.add(r, name)
					require.Equal(t, name, p.name(&p.records[slot]))
					there[name] = r
				}
				checkPageHas(t, &p, there)
				for _, name := range slices.Sorted(maps.Keys(there))[:max(0, len(there)-size)] {
					p.remove(p.find(there[name].hash, name))
					require.Equal(t, -1, p.find(there[name].hash, name))
					delete(there, name)
					if rnd.IntN(100) == 0 {
						checkPageHas(t, &p, there)
					}
				}
				checkPageHas(t, &p, there)
			}
		})
	}
}

func checkPageHas(t *testing.T, p *page, there map[string]record) {
	t.Helper()
	entered := 0
	for _, e := range p.index {
		if e != 0 {
			entered++
		}
	}
	if p.live != len(there) || entered != len(there) || p.live > len(p.index)*5/8 {
		t.Fatalf("%d records counted as %d, %d in an index of %d", len(there), p.live, entered, len(p.index))
	}
	for name, r := range there {
		slot := p.find(r.hash, name)
		if slot < 0 || p.name(&p.records[slot]) != name || p.records[slot].hash != r.hash || p.claimed(r.hash, 1, r.seq) != slot {
			t.Fatalf("record %q of hash %08x is not found: slot %d", name, r.hash, slot)
		}
	}
}
