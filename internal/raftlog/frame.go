package raftlog

import (
	"encoding/binary"
	"hash/crc32"
)

// A frame is a header and a payload, filled up to a multiple of frameAlign. The header:
//
//	length   uint32  of the payload
//	sum      uint32  CRC-32C of the salt, length, sequence and payload
//	sequence uint64  one more than that of the frame before
const (
	frameHeader = 16
	frameAlign  = 8
	maxPayload  = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A seal is what the frames of one log are known by: it belongs to the log and not to the
// file, and nobody who writes into records knows it.
type seal uint64

func (s seal) sum(length uint32, sequence uint64, payload []byte) uint32 {
	var b [20]byte
	binary.LittleEndian.PutUint64(b[:], uint64(s))
	binary.LittleEndian.PutUint32(b[8:], length)
	binary.LittleEndian.PutUint64(b[12:], sequence)
	return crc32.Update(crc32.Checksum(b[:], castagnoli), castagnoli, payload)
}

// close makes b, a payload behind frameHeader free bytes, a frame.
func (s seal) close(b []byte, sequence uint64) []byte {
	payload := b[frameHeader:]
	length := uint32(len(payload))
	binary.LittleEndian.PutUint32(b, length)
	binary.LittleEndian.PutUint32(b[4:], s.sum(length, sequence, payload))
	binary.LittleEndian.PutUint64(b[8:], sequence)
	return append(b, make([]byte, padding(len(b)))...)
}

// padding is what n lacks to be a multiple of frameAlign.
func padding(n int) int { return -n & (frameAlign - 1) }

// open returns the payload of the frame at the start of b and the size of the frame, if
// it has this sequence number and is whole.
func (s seal) open(b []byte, sequence uint64) (payload []byte, size int, ok bool) {
	if len(b) < frameHeader || binary.LittleEndian.Uint64(b[8:]) != sequence {
		return nil, 0, false
	}
	length := binary.LittleEndian.Uint32(b)
	if length > maxPayload {
		return nil, 0, false
	}
	end := frameHeader + int(length)
	size = end + padding(end)
	if size > len(b) {
		return nil, 0, false
	}
	payload = b[frameHeader:end]
	return payload, size, s.sum(length, sequence, payload) == binary.LittleEndian.Uint32(b[4:])
}

// later looks behind the start of b for a frame with a sequence number above this one.
func (s seal) later(b []byte, sequence uint64) (at int, found bool) {
	for at = frameAlign; at+frameHeader <= len(b); at += frameAlign {
		ahead := binary.LittleEndian.Uint64(b[at+8:]) - sequence
		if ahead == 0 || ahead > uint64(at/frameHeader) {
			continue // there is no room for so many frames in between
		}
		if _, _, ok := s.open(b[at:], sequence+ahead); ok {
			return at, true
		}
	}
	return 0, false
}
