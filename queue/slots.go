package queue

import "math/bits"

// slots tells which permits of a counted lock are taken: a bit for each.
type slots struct {
	words []uint64
	taken uint32
}

// take returns the n lowest free slots and marks them as taken.
func (s *slots) take(n uint32) []uint32 {
	got := make([]uint32, 0, n)
	for i := 0; uint32(len(got)) < n; i++ {
		if i == len(s.words) {
			s.words = append(s.words, 0)
		}
		for uint32(len(got)) < n && s.words[i] != ^uint64(0) {
			bit := bits.TrailingZeros64(^s.words[i])
			s.words[i] |= 1 << bit
			got = append(got, uint32(i*64+bit))
		}
	}
	s.taken += n
	return got
}

// mark marks these as taken and reports whether they were free.
func (s *slots) mark(which []uint32) bool {
	for _, k := range which {
		for int(k/64) >= len(s.words) {
			s.words = append(s.words, 0)
		}
		if s.words[k/64]&(1<<(k%64)) != 0 {
			return false
		}
		s.words[k/64] |= 1 << (k % 64)
		s.taken++
	}
	return true
}

func (s *slots) free(which []uint32) {
	for _, k := range which {
		s.words[k/64] &^= 1 << (k % 64)
	}
	s.taken -= uint32(len(which))
}
