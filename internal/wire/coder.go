package wire

import (
	"bytes"
	"io"
	"math"
	"sync"
	"unsafe"

	"github.com/vmihailenco/msgpack/v5"
)

// A writer writes to memory, so the encoder's errors carry no news.
type writer struct{ enc *msgpack.Encoder }

var encoders = sync.Pool{New: func() any {
	enc := msgpack.NewEncoder(nil)
	enc.UseCompactInts(true)
	return enc
}}

// encode appends to b what f writes.
func encode(b []byte, f func(writer)) []byte {
	buf := bytes.NewBuffer(b)
	enc := encoders.Get().(*msgpack.Encoder)
	defer encoders.Put(enc)
	enc.ResetWriter(buf)
	f(writer{enc})
	return buf.Bytes()
}

func (w writer) array(n int)     { _ = w.enc.EncodeArrayLen(n) }
func (w writer) uint(v uint64)   { _ = w.enc.EncodeUint(v) }
func (w writer) int(v int64)     { _ = w.enc.EncodeInt(v) }
func (w writer) string(s string) { _ = w.enc.EncodeString(s) }
func (w writer) bool(v bool)     { _ = w.enc.EncodeBool(v) }

// A reader reads msgpack. The first error sticks, and every read after it gives
// zeroes.
type reader struct {
	src *bytes.Reader // nil when it reads from a stream, whose length is unknown
	buf []byte        // what src reads
	dec *msgpack.Decoder
	err error
}

var readers = sync.Pool{New: func() any {
	src := bytes.NewReader(nil)
	return &reader{src: src, dec: msgpack.NewDecoder(src)}
}}

func getReader(b []byte) *reader {
	r := readers.Get().(*reader)
	r.src.Reset(b)
	r.buf = b
	r.dec.ResetReader(r.src)
	r.err = nil
	return r
}

func (r *reader) put() {
	r.src.Reset(nil)
	r.buf = nil
	readers.Put(r)
}

func (r *reader) left() int {
	if r.src == nil {
		return math.MaxInt
	}
	return r.src.Len()
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = malformed(format, args...)
	}
}

func (r *reader) array(want int, what string) {
	if n := r.arrayLen(want, what); r.err == nil && n != want {
		r.fail("%s with %d fields", what, n)
	}
}

// arrayLen reads an array's length. Each element takes a byte at least, so a length
// beyond what is left is refused before anything is made for it.
func (r *reader) arrayLen(limit int, what string) int {
	if r.err != nil {
		return 0
	}
	n, err := r.dec.DecodeArrayLen()
	switch {
	case err != nil:
		r.fail("%s: %v", what, err)
	case n < 0 || n > limit || n > r.left():
		r.fail("%s: length %d", what, n)
	default:
		return n
	}
	return 0
}

func (r *reader) uint() uint64 {
	if r.err != nil {
		return 0
	}
	v, err := r.dec.DecodeUint64()
	if err != nil {
		r.fail("number: %v", err)
		return 0
	}
	return v
}

func (r *reader) uint8() uint8 {
	v := r.uint()
	if v > math.MaxUint8 {
		r.fail("number %d", v)
		return 0
	}
	return uint8(v)
}

func (r *reader) uint32() uint32 {
	v := r.uint()
	if v > math.MaxUint32 {
		r.fail("number %d", v)
		return 0
	}
	return uint32(v)
}

func (r *reader) int() int64 {
	if r.err != nil {
		return 0
	}
	v, err := r.dec.DecodeInt64()
	if err != nil {
		r.fail("number: %v", err)
		return 0
	}
	return v
}

func (r *reader) bool() bool {
	if r.err != nil {
		return false
	}
	v, err := r.dec.DecodeBool()
	if err != nil {
		r.fail("bool: %v", err)
		return false
	}
	return v
}

func (r *reader) text(limit int, what string) string {
	if r.err != nil {
		return ""
	}
	n, err := r.dec.DecodeBytesLen()
	switch {
	case err != nil:
		r.fail("%s: %v", what, err)
		return ""
	case n < 0 || n > limit || n > r.left():
		r.fail("%s: length %d", what, n)
		return ""
	}
	s := r.view(n)
	if !ValidText(s, limit) {
		r.fail("%s is not UTF-8", what)
		return ""
	}
	return s
}

// view reads n bytes: without copying them if they are in memory.
func (r *reader) view(n int) string {
	if r.src != nil {
		at := len(r.buf) - r.src.Len()
		_, _ = r.src.Seek(int64(n), io.SeekCurrent) // there are so many
		return unsafe.String(unsafe.SliceData(r.buf[at:]), n)
	}
	b := make([]byte, n)
	if err := r.dec.ReadFull(b); err != nil {
		r.fail("text: %v", err)
		return ""
	}
	return unsafe.String(unsafe.SliceData(b), n)
}
