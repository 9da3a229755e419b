package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/internal/peer"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/queue"
)

// Backup writes the state of the cluster to w while it goes on: everything that was
// complete anywhere before Backup was called, and of each Raft group all of one moment. See Options.Restore for what it is good
// for, and InspectBackup for what is in it. It can be called on any node.
//
// The state is first written to a file without a name in Options.Dir, as fast as the disk
// takes it, and w gets it from there: neither the log nor the memory waits for w, however slow
// it is. So the disk needs room for one more snapshot, until Backup returns. When ctx ends,
// Backup returns after the next write to w with ErrBackup and ctx's error; what w has then is no
// backup, and is known as none. Other errors are those of w, of that file and of Describe.
func (n *Node) Backup(ctx context.Context, w io.Writer) error {
	if err := n.consult(ctx); err != nil {
		return err
	}
	spool, err := os.CreateTemp(n.opts.Dir, peer.TempPrefix+"*")
	if err != nil {
		return fmt.Errorf("quorumlock: backup: %w", err)
	}
	defer func() {
		_ = spool.Close()
		_ = os.Remove(spool.Name()) // where a file that is open keeps its name
	}()
	_ = os.Remove(spool.Name())
	if err := n.capture(ctx, spool); err != nil {
		return err
	}
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("quorumlock: backup: %w", err)
	}
	_, err = io.Copy(untilDone{ctx, w}, spool)
	return err
}

// capture writes a backup to w. What changes while it does is kept in memory as it was, so w
// must not be slow.
func (n *Node) capture(ctx context.Context, w io.Writer) error {
	out := wire.NewBackupWriter(w, wire.BackupHead{Cluster: n.opts.Cluster, At: n.clk.Now().UnixMilli(), Groups: len(n.groups)})
	for _, g := range n.groups {
		_, term := g.engine.leader()
		index, save := g.machine.mark()
		out.Group(wire.BackupGroup{Index: index, Term: term})
		switch err := save(out, ctx.Done()); {
		case errors.Is(err, errStopped) && n.err() != nil:
			return n.err()
		case errors.Is(err, errStopped):
			return givenUp(ctx)
		case err != nil:
			return err
		}
	}
	return out.Close()
}

func givenUp(ctx context.Context) error {
	return &ctxError{fmt.Errorf("%w: it was given up", ErrBackup), ctx.Err()}
}

// untilDone writes to w until ctx ends.
type untilDone struct {
	ctx context.Context
	w   io.Writer
}

func (u untilDone) Write(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, givenUp(u.ctx)
	}
	return u.w.Write(p)
}

// A BackupInfo says what is in a backup.
type BackupInfo struct {
	Cluster string
	At      time.Time // by the wall clock of who wrote it
	Level   int       // the feature level that whoever restores it must speak
	Sum     string    // SHA-256 of the backup, in hex, by which it is known
	Groups  []BackupGroup
}

// A BackupGroup is what a backup has of one Raft group. Of two backups of a cluster, the
// one with the higher term is the newer, and of two with the same term that with the
// higher index.
type BackupGroup struct {
	Index    uint64 // of the last log entry in it
	Term     uint64 // of the leader then
	Token    fencing.Token
	Locks    int
	Sessions int
	Jobs     int // whose ticks are remembered
}

// InspectBackup reads a backup to its end and says what is in it. It returns an error
// matching ErrBackup for one that was cut short or damaged, or is none; ErrFormat for one
// of a newer version; or that of r.
func InspectBackup(r io.Reader) (BackupInfo, error) {
	return readBackup(r, func(wire.Head) {}, func(*queue.Line) {})
}

// readBackup shows each group's head, and then its lines. What it shows is to be
// believed only once it has returned no error.
func readBackup(r io.Reader, head func(wire.Head), line func(*queue.Line)) (BackupInfo, error) {
	src, h, err := wire.ReadBackup(r)
	if err != nil {
		return BackupInfo{}, badBackup(err)
	}
	info := BackupInfo{Cluster: h.Cluster, At: time.UnixMilli(h.At)}
	for range h.Groups {
		at, err := src.Group()
		if err != nil {
			return BackupInfo{}, badBackup(err)
		}
		lines, h, err := wire.ReadSnapshot(src)
		if err != nil {
			return BackupInfo{}, badBackup(err)
		}
		g := BackupGroup{Index: at.Index, Term: at.Term, Token: h.Token, Locks: h.Lines, Jobs: len(h.Jobs)}
		for p := range h.Roll.Processes() {
			g.Sessions += p.Len()
		}
		info.Level, info.Groups = max(info.Level, int(h.Level)), append(info.Groups, g)
		head(h)
		for {
			l, err := lines.Line()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return BackupInfo{}, badBackup(err)
			}
			line(l)
		}
	}
	if info.Sum, err = src.Close(); err != nil {
		return BackupInfo{}, badBackup(err)
	}
	return info, nil
}

// badBackup tells a backup that is at fault from one that could not be read.
func badBackup(err error) error {
	switch {
	case errors.Is(err, wire.ErrVersion):
		return fmt.Errorf("%w: backup: %w", ErrFormat, err)
	case errors.Is(err, wire.ErrMalformed):
		return fmt.Errorf("%w: %w", ErrBackup, err)
	}
	return fmt.Errorf("quorumlock: backup cannot be read: %w", err)
}
