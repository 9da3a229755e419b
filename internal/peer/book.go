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
)

// A Book is what a replica has on record of the others. It lives in a file and
// is written there before a connection that changed it carries any message: a
// vote or an acknowledgement is only ever counted from a storage on record.
type Book struct {
	path string

	mu      sync.Mutex
	records map[uint64]record
}

// record is what is known of one replica.
type record struct {
	storage Storage
	epoch   uint64 // the highest seen; 0 when known by hearsay only
	life    uint64 // seen with that epoch
	address string // where it said that it is dialled
}

// ErrBook is returned when the file of a Book cannot be read or is damaged.
var ErrBook = errors.New("peer: record of the peers is damaged")

// bookFile is the format of the file.
type bookFile struct {
	Format int          `json:"format"`
	Peers  []peerRecord `json:"peers"`
}

type peerRecord struct {
	Replica uint64 `json:"replica"`
	Storage string `json:"storage"`
	Epoch   uint64 `json:"epoch"`
	Life    uint64 `json:"life"`
	Address string `json:"address,omitempty"`
}

const bookFormat = 1

// CreateBook starts an empty record at path.
func CreateBook(path string) (*Book, error) {
	b := &Book{path: path, records: make(map[uint64]record)}
	return b, b.save(b.records)
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
	b := &Book{path: path, records: make(map[uint64]record, len(file.Peers))}
	for _, p := range file.Peers {
		r := record{epoch: p.Epoch, life: p.Life, address: p.Address}
		n, err := hex.Decode(r.storage[:], []byte(p.Storage))
		if err != nil || n != len(r.storage) || p.Replica == 0 {
			return nil, fmt.Errorf("%w: %s: replica %d, storage %q", ErrBook, path, p.Replica, p.Storage)
		}
		b.records[p.Replica] = r
	}
	return b, nil
}

// Address returns where replica said that it is dialled, or "".
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

// admit compares a greeting with the record and keeps what it adds. It returns
// a *Refusal when the other must not be talked to, and another error when what
// was learned could not be made durable.
func (b *Book) admit(self uint64, h *hello) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.judge(self, h); err != nil {
		return err
	}
	next := maps.Clone(b.records)
	next[h.Replica] = record{storage: h.Storage, epoch: h.Epoch, life: h.Life, address: h.Address}
	for _, s := range h.roster {
		if _, known := next[s.replica]; !known && s.replica != self && len(next) < maxRoster {
			next[s.replica] = record{storage: s.storage}
		}
	}
	if maps.Equal(next, b.records) {
		return nil
	}
	if err := b.save(next); err != nil {
		return fmt.Errorf("peer: record of replica %d: %w", h.Replica, err)
	}
	b.records = next
	return nil
}

// judge wants b.mu held.
func (b *Book) judge(self uint64, h *hello) error {
	known, ok := b.records[h.Replica]
	switch {
	case !ok && len(b.records) >= maxRoster:
		return &Refusal{Code: CodeReplica, By: self, Text: fmt.Sprintf("%d replicas are on record already", maxRoster)}
	case !ok:
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

// roster returns all that is known of storages, ordered by replica.
func (b *Book) roster() []sighting {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []sighting
	for _, id := range slices.Sorted(maps.Keys(b.records)) {
		all = append(all, sighting{replica: id, storage: b.records[id].storage})
	}
	return all
}

func (b *Book) save(records map[uint64]record) error {
	file := bookFile{Format: bookFormat, Peers: []peerRecord{}}
	for _, id := range slices.Sorted(maps.Keys(records)) {
		r := records[id]
		file.Peers = append(file.Peers, peerRecord{Replica: id, Storage: r.storage.String(), Epoch: r.epoch, Life: r.life, Address: r.address})
	}
	raw, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	return ReplaceFile(b.path, append(raw, '\n'))
}
