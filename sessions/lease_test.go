package sessions

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// someTTLs returns every whole number of milliseconds up to ten seconds, which is
// the unit that TTLs travel in, and some long ones.
func someTTLs() []time.Duration {
	var ttls []time.Duration
	for ms := time.Duration(1); ms <= 10_000; ms++ {
		ttls = append(ttls, ms*time.Millisecond)
	}
	for h := time.Duration(1); h <= 24; h++ {
		ttls = append(ttls, h*time.Hour, h*time.Hour-time.Millisecond)
	}
	return ttls
}

func TestHolderStopsBeforeLeader(t *testing.T) {
	for _, ttl := range someTTLs() {
		trust, lease := Trust(ttl), Lease(ttl)
		if 0 >= trust || trust >= lease || lease >= ttl {
			t.Fatalf("ttl %v: trust %v, lease %v", ttl, trust, lease)
		}
		// The holder's clock shows 7/8 of what the leader's does: when the holder
		// stops, the leader has counted 8/7 of the trust, and not yet more than a
		// lease, which it began to count later.
		if 8*trust > 7*lease {
			t.Fatalf("ttl %v: trust %v by a clock slow by 1/8 ends after lease %v", ttl, trust, lease)
		}
	}
}

func TestRenewalMayBeLost(t *testing.T) {
	for _, ttl := range someTTLs() {
		every := RenewEvery(ttl)
		require.Positive(t, every)
		// One is lost, the next is sent a period later, and has time to be answered.
		if 2*every >= Trust(ttl) {
			t.Fatalf("ttl %v: %v for one renewal to be lost, trust %v", ttl, 2*every, Trust(ttl))
		}
	}
}

// A simulated pair of clocks: the holder stops by its own slow clock, the leader
// ends the session by its own. Between a renewal's sending and its being applied
// lies any delay.
func TestTrustEndsFirstWhateverTheDelay(t *testing.T) {
	const ttl = 10 * time.Second
	for _, slow := range []float64{1, 0.95, 0.9, 0.875} {
		for _, delay := range []time.Duration{time.Nanosecond, time.Millisecond, time.Second, time.Minute} {
			sent := 0.0 // in true seconds; the leader's clock is true
			applied := sent + delay.Seconds()
			stops := sent + Trust(ttl).Seconds()/slow
			ends := applied + Lease(ttl).Seconds()
			require.Less(t, stops, ends, "rate %v, delay %v", slow, delay)
		}
	}
}
