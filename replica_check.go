package quorumlock

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/lni/dragonboat/v4/raftpb"
)

// How the engine lays a snapshot file out: a header of fixed size, blocks that
// each end with their CRC-32, and a tail with the length of all blocks.
const (
	snapshotHeader  = 1024
	snapshotBlock   = 2 << 20
	snapshotTail    = 16
	snapshotVersion = 2

	// snapshotPending is in a snapshot's directory until the log knows of it.
	snapshotPending = "dragonboat.snapshot.message"
)

var snapshotName = regexp.MustCompile(`^snapshot-[0-9A-F]{16}$`)

var errSnapshot = errors.New("the file is damaged")

// checkSnapshots reads the snapshots that the engine is about to load. The engine
// would stop the process over a damaged one, with no chance to say which.
func checkSnapshots(engine string) error {
	newest, err := newestSnapshots(engine)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	for _, file := range newest {
		if err := checkSnapshot(file); err != nil {
			return fmt.Errorf("%w: snapshot %s: %w. Restore that file, or give this replica up: "+
				"its log no longer reaches back to the start", ErrDirectory, file, err)
		}
	}
	return nil
}

// newestSnapshots returns the files that the engine would load: of each group its
// newest, if it has any.
func newestSnapshots(engine string) (files []string, err error) {
	newest := make(map[string]string) // by the directory of the group
	err = filepath.WalkDir(engine, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.IsDir() || !snapshotName.MatchString(d.Name()) {
			return err
		}
		if _, err := os.Stat(filepath.Join(path, snapshotPending)); err == nil {
			return fs.SkipDir // cut short; the engine removes it
		}
		if group := filepath.Dir(path); d.Name() > newest[group] {
			newest[group] = d.Name()
		}
		return fs.SkipDir
	})
	for _, group := range slices.Sorted(maps.Keys(newest)) {
		files = append(files, filepath.Join(group, newest[group], newest[group]+".gbsnap"))
	}
	return files, err
}

func checkSnapshot(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	payload := info.Size() - snapshotHeader - snapshotTail
	if payload < 0 {
		return fmt.Errorf("%w: it has only %d bytes", errSnapshot, info.Size())
	}
	header, err := readSnapshotHeader(f)
	if err != nil {
		return err
	}
	if header.Version != snapshotVersion || header.ChecksumType != raftpb.CRC32IEEE {
		return nil // laid out otherwise: the engine's business
	}
	sum, err := sumBlocks(io.LimitReader(f, payload))
	if err != nil {
		return err
	}
	tail := make([]byte, snapshotTail)
	if _, err := io.ReadFull(f, tail); err != nil {
		return err
	}
	if binary.LittleEndian.Uint64(tail) != uint64(payload) || !bytes.Equal(sum, header.PayloadChecksum) {
		return fmt.Errorf("%w: it is not as long as it was", errSnapshot)
	}
	return nil
}

func readSnapshotHeader(r io.Reader) (raftpb.SnapshotHeader, error) {
	var header raftpb.SnapshotHeader
	raw := make([]byte, snapshotHeader)
	if _, err := io.ReadFull(r, raw); err != nil {
		return header, err
	}
	size := binary.LittleEndian.Uint64(raw)
	if size > snapshotHeader-8 {
		return header, fmt.Errorf("%w: its header is", errSnapshot)
	}
	if err := decode(func() error { return header.Unmarshal(raw[8 : 8+size]) }); err != nil {
		return header, fmt.Errorf("%w: its header: %w", errSnapshot, err)
	}
	plain := header
	plain.HeaderChecksum = nil
	var b []byte
	if err := decode(func() (err error) { b, err = plain.Marshal(); return err }); err != nil {
		return header, fmt.Errorf("%w: its header: %w", errSnapshot, err)
	}
	if !bytes.Equal(crc(b), header.HeaderChecksum) {
		return header, fmt.Errorf("%w: the checksum of its header is wrong", errSnapshot)
	}
	return header, nil
}

// sumBlocks checks each block and returns the sum of their sums.
func sumBlocks(r io.Reader) ([]byte, error) {
	block := make([]byte, snapshotBlock+4)
	var sums []byte
	for at := 0; ; at++ {
		n, err := io.ReadFull(r, block)
		if errors.Is(err, io.EOF) {
			return crc(sums), nil
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, err
		}
		if n <= 4 || !bytes.Equal(crc(block[:n-4]), block[n-4:n]) {
			return nil, fmt.Errorf("%w: the checksum of block %d is wrong", errSnapshot, at)
		}
		sums = append(sums, block[n-4:n]...)
	}
}

func crc(b []byte) []byte { return binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(b)) }
