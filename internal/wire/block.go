package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A snapshot is a stream of blocks, each a length, a CRC-32C and that many bytes,
// ended by a block of length 0. So damage is found before it is believed, a
// truncated stream is known from a whole one, and reading never takes more memory
// at once than one block.
const (
	blockHeader = 8
	maxBlock    = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A blockWriter cuts what is written to it into blocks.
type blockWriter struct {
	w   io.Writer
	buf []byte
}

func (b *blockWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), maxBlock)
		if err := b.block(rest[:n]); err != nil {
			return 0, err
		}
		rest = rest[n:]
	}
	return len(p), nil
}

// Close writes the end block. It does not close the underlying writer.
func (b *blockWriter) Close() error { return b.block(nil) }

func (b *blockWriter) block(p []byte) error {
	b.buf = binary.BigEndian.AppendUint32(b.buf[:0], uint32(len(p)))
	b.buf = binary.BigEndian.AppendUint32(b.buf, crc32.Checksum(p, castagnoli))
	b.buf = append(b.buf, p...)
	_, err := b.w.Write(b.buf)
	return err
}

// A blockReader gives back what was written to a blockWriter, and io.EOF only
// after the end block.
type blockReader struct {
	r    io.Reader
	buf  []byte
	rest []byte
	err  error
}

func (b *blockReader) Read(p []byte) (int, error) {
	for len(b.rest) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		b.rest, b.err = b.next()
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *blockReader) next() ([]byte, error) {
	var head [blockHeader]byte
	if err := readFull(b.r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:4])
	if n > maxBlock {
		return nil, malformed("snapshot block of %d bytes", n)
	}
	if cap(b.buf) < int(n) {
		b.buf = make([]byte, n)
	}
	p := b.buf[:n]
	if err := readFull(b.r, p); err != nil {
		return nil, err
	}
	if crc32.Checksum(p, castagnoli) != binary.BigEndian.Uint32(head[4:]) {
		return nil, malformed("snapshot block with a wrong checksum")
	}
	if n == 0 {
		return nil, io.EOF
	}
	return p, nil
}

// readFull fills p. A stream that ends too early is malformed; one that cannot be
// read is not, and its own error is kept.
func readFull(r io.Reader, p []byte) error {
	switch _, err := io.ReadFull(r, p); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return malformed("truncated snapshot")
	case err != nil:
		return fmt.Errorf("wire: snapshot cannot be read: %w", err)
	}
	return nil
}
