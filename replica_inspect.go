package quorumlock

import (
	"errors"
	"fmt"
	"maps"

	"github.com/lni/dragonboat/v4/raftio"

	"github.com/quorumlock/quorumlock/internal/peer"
	"github.com/quorumlock/quorumlock/internal/raftlog"
)

// A DirectoryInfo says whose a directory is, and what lies there.
type DirectoryInfo struct {
	Path     string
	Cluster  string
	Replica  uint64
	Hostname string // under which alone it can be used
	Epoch    uint64 // how often the replica was started
	Joined   bool   // it was added later, and founded nothing
	Founders map[uint64]string
	Peers    map[uint64]string // who was heard, and where each said that it is dialled
	Groups   []GroupInfo
}

// A GroupInfo says how far one Raft group goes in a directory.
type GroupInfo struct {
	First, Last  uint64 // entries of the log; 0 if there are none
	Committed    uint64 // as far as was noted: what is behind may be, too
	Term         uint64
	Vote         uint64 // whom the replica voted for in that term; 0 for nobody
	Snapshot     uint64 // the index of the newest; 0 for none
	SnapshotFile string
}

// InspectDirectory looks into the directory of a stopped replica. It verifies the log and
// the newest snapshot as a start would, and changes nothing but the lock file.
//
// It returns an error matching ErrDirectory if dir is no replica's, is in use, or is
// damaged.
func InspectDirectory(dir string) (DirectoryInfo, error) {
	d, err := claimStopped(dir)
	if err != nil {
		return DirectoryInfo{}, err
	}
	defer d.release()
	m := d.marker
	info := DirectoryInfo{
		Path: d.path, Cluster: m.Cluster, Replica: m.Replica, Hostname: m.Hostname, Epoch: m.Epoch, Joined: m.Joined,
		Founders: maps.Clone(m.Founders),
	}
	book, err := peer.OpenBook(d.file(bookName))
	if err != nil {
		return DirectoryInfo{}, fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	info.Peers = book.Addresses()
	log, err := d.stoppedLog()
	if err != nil {
		return DirectoryInfo{}, fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	info.Groups, err = d.groups(log)
	if err = errors.Join(err, log.Close()); err != nil {
		return DirectoryInfo{}, fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	return info, nil
}

// groups returns how far each group goes, in the order of the groups.
func (d *directory) groups(log *raftlog.Store) (all []GroupInfo, err error) {
	shards, err := log.ListNodeInfo()
	if err != nil {
		return nil, err
	}
	for _, s := range shards {
		var g GroupInfo
		switch state, err := log.ReadRaftState(s.ShardID, s.ReplicaID, 0); {
		case errors.Is(err, raftio.ErrNoSavedLog):
		case err != nil:
			return nil, err
		default:
			g.Term, g.Vote, g.Committed = state.State.Term, state.State.Vote, state.State.Commit
			if state.EntryCount > 0 {
				g.First, g.Last = state.FirstIndex, state.FirstIndex+state.EntryCount-1
			}
		}
		if g.Snapshot, g.SnapshotFile, err = d.newest(s); err != nil {
			return nil, err
		}
		all = append(all, g)
	}
	return all, nil
}

// newest verifies the newest snapshot of a group, if there is one.
func (d *directory) newest(s raftio.NodeInfo) (index uint64, file string, err error) {
	found, err := findDirectory(d.file(engineName), fmt.Sprintf("snapshot-%d-%d", s.ShardID, s.ReplicaID))
	if err != nil || found == "" {
		return 0, "", err
	}
	if err := checkSnapshots(found); err != nil {
		return 0, "", err
	}
	files, err := newestSnapshots(found)
	if err != nil || len(files) == 0 {
		return 0, "", err
	}
	file = files[0] // of one group it is one
	index, err = snapshotIndex(file)
	return index, file, err
}
