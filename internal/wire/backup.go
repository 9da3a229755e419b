package wire

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
)

// A backup is a text that says what it is, a version byte, a block that says whose it is,
// and for each Raft group a block and a snapshot, then the SHA-256 of all before. So one
// that was cut short or damaged is known from a whole one, and the sum is its name.
const (
	backupMagic   = "quorumlock backup\n"
	backupVersion = 1
	maxGroups     = 1 << 16
	maxCluster    = 1 << 10
)

// A BackupHead says whose backup it is.
type BackupHead struct {
	Cluster string
	At      int64 // Unix milliseconds by the wall clock of who wrote it
	Groups  int
}

// A BackupGroup says where in its log a group was.
type BackupGroup struct {
	Index uint64 // of the last entry
	Term  uint64 // of that entry, or of the leader then
}

// A BackupWriter writes a backup: for each group what Group begins, a whole snapshot
// written to it. The first error of the underlying writer sticks, and is that of Write
// and Close from then on.
type BackupWriter struct {
	w   io.Writer
	sum hash.Hash
	err error
}

// NewBackupWriter begins a backup.
func NewBackupWriter(w io.Writer, h BackupHead) *BackupWriter {
	b := &BackupWriter{w: w, sum: sha256.New()}
	_, _ = b.Write(append([]byte(backupMagic), backupVersion))
	b.block(func(w writer) {
		w.array(3)
		w.string(h.Cluster)
		w.int(h.At)
		w.uint(uint64(h.Groups))
	})
	return b
}

func (b *BackupWriter) block(f func(writer)) {
	blocks := blockWriter{w: b}
	_, _ = blocks.Write(encode(nil, f)) // see Write
}

// Group begins the next group's part.
func (b *BackupWriter) Group(g BackupGroup) {
	b.block(func(w writer) {
		w.array(2)
		w.uint(g.Index)
		w.uint(g.Term)
	})
}

// Write writes a piece of the group's snapshot.
func (b *BackupWriter) Write(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	b.sum.Write(p)
	n, err := b.w.Write(p)
	b.err = err
	return n, err
}

// Close ends the backup. It does not close the underlying writer.
func (b *BackupWriter) Close() error {
	if b.err != nil {
		return b.err
	}
	_, err := b.w.Write(b.sum.Sum(nil))
	return err
}

// A BackupReader reads what a BackupWriter wrote. Its errors are those of a
// SnapshotReader.
type BackupReader struct {
	src io.Reader
	sum hash.Hash
}

// ReadBackup reads the beginning of a backup. What it says is to be believed only once
// Close has found the end.
func ReadBackup(src io.Reader) (*BackupReader, BackupHead, error) {
	b := &BackupReader{src: src, sum: sha256.New()}
	start := make([]byte, len(backupMagic)+1)
	if err := readFull(b, start); err != nil {
		return nil, BackupHead{}, err
	}
	version := start[len(backupMagic)]
	switch {
	case !bytes.HasPrefix(start, []byte(backupMagic)):
		return nil, BackupHead{}, malformed("no backup")
	case version > backupVersion:
		return nil, BackupHead{}, &VersionError{version}
	case version == 0:
		return nil, BackupHead{}, malformed("backup version 0")
	}
	var h BackupHead
	err := b.block(func(r *reader) {
		r.array(3, "backup head")
		h.Cluster, h.At = r.text(maxCluster, "cluster"), r.int()
		groups := r.uint()
		if r.err == nil && (groups == 0 || groups > maxGroups) {
			r.fail("%d groups", groups)
		}
		h.Groups = int(groups)
	})
	h.Cluster = string([]byte(h.Cluster)) // it is a view
	return b, h, err
}

// Read reads what goes into the sum.
func (b *BackupReader) Read(p []byte) (int, error) {
	n, err := b.src.Read(p)
	b.sum.Write(p[:n])
	return n, err
}

func (b *BackupReader) block(f func(*reader)) error {
	blocks := blockReader{r: b}
	p, err := blocks.next()
	if errors.Is(err, io.EOF) {
		return malformed("empty block")
	}
	if err != nil {
		return err
	}
	r := getReader(p)
	defer r.put()
	f(r)
	if r.err == nil && r.left() > 0 {
		r.fail("%d bytes after the block's content", r.left())
	}
	return r.err
}

// Group reads the beginning of the next group's part. Its snapshot is to be read to
// the end from the BackupReader.
func (b *BackupReader) Group() (g BackupGroup, err error) {
	err = b.block(func(r *reader) {
		r.array(2, "backup group")
		g.Index, g.Term = r.uint(), r.uint()
	})
	return g, err
}

// Close checks that the backup ends here, and is as it was written. It returns its sum,
// in hex, by which it is known.
func (b *BackupReader) Close() (string, error) {
	want := b.sum.Sum(nil)
	got := make([]byte, len(want)+1)
	switch n, err := io.ReadFull(b.src, got); {
	case err == nil:
		return "", malformed("backup goes on after its end")
	case !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return "", err
	case n < len(want):
		return "", malformed("truncated backup")
	case !bytes.Equal(got[:n], want):
		return "", malformed("backup with a wrong checksum")
	}
	return hex.EncodeToString(want), nil
}
