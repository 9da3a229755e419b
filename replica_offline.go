package quorumlock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"
	"github.com/lni/vfs"

	"github.com/quorumlock/quorumlock/internal/raftlog"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// BackupDirectory writes a backup of what the directory of a stopped replica holds, for
// when no majority of the cluster is left. It changes nothing there but for its lock file.
//
// It has all that the replica has on its disk, which may be less than what was complete
// in the cluster: of what only the lost replicas had, nothing is known. It has also what
// the replica was sent and never learned to be complete, so that rather a tick counts as
// claimed that nobody runs than the other way round. Of two replicas, the backup with the
// higher term, then index, is the newer one: see BackupGroup.
//
// It returns an error matching ErrDirectory if dir is no replica's, is in use, or is
// damaged; ErrFormat if it was written by a newer version; or that of w.
func BackupDirectory(dir string, w io.Writer) error {
	d, err := claimStopped(dir)
	if err != nil {
		return err
	}
	defer d.release()
	log, err := d.stoppedLog()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	err = d.backup(log, w)
	return errors.Join(err, log.Close())
}

// backup writes what the directory has of each group.
func (d *directory) backup(log *raftlog.Store, w io.Writer) error {
	shards, err := log.ListNodeInfo()
	if err == nil && len(shards) == 0 {
		err = errors.New("the log holds nothing")
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	out := wire.NewBackupWriter(w, wire.BackupHead{Cluster: d.marker.Cluster, At: time.Now().UnixMilli(), Groups: len(shards)})
	for _, s := range shards {
		m := newMachine()
		m.perform, m.restored = func([]effect) {}, func() {}
		term, err := d.replay(log, s.ShardID, m)
		if err != nil {
			return fmt.Errorf("%w: group %d: %w", ErrDirectory, s.ShardID-shardOf(0), err)
		}
		if m.fsm.halted != nil {
			return m.fsm.halted
		}
		index, save := m.mark()
		out.Group(wire.BackupGroup{Index: index, Term: term})
		if err := save(out, nil); err != nil {
			return err
		}
	}
	return out.Close()
}

// claimStopped takes the directory of a replica that is not running.
func claimStopped(dir string) (*directory, error) {
	path, err := resolve(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	d := &directory{path: path}
	raw, err := os.ReadFile(d.file(markerName))
	if err != nil {
		return nil, fmt.Errorf("%w: %s is no replica's: %w", ErrDirectory, path, err)
	}
	if d.marker, err = decodeMarker(raw); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrDirectory, d.file(markerName), err)
	}
	if d.marker.State != stateBootstrapped {
		return nil, fmt.Errorf("%w: replica %d in %s has never taken part", ErrDirectory, d.marker.Replica, path)
	}
	claimed.Lock()
	defer claimed.Unlock()
	if id, used := claimed.by[path]; used {
		return nil, fmt.Errorf("%w: %s is in use by this process, as replica %d", ErrDirectory, path, id)
	}
	if d.lock, err = lockDirectory(path); err != nil {
		return nil, err
	}
	claimed.by[path] = d.marker.Replica
	return d, nil
}

// replay makes m's state from the newest snapshot of a shard and all entries behind it,
// and returns the term of the last one.
func (d *directory) replay(log *raftlog.Store, shard uint64, m *machine) (term uint64, err error) {
	replica := d.marker.Replica
	snapshots, err := findDirectory(d.file(engineName), fmt.Sprintf("snapshot-%d-%d", shard, replica))
	if err != nil {
		return 0, err
	}
	var newest []string
	if snapshots != "" {
		if err := checkSnapshots(snapshots); err != nil {
			return 0, err
		}
		newest, err = newestSnapshots(snapshots)
	}
	for _, file := range newest { // of one group it is one
		if err == nil {
			m.applied, err = loadSnapshot(file, m)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("snapshot: %w", err)
	}
	ss, err := log.GetSnapshot(shard, replica)
	if err != nil {
		return 0, err
	}
	term, err = replayLog(log, shard, replica, m)
	return max(term, ss.Term), err
}

// loadSnapshot restores what the engine keeps in a snapshot file whose checksums are
// right, and returns where in the log it stands.
func loadSnapshot(name string, m *machine) (index uint64, err error) {
	if index, err = snapshotIndex(name); err != nil {
		return 0, err
	}
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	header, err := readSnapshotHeader(f)
	if err != nil {
		return 0, err
	}
	if header.Version != snapshotVersion || header.CompressionType != raftpb.NoCompression {
		return 0, fmt.Errorf("%w: unknown layout %d", errSnapshot, header.Version)
	}
	r := &snapshotBlocks{src: f}
	var sessions [16]byte // the engine's own sessions, which are not used: their room, and how many
	if _, err := io.ReadFull(r, sessions[:]); err != nil {
		return 0, err
	}
	if n := binary.LittleEndian.Uint64(sessions[8:]); n != 0 {
		return 0, fmt.Errorf("%w: it has %d sessions of the engine", errSnapshot, n)
	}
	return index, m.restore(r, nil)
}

// snapshotIndex returns where in the log a snapshot stands: its file is called so.
func snapshotIndex(name string) (uint64, error) {
	base := strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
	return strconv.ParseUint(strings.TrimPrefix(base, "snapshot-"), 16, 64)
}

// snapshotBlocks reads what is in the blocks of a snapshot file, whose sums were checked.
type snapshotBlocks struct {
	src  io.Reader
	rest []byte
	buf  []byte
}

func (b *snapshotBlocks) Read(p []byte) (int, error) {
	for len(b.rest) == 0 {
		if b.buf == nil {
			b.buf = make([]byte, snapshotBlock+4)
		}
		n, err := io.ReadFull(b.src, b.buf)
		if err != nil && (n <= 4 || !errors.Is(err, io.ErrUnexpectedEOF)) {
			return 0, err
		}
		b.rest = b.buf[:n-4]
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// stoppedLog opens the log, wherever the engine has put it.
func (d *directory) stoppedLog() (*raftlog.Store, error) {
	engine := d.file(engineName)
	found, err := findDirectory(engine, raftlog.Directory)
	if err == nil && found == "" {
		err = fmt.Errorf("%s holds no log", engine)
	}
	if err != nil {
		return nil, err
	}
	return raftlog.OpenToRead(vfs.Default, found)
}

// findDirectory returns the directory of this name that is somewhere below root, or "".
func findDirectory(root, name string) (found string, err error) {
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && e.Name() == name {
			found = path
			return fs.SkipAll
		}
		return err
	})
	return found, err
}

// replayLog applies the entries behind m's state, and returns the term of the last one.
func replayLog(log *raftlog.Store, shard, replica uint64, m *machine) (term uint64, err error) {
	state, err := log.ReadRaftState(shard, replica, m.applied)
	switch {
	case errors.Is(err, raftio.ErrNoSavedLog):
		return 0, nil
	case err != nil:
		return 0, err
	case state.EntryCount > 0 && state.FirstIndex > m.applied+1:
		return 0, fmt.Errorf("entry %d is missing", m.applied+1)
	}
	for {
		entries, _, err := log.IterateEntries(nil, 0, shard, replica, m.applied+1, math.MaxUint64, maxEntry)
		if err != nil || len(entries) == 0 {
			return term, err
		}
		for _, e := range entries {
			if e.Index != m.applied+1 {
				return 0, fmt.Errorf("entry %d is missing", m.applied+1)
			}
			term = e.Term
			cmd, err := payloadOf(e)
			if err != nil {
				return 0, err
			}
			m.apply([]logEntry{{e.Index, cmd}})
		}
	}
}

// payloadOf returns what was proposed: nothing for what the engine has to say itself.
func payloadOf(e raftpb.Entry) ([]byte, error) {
	switch {
	case e.Type == raftpb.ConfigChangeEntry || e.Type == raftpb.MetadataEntry || len(e.Cmd) == 0:
		return nil, nil
	case e.Type == raftpb.EncodedEntry && e.Cmd[0] != 0: // its version, compression and session, of which there are none
		return nil, fmt.Errorf("entry %d is encoded in an unknown way, %#x", e.Index, e.Cmd[0])
	case e.Type == raftpb.EncodedEntry:
		_, cmd := untag(e.Cmd[1:])
		return cmd, nil
	}
	_, cmd := untag(e.Cmd)
	return cmd, nil
}
