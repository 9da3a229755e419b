package quorumlock

import (
	crand "crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/quorumlock/quorumlock/internal/peer"
)

// What lies in Options.Dir.
const (
	markerName = "quorumlock.json" // whose directory this is
	lockName   = "LOCK"            // held while a process uses it
	bookName   = "peers.json"      // what is known of the other replicas
	engineName = "engine"          // the log and the snapshots
)

const markerFormat = 1

// The two states of a directory. Until bootstrapped is on disk the replica has
// not exchanged a message, so what its engine left there may be thrown away.
const (
	stateBootstrapping = "bootstrapping"
	stateBootstrapped  = "bootstrapped"
)

// hostname is replaced in tests.
var hostname = os.Hostname

// A marker says whose directory this is. It is written before the engine puts
// anything there, and checked before the engine looks at anything.
type marker struct {
	Format    int               `json:"format"`
	State     string            `json:"state"`
	Cluster   string            `json:"cluster"`
	Replica   uint64            `json:"replica"`
	Hostname  string            `json:"hostname"`
	Path      string            `json:"path"` // the engine keeps whole paths of its snapshots
	Storage   string            `json:"storage"`
	Epoch     uint64            `json:"epoch"`
	Life      uint64            `json:"life"` // drawn for each epoch
	Joined    bool              `json:"joined"`
	Removed   bool              `json:"removed,omitempty"` // from the cluster, for good
	Founders  map[uint64]string `json:"founders,omitempty"`
	Backup    string            `json:"backup,omitempty"` // sum of the backup from which they founded it
	Groups    int               `json:"groups,omitempty"` // 0 stands for 1
	Executors uint64            `json:"executors"`
	LogShards uint64            `json:"log_shards"`
	Sum       string            `json:"sum"` // CRC-32C of the above
}

// A directory is one that this process has for itself.
type directory struct {
	path   string // resolved
	lock   *os.File
	marker marker
}

// claimed are the directories in use by this process: its own locks do not
// keep a process out.
var claimed = struct {
	sync.Mutex
	by map[string]uint64
}{by: make(map[string]uint64)}

// claimDirectory takes o.Dir for this process and checks that it is o's. It
// changes nothing there but for the lock.
func claimDirectory(o Options) (*directory, error) {
	if err := checkBlank(o); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	path, err := resolve(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	claimed.Lock()
	defer claimed.Unlock()
	if id, used := claimed.by[path]; used {
		return nil, fmt.Errorf("%w: %s is in use by this process, as replica %d: close that Node first", ErrDirectory, path, id)
	}
	lock, err := lockDirectory(path)
	if err != nil {
		return nil, err
	}
	d := &directory{path: path, lock: lock}
	if err := d.check(o); err != nil {
		unlockFile(lock)
		return nil, err
	}
	claimed.by[path] = o.ReplicaID
	return d, nil
}

// checkBlank refuses, before anything is created, a start that could not go
// anywhere.
func checkBlank(o Options) error {
	if len(o.Members) > 0 || o.Join {
		return nil
	}
	if _, err := os.Stat(filepath.Join(o.Dir, markerName)); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if entries, err := os.ReadDir(o.Dir); err == nil && len(foreign(entries)) > 0 {
		return nil // a clearer error follows
	}
	return fmt.Errorf("%w: %s holds no replica yet: its first start needs Members, or Join", ErrOptions, o.Dir)
}

func resolve(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

func lockDirectory(path string) (*os.File, error) {
	name := filepath.Join(path, lockName)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	ok, err := lockFile(f)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%w: lock %s: %w", ErrDirectory, name, err)
	}
	if !ok {
		pid, _ := os.ReadFile(name) // only to say more
		_ = f.Close()
		return nil, fmt.Errorf("%w: %s is in use by another process (pid %s)", ErrDirectory, path, strings.TrimSpace(string(pid)))
	}
	// The pid is for people who look; the lock is what counts.
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return f, nil
}

// release gives the directory back. It is idempotent.
func (d *directory) release() {
	claimed.Lock()
	defer claimed.Unlock()
	if d.lock != nil {
		delete(claimed.by, d.path)
		unlockFile(d.lock)
		d.lock = nil
	}
}

// check reads the marker and compares it with o, or drafts one.
func (d *directory) check(o Options) error {
	raw, err := os.ReadFile(d.file(markerName))
	if errors.Is(err, fs.ErrNotExist) {
		return d.draft(o)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	if d.marker, err = decodeMarker(raw); err != nil {
		return fmt.Errorf("%w: %s: %w; restore the file from where it was lost, or give this replica up: "+
			"empty the directory and start it under a new replica id", ErrDirectory, d.file(markerName), err)
	}
	if err := d.checkOwner(o); err != nil {
		return err
	}
	if d.marker.State == stateBootstrapping {
		// Nobody has heard of this replica yet, so that its founders, the host
		// and even how it starts may still be corrected.
		return d.redraft(o)
	}
	if err := d.checkPath(); err != nil {
		return err
	}
	if founded, given := max(d.marker.Groups, 1), max(o.Groups, 1); founded != given {
		return fmt.Errorf("%w: Options.Groups is %d, but %s was founded with %d: the number of groups can never change",
			ErrGroups, given, d.path, founded)
	}
	return errors.Join(d.checkMembers(o), d.checkRestore(o))
}

// checkPath refuses a directory that was moved with snapshots in it: the engine
// would look for them where they were once a peer needs one, and stop the
// process.
func (d *directory) checkPath() error {
	if d.marker.Path == d.path {
		return nil
	}
	newest, err := newestSnapshots(d.file(engineName))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	if len(newest) > 0 {
		return fmt.Errorf("%w: %s was %s before: move it back, or mount it there", ErrDirectory, d.path, d.marker.Path)
	}
	d.marker.Path = d.path
	return nil
}

// draft makes the marker of a directory that has none.
func (d *directory) draft(o Options) error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	if names := foreign(entries); len(names) > 0 {
		return fmt.Errorf("%w: %s has no %s but holds %s: if it is a replica's, restore that file; "+
			"if not, use an empty directory", ErrDirectory, d.path, markerName, strings.Join(names, ", "))
	}
	var storage peer.Storage
	_, _ = crand.Read(storage[:]) // never fails
	d.marker = marker{
		Format:    markerFormat,
		State:     stateBootstrapping,
		Cluster:   o.Cluster,
		Replica:   o.ReplicaID,
		Storage:   storage.String(),
		Executors: execShards,
		LogShards: logShards,
	}
	return d.redraft(o)
}

func (d *directory) redraft(o Options) error {
	host, err := hostname()
	if err != nil {
		return fmt.Errorf("%w: hostname: %w", ErrDirectory, err)
	}
	if len(o.Members) == 0 && !o.Join {
		return fmt.Errorf("%w: the first start in %s was not completed: it needs Members, or Join, again", ErrOptions, d.path)
	}
	d.marker.Hostname, d.marker.Path = host, d.path
	if o.backupErr != nil {
		return o.backupErr
	}
	d.marker.Joined, d.marker.Founders = o.Join, maps.Clone(o.Members)
	d.marker.Groups, d.marker.Backup = 0, ""
	if o.Groups > 1 {
		d.marker.Groups = o.Groups
	}
	if o.backup != nil {
		d.marker.Backup = o.backup.info.Sum
	}
	return nil
}

// foreign returns the names that a directory may not hold before its first use.
func foreign(entries []fs.DirEntry) []string {
	var names []string
	for _, e := range entries {
		switch name := e.Name(); {
		case name == lockName, name == "lost+found", strings.HasPrefix(name, peer.TempPrefix):
		default:
			names = append(names, name)
		}
	}
	return names
}

// checkOwner compares what must never change.
func (d *directory) checkOwner(o Options) error {
	m := d.marker
	host, err := hostname()
	if err != nil {
		return fmt.Errorf("%w: hostname: %w", ErrDirectory, err)
	}
	switch {
	case m.Cluster != o.Cluster:
		return fmt.Errorf("%w: %s belongs to cluster %q, not %q: set Options.Cluster or Options.Dir right", ErrDirectory, d.path, m.Cluster, o.Cluster)
	case m.Replica != o.ReplicaID:
		return fmt.Errorf("%w: %s belongs to replica %d, not %d: set Options.ReplicaID or Options.Dir right", ErrDirectory, d.path, m.Replica, o.ReplicaID)
	case m.Removed:
		return d.removedError()
	case m.Hostname != host && m.State == stateBootstrapped:
		return fmt.Errorf("%w: %s was made on host %q, this is %q: give the host (or the container) its old name, "+
			"or give this replica up and start one under a new replica id", ErrDirectory, d.path, m.Hostname, host)
	case m.Executors != execShards || m.LogShards != logShards:
		return fmt.Errorf("%w: %s was made with log geometry %d/%d, this version uses %d/%d: run the version that made it",
			ErrDirectory, d.path, m.Executors, m.LogShards, execShards, logShards)
	}
	return nil
}

// checkMembers compares the founders' ids and takes over their new addresses.
func (d *directory) checkMembers(o Options) error {
	if len(o.Members) == 0 {
		return nil
	}
	if d.marker.Joined {
		return fmt.Errorf("%w: replica %d joined the cluster later: leave Members empty", ErrMembers, o.ReplicaID)
	}
	founded, given := ids(d.marker.Founders), ids(o.Members)
	if !slices.Equal(founded, given) {
		return fmt.Errorf("%w: Members names replicas %v, but %s was founded with %v: "+
			"Members are the founders for ever, only their addresses may change", ErrMembers, given, d.path, founded)
	}
	d.marker.Founders = maps.Clone(o.Members)
	return nil
}

// begin writes that the directory is used once more. From then on the epoch and
// the storage are those of this process.
func (d *directory) begin() (*peer.Book, error) {
	d.marker.Epoch++
	d.marker.Life = rand.Uint64()
	if err := d.save(); err != nil {
		return nil, err
	}
	open := peer.OpenBook
	if _, err := os.Stat(d.file(bookName)); d.marker.State == stateBootstrapping && errors.Is(err, fs.ErrNotExist) {
		open = peer.CreateBook
	}
	book, err := open(d.file(bookName))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	if d.marker.State == stateBootstrapping {
		// What a first start that was cut short left behind: no message was
		// ever exchanged for it.
		if err := os.RemoveAll(d.file(engineName)); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDirectory, err)
		}
	}
	return book, nil
}

// bootstrapped writes that the engine is in place. From then on the replica may
// talk, and the engine's data may never be thrown away again.
func (d *directory) bootstrapped() error {
	if d.marker.State == stateBootstrapped {
		return nil
	}
	d.marker.State = stateBootstrapped
	return d.save()
}

// noteRemoved writes that the replica was removed from its cluster.
func (d *directory) noteRemoved() error {
	m := d.marker // which others read
	m.Removed = true
	return d.write(m)
}

func (d *directory) removedError() error {
	return fmt.Errorf("%w: replica %d left cluster %q for good. To take part again, start a replica with an id that was "+
		"never used, Join and an empty directory, after AddReplica on a member; %s may be deleted",
		ErrRemoved, d.marker.Replica, d.marker.Cluster, d.path)
}

func (d *directory) save() error { return d.write(d.marker) }

func (d *directory) write(m marker) error {
	raw, err := encodeMarker(m)
	if err == nil {
		err = peer.ReplaceFile(d.file(markerName), raw)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	return nil
}

func (d *directory) file(name string) string { return filepath.Join(d.path, name) }

// storage is drawn once and never zero.
func (m marker) storage() peer.Storage {
	s, _ := parseStorage(m.Storage) // checked when it was read
	return s
}

func parseStorage(s string) (storage peer.Storage, ok bool) {
	n, err := hex.Decode(storage[:], []byte(s))
	return storage, err == nil && n == len(storage) && len(s) == 2*n && storage != peer.Storage{}
}

func encodeMarker(m marker) ([]byte, error) {
	m.Sum = ""
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	m.Sum = sumOf(raw)
	raw, err = json.MarshalIndent(m, "", "  ")
	return append(raw, '\n'), err
}

func decodeMarker(raw []byte) (marker, error) {
	var m marker
	if err := json.Unmarshal(raw, &m); err != nil {
		return marker{}, fmt.Errorf("damaged: %w", err)
	}
	if m.Format != markerFormat {
		return marker{}, fmt.Errorf("format %d, this version knows %d", m.Format, markerFormat)
	}
	sum := m.Sum
	m.Sum = ""
	plain, err := json.Marshal(m)
	if err != nil {
		return marker{}, err
	}
	if sum != sumOf(plain) {
		return marker{}, errors.New("damaged: its checksum is wrong")
	}
	_, ok := parseStorage(m.Storage)
	if !ok || m.Replica == 0 || m.State != stateBootstrapping && m.State != stateBootstrapped {
		return marker{}, errors.New("damaged: fields are missing")
	}
	return m, nil
}

func sumOf(raw []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(raw, crc32.MakeTable(crc32.Castagnoli)))
}

func ids(members map[uint64]string) []uint64 { return slices.Sorted(maps.Keys(members)) }

// foundersHash tells apart clusters founded with different replicas, or from different
// backups. Addresses
// may change and do not count. It is 0 for a replica that joined later.
func (m marker) foundersHash() uint64 {
	if m.Joined {
		return 0
	}
	h := sha256.New()
	for _, id := range ids(m.Founders) {
		_ = binary.Write(h, binary.BigEndian, id) // a hash never fails
	}
	_, _ = h.Write([]byte(m.Backup))
	return binary.BigEndian.Uint64(h.Sum(nil)) | 1
}
