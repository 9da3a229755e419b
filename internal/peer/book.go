package peer

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"
)

// A Book is what a replica has on record of the others. It lives in a file and
// is written there before a connection that changed it carries any message: a
// vote or an acknowledgement is only ever counted from a storage on record.
type Book struct {
	path string

	mu      sync.Mutex
	records map[uint64]record
	gone    map[uint64]bool // replicas that were removed, which have no record
	changed chan struct{}   // closed, and made anew, when it names another replica
}

// record is what is known of one replica.
type record struct {
	storage Storage // zero while only its address is known
	epoch   uint64  // the highest seen; 0 when known by hearsay only
	life    uint64  // seen with that epoch
	said
}

// ErrBook is returned when the file of a Book cannot be read or is damaged.
var ErrBook = errors.New("peer: record of the peers is damaged")

// ErrFull is returned when there is no room for one more replica.
var ErrFull = fmt.Errorf("peer: %d replicas are on record already", maxRoster)

// bookFile is the format of the file.
type bookFile struct {
	Format  int          `json:"format"`
	Peers   []peerRecord `json:"peers"`
	Removed []uint64     `json:"removed,omitempty"`
}

type peerRecord struct {
	Replica uint64 `json:"replica"`
	Storage string `json:"storage"`
	Epoch   uint64 `json:"epoch"`
	Life    uint64 `json:"life"`
	Address string `json:"address,omitempty"`
	Zone    string `json:"zone,omitempty"`
	NoVote  bool   `json:"no_vote,omitempty"`
	Said    uint64 `json:"said,omitempty"` // in which life it said so
	At      int64  `json:"at,omitempty"`   // or when another did
}

const bookFormat = 1

// CreateBook starts an empty record at path.
func CreateBook(path string) (*Book, error) {
	b := newBook(path)
	return b, b.save(b.records, b.gone)
}

func newBook(path string) *Book {
	return &Book{path: path, records: make(map[uint64]record), gone: make(map[uint64]bool), changed: make(chan struct{})}
}

// OpenBook reads the record at path. A file that is not there is an error: it
// would mean to trust everybody anew.
func OpenBook(path string) (*Book, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBook, err)
	}
	var file bookFile
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrBook, path, err)
	}
	if file.Format != bookFormat {
		return nil, fmt.Errorf("%w: %s: format %d, this version knows %d", ErrBook, path, file.Format, bookFormat)
	}
	b := newBook(path)
	for _, id := range file.Removed {
		b.gone[id] = true
	}
	for _, p := range file.Peers {
		r := record{epoch: p.Epoch, life: p.Life, said: said{epoch: p.Said, at: p.At, address: p.Address, zone: p.Zone, noVote: p.NoVote}}
		n, err := hex.Decode(r.storage[:], []byte(p.Storage))
		if err != nil || n != len(r.storage) || p.Replica == 0 {
			return nil, fmt.Errorf("%w: %s: replica %d, storage %q", ErrBook, path, p.Replica, p.Storage)
		}
		b.records[p.Replica] = r
	}
	return b, nil
}

// Address returns where replica said that it is dialled, or where it was said to be
// when it was added, or "".
func (b *Book) Address(replica uint64) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.records[replica].address
}

// Addresses returns all replicas that are on record, and where each said that it is
// dialled, or "".
func (b *Book) Addresses() map[uint64]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make(map[uint64]string, len(b.records))
	for id, r := range b.records {
		all[id] = r.address
	}
	return all
}

// Zone returns the zone that replica said that it is in, or "".
func (b *Book) Zone(replica uint64) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.records[replica].zone
}

// WantsVote tells whether replica is not known to want none.
func (b *Book) WantsVote(replica uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.records[replica].noVote
}

// Heard tells whether replica has ever spoken for itself, to this one or to another.
func (b *Book) Heard(replica uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.records[replica]
	return r.epoch != 0 || r.said.epoch != 0
}

// among returns those that have a record, and those of replicas that were not removed.
func (b *Book) among(replicas []uint64) []uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := slices.AppendSeq(slices.Clone(replicas), maps.Keys(b.records))
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(id uint64) bool { return b.gone[id] })
}

// Removed tells whether replica was removed from the cluster.
func (b *Book) Removed(replica uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.gone[replica]
}

// Introduce notes where a replica is that was just added: above what was said of it
// before, by whatever clock, and below what it said itself. The error is ErrFull if there
// is no room for one more.
func (b *Book) Introduce(replica uint64, address string, at time.Time) error {
	full := false
	err := b.update(func(records map[uint64]record, gone map[uint64]bool) {
		r, known := records[replica]
		full = !known && !gone[replica] && len(records) >= maxRoster
		if full || gone[replica] || r.said.epoch > 0 || r.address == address {
			return
		}
		r.said = said{at: max(at.UnixMilli(), r.at+1), address: address}
		records[replica] = r
	})
	if full {
		return ErrFull
	}
	return err
}

// Remove notes that replicas were removed: nobody under their ids is talked to again.
func (b *Book) Remove(replicas ...uint64) error {
	return b.update(func(records map[uint64]record, gone map[uint64]bool) {
		for _, id := range replicas {
			gone[id] = true
			delete(records, id)
		}
	})
}

// update makes a change durable before it counts.
func (b *Book) update(change func(records map[uint64]record, gone map[uint64]bool)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.updateLocked(change)
}

func (b *Book) updateLocked(change func(records map[uint64]record, gone map[uint64]bool)) error {
	records, gone := maps.Clone(b.records), maps.Clone(b.gone)
	change(records, gone)
	if maps.Equal(records, b.records) && maps.Equal(gone, b.gone) {
		return nil
	}
	if err := b.save(records, gone); err != nil {
		return err
	}
	if len(records) != len(b.records) {
		close(b.changed)
		b.changed = make(chan struct{})
	}
	b.records, b.gone = records, gone
	return nil
}

// change is closed when the book names another replica than now.
func (b *Book) change() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// admit compares a greeting with the record and keeps what it adds; it returns who was
// removed, as this replica learns by it. The error is a *Refusal when the other must not
// be talked to, and another one when what was learned could not be made durable.
func (b *Book) admit(self uint64, h *hello) (removed []uint64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.judge(self, h); err != nil {
		return nil, err
	}
	for _, id := range h.gone {
		if id != self && id != h.Replica && !b.gone[id] {
			removed = append(removed, id)
		}
	}
	err = b.updateLocked(func(records map[uint64]record, gone map[uint64]bool) {
		for _, id := range removed {
			gone[id] = true
			delete(records, id)
		}
		records[h.Replica] = record{storage: h.Storage, epoch: h.Epoch, life: h.Life,
			said: said{epoch: h.Epoch, address: h.Address, zone: h.Zone, noVote: h.NoVote}}
		hears(records, gone, self, h)
	})
	if err != nil {
		return nil, fmt.Errorf("peer: record of replica %d: %w", h.Replica, err)
	}
	return removed, nil
}

// hears keeps what a greeting tells of others.
func hears(records map[uint64]record, gone map[uint64]bool, self uint64, h *hello) {
	welcome := func(id uint64) bool {
		_, known := records[id]
		return id != 0 && id != self && id != h.Replica && !gone[id] && (known || len(records) < maxRoster)
	}
	for _, s := range h.roster {
		if r := records[s.replica]; welcome(s.replica) && r.storage == (Storage{}) {
			r.storage = s.storage
			records[s.replica] = r
		}
	}
	for _, n := range h.news {
		if r := records[n.replica]; welcome(n.replica) && n.said.newer(r.said) {
			r.said = n.said
			records[n.replica] = r
		}
	}
}

// judge wants b.mu held.
func (b *Book) judge(self uint64, h *hello) error {
	known, ok := b.records[h.Replica]
	switch {
	case b.gone[h.Replica]:
		return &Refusal{Code: CodeRemoved, By: self, Text: fmt.Sprintf("replica %d was removed from the cluster", h.Replica)}
	case !ok && len(b.records) >= maxRoster:
		return &Refusal{Code: CodeReplica, By: self, Text: fmt.Sprintf("%d replicas are on record already", maxRoster)}
	case !ok, known.storage == Storage{}:
		return nil
	case known.storage != h.Storage:
		return &Refusal{Code: CodeWiped, By: self, Text: fmt.Sprintf(
			"replica %d comes with storage %s, but was seen with storage %s before", h.Replica, h.Storage, known.storage)}
	case known.epoch > h.Epoch, known.epoch == h.Epoch && known.life != h.Life:
		return &Refusal{Code: CodeWiped, By: self, Text: fmt.Sprintf(
			"replica %d comes with an old copy of its storage %s: it says that this is its start %d, but a start %d was seen before",
			h.Replica, h.Storage, h.Epoch, known.epoch)}
	}
	return nil
}

// tell puts all that is known of others into a greeting, as far as there is room: the
// newest ids first, of which others may not have heard. heard tells how long ago a
// replica was heard.
func (b *Book) tell(h *hello, heard func(replica uint64) time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := 0
	for _, id := range slices.Backward(slices.Sorted(maps.Keys(b.records))) {
		r := b.records[id]
		if r.storage != (Storage{}) {
			h.roster = append(h.roster, sighting{replica: id, storage: r.storage})
		}
		n := news{replica: id, heard: heard(id), said: r.said}
		if size += len(n.append(nil)); size <= maxNews {
			h.news = append(h.news, n)
		}
	}
	gone := slices.Sorted(maps.Keys(b.gone))
	h.gone = gone[max(len(gone)-maxGone, 0):]
}

func (b *Book) save(records map[uint64]record, gone map[uint64]bool) error {
	file := bookFile{Format: bookFormat, Peers: []peerRecord{}, Removed: slices.Sorted(maps.Keys(gone))}
	for _, id := range slices.Sorted(maps.Keys(records)) {
		r := records[id]
		file.Peers = append(file.Peers, peerRecord{Replica: id, Storage: r.storage.String(), Epoch: r.epoch, Life: r.life,
			Address: r.address, Zone: r.zone, NoVote: r.noVote, Said: r.said.epoch, At: r.at})
	}
	raw, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	return ReplaceFile(b.path, append(raw, '\n'))
}
