package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A Kind tells what a frame holds. The kinds from KindUser on are the caller's.
type Kind uint8

const (
	kindHello Kind = iota + 1
	kindWelcome
	kindRefuse

	// KindUser is the first kind that a caller may send.
	KindUser Kind = 16
)

const (
	// MaxPayload bounds one message. The engine sends at most 64 MiB of entries
	// at once and then one entry more.
	MaxPayload = 160 << 20

	// maxGreeting bounds the frames of the handshake, which strangers may send.
	maxGreeting = 16 << 10

	// growth is how much memory is taken ahead of what has arrived, so that a
	// header that claims a huge payload costs its sender the bytes first.
	growth = 256 << 10

	// keep is the largest buffer a connection holds on to between messages.
	keep = 1 << 20

	// copyLen is up to what length copying a payload is cheaper than a second
	// system call, and pieceLen how much is written under one deadline.
	copyLen  = 16 << 10
	pieceLen = 1 << 20

	// header: magic (2), version of the framing (1), kind (1), length of the
	// payload (4), CRC-32C over all of that and the payload (4).
	headerLen    = 12
	magic0       = 'q'
	magic1       = 'L'
	frameVersion = 1
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)

	errForeign  = errors.New("peer: not our protocol")
	errTooLong  = errors.New("peer: frame is too long")
	errChecksum = errors.New("peer: frame is damaged")
)

// writeFrame sends one frame, a short one in a single call of Write. scratch is
// where that is put together.
func writeFrame(w io.Writer, kind Kind, payload []byte, scratch *[]byte) error {
	if len(payload) > MaxPayload {
		return fmt.Errorf("%w: %d bytes", errTooLong, len(payload))
	}
	var header [headerLen]byte
	header[0], header[1], header[2], header[3] = magic0, magic1, frameVersion, byte(kind)
	binary.BigEndian.PutUint32(header[4:], uint32(len(payload)))
	binary.BigEndian.PutUint32(header[8:], checksum(&header, payload))
	if len(payload) > copyLen {
		if _, err := w.Write(header[:]); err != nil {
			return err
		}
		_, err := w.Write(payload)
		return err
	}
	*scratch = append(append((*scratch)[:0], header[:]...), payload...)
	_, err := w.Write(*scratch)
	return err
}

func checksum(header *[headerLen]byte, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(header[:8], castagnoli), castagnoli, payload)
}

// readFrame reads one frame of at most limit bytes into buf, which grows as the
// bytes arrive. The payload is valid until the next call with the same buf.
func readFrame(r io.Reader, limit int, buf *[]byte) (Kind, []byte, error) {
	var header [headerLen]byte
	if n, err := io.ReadFull(r, header[:]); isTLS(header[:n]) {
		return 0, nil, errOnlyTLS
	} else if err != nil {
		return 0, nil, err
	}
	if header[0] != magic0 || header[1] != magic1 || header[2] != frameVersion {
		return 0, nil, errForeign
	}
	size := binary.BigEndian.Uint32(header[4:])
	if uint64(size) > uint64(limit) {
		return 0, nil, fmt.Errorf("%w: %d bytes", errTooLong, size)
	}
	payload, err := readPayload(r, int(size), buf)
	if err != nil {
		return 0, nil, err
	}
	if binary.BigEndian.Uint32(header[8:]) != checksum(&header, payload) {
		return 0, nil, errChecksum
	}
	return Kind(header[3]), payload, nil
}

// isTLS recognizes the beginning of a handshake or an alert, which is shorter than
// a header of ours.
func isTLS(b []byte) bool {
	return len(b) > 1 && (b[0] == 21 || b[0] == 22) && b[1] == 3
}

func readPayload(r io.Reader, size int, buf *[]byte) ([]byte, error) {
	if cap(*buf) > keep && size <= keep {
		*buf = nil
	}
	b := (*buf)[:0]
	for len(b) < size {
		step := min(size-len(b), max(growth, len(b)))
		if room := cap(b) - len(b); room >= step || room >= growth {
			step = min(room, size-len(b))
		} else {
			grown := make([]byte, len(b), len(b)+step)
			copy(grown, b)
			b = grown
		}
		n, err := io.ReadFull(r, b[len(b):len(b)+step])
		b = b[:len(b)+n]
		if err != nil {
			return nil, err
		}
	}
	*buf = b
	return b, nil
}
