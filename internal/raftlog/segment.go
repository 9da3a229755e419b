package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"regexp"
	"strconv"

	"github.com/lni/vfs"
)

// A segment begins with a header:
//
//	magic   8 bytes
//	salt    uint64   of the log: see seal
//	number  uint64   of the segment
//	first   uint64   sequence number of its first frame, which is a checkpoint
//	oldest  uint64   number of the oldest segment that is needed beside this one
//	sum     uint32   CRC-32C of the above
//	free    uint32
const (
	segmentHeader = 48
	segmentMagic  = "qlraftl\x01"
)

// The names in the directory of a log.
const (
	newName   = "new"   // a segment whose beginning is not yet on the disk
	spareName = "spare" // before the number of a segment that is used no more
)

var (
	segmentName = regexp.MustCompile(`^(\d{10})\.log$`)
	sparePrefix = regexp.MustCompile(`^` + spareName + `\d{10}$`)
)

func nameOf(number uint32) string { return fmt.Sprintf("%010d.log", number) }

// numberOf returns the number of the segment with this name, or 0.
func numberOf(name string) uint32 {
	m := segmentName.FindStringSubmatch(name)
	if m == nil {
		return 0
	}
	number, _ := strconv.ParseUint(m[1], 10, 32) // 0 is no number of a segment
	return uint32(number)
}

// maxEnd is how far a segment can grow: a location holds so much.
const maxEnd = math.MaxUint32

var errDamaged = errors.New("damaged")

// A header is that of a segment.
type header struct {
	salt   seal
	number uint32
	first  uint64
	oldest uint32
}

func (h header) append(b []byte) []byte {
	at := len(b)
	b = append(b, segmentMagic...)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.salt))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.number))
	b = binary.LittleEndian.AppendUint64(b, h.first)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.oldest))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
	return append(b, 0, 0, 0, 0)
}

func decodeHeader(b []byte) (header, error) {
	if len(b) < segmentHeader || binary.LittleEndian.Uint32(b[40:]) != crc32.Checksum(b[:40], castagnoli) {
		return header{}, fmt.Errorf("%w header", errDamaged)
	}
	if string(b[:8]) != segmentMagic {
		return header{}, fmt.Errorf("%w: its header is %q", errNewer, b[:8])
	}
	h := header{
		salt:   seal(binary.LittleEndian.Uint64(b[8:])),
		number: uint32(binary.LittleEndian.Uint64(b[16:])),
		first:  binary.LittleEndian.Uint64(b[24:]),
		oldest: uint32(binary.LittleEndian.Uint64(b[32:])),
	}
	if h.first == 0 || h.oldest == 0 || h.oldest > h.number {
		return header{}, fmt.Errorf("%w header", errDamaged)
	}
	return h, nil
}

// A segment is one file of the log.
type segment struct {
	header
	file  vfs.File
	start int64 // where the frame behind the checkpoint goes
	end   int64 // where the next frame goes
	size  int64 // of the file: what lies behind end was written before

	entries int   // how many of the log are here
	bytes   int64 // and what they take
}

// maxGrowth is by how much a file grows at a time. To write where something was written
// before, be it zeroes, spares the file system most of its own work in an fdatasync.
const maxGrowth = 512 << 10

// write puts a frame at the end and makes it durable.
func (g *segment) write(frame []byte, growth int64) error {
	end := g.end + int64(len(frame))
	if end > g.size {
		size := (end + growth - 1) / growth * growth
		frame = append(frame, make([]byte, size-end)...)
	}
	if _, err := g.file.WriteAt(frame, g.end); err != nil {
		return fmt.Errorf("write %s: %w", nameOf(g.number), err)
	}
	if err := syncData(g.file); err != nil {
		return fmt.Errorf("sync %s: %w", nameOf(g.number), err)
	}
	g.size = max(g.size, g.end+int64(len(frame)))
	g.end = end
	return nil
}

// readAt fills b.
func readAt(f vfs.File, b []byte, at int64) error {
	for len(b) > 0 {
		n, err := f.ReadAt(b, at)
		b, at = b[n:], at+int64(n)
		if len(b) > 0 && err != nil {
			return err
		}
		if n == 0 && len(b) > 0 {
			return io.ErrUnexpectedEOF
		}
	}
	return nil
}
