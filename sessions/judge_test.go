package sessions

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// dice returns a source that a failed test can be repeated with.
func dice(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("QUORUMLOCK_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("QUORUMLOCK_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// A court is a judge, its roll and a clock that only the test moves.
type court struct {
	t     *testing.T
	judge Judge
	roll  Roll
	now   time.Time
}

const stall = time.Second

func newCourt(t *testing.T) *court {
	return &court{t: t, judge: Judge{Stall: stall}, now: time.Unix(1_000_000, 0)}
}

func (c *court) open(replica, seq uint64, ttl time.Duration) {
	if c.roll.Process(replica, 1) == nil {
		c.roll.Boot(replica, 1)
	}
	require.True(c.t, c.roll.Open(Session{ID: ID{replica, 1, seq}, TTL: ttl}))
}

func (c *court) renew(replica, n uint64) {
	require.True(c.t, c.roll.Renew(replica, 1, n))
	c.judge.Renewed(replica, 1, n, c.now)
}

// pass lets d go by with a look every half second or less, as the leader's loop
// does, and returns what the last look found.
func (c *court) pass(d time.Duration) []Judgement {
	var due []Judgement
	for d > 0 {
		step := min(d, stall/2)
		c.now = c.now.Add(step)
		d -= step
		due = c.judge.Look(c.now, &c.roll)
	}
	return due
}

func TestJudgeCountsFromTheRenewal(t *testing.T) {
	c := newCourt(t)
	c.judge.Lead(c.now)
	c.open(1, 1, 10*time.Second)
	require.Empty(t, c.pass(3*time.Second))
	c.renew(1, 1)
	require.Empty(t, c.pass(8*time.Second-1))
	due := c.pass(1)
	require.Equal(t, []Judgement{{Replica: 1, Epoch: 1, Renewal: 1, TTL: 10 * time.Second}}, due)
	require.Equal(t, due, c.pass(stall/2), "it is due until it has been ended")

	ended := c.roll.Expire(due[0].Replica, due[0].Epoch, due[0].Renewal, due[0].TTL)
	require.Len(t, ended, 1)
	require.Empty(t, c.pass(stall/2))
}

func TestJudgeNamesTheRenewalItJudgedBy(t *testing.T) {
	c := newCourt(t)
	c.judge.Lead(c.now)
	c.open(1, 1, 10*time.Second)
	c.renew(1, 1)
	due := c.pass(9 * time.Second)
	require.Len(t, due, 1)

	c.renew(1, 2) // it was under way while the judge looked
	require.Empty(t, c.roll.Expire(due[0].Replica, due[0].Epoch, due[0].Renewal, due[0].TTL))
	require.NotNil(t, c.roll.Session(ID{1, 1, 1}))
	require.Empty(t, c.pass(8*time.Second-1))
}

func TestFollowerFindsNothing(t *testing.T) {
	c := newCourt(t)
	c.open(1, 1, 10*time.Second)
	require.Empty(t, c.pass(time.Hour))
	c.judge.Lead(c.now)
	require.NotEmpty(t, c.pass(8*time.Second))
	c.judge.Follow()
	require.Empty(t, c.pass(time.Hour))
}

func TestNewLeaderGivesAFullLease(t *testing.T) {
	c := newCourt(t)
	c.open(1, 1, 10*time.Second)
	c.renew(1, 1) // as a follower
	c.now = c.now.Add(7 * time.Second)
	c.judge.Lead(c.now)
	require.Empty(t, c.pass(8*time.Second-1))
	require.Len(t, c.pass(1), 1)

	c.judge.Lead(c.now) // elected again without having noticed that it was not
	require.Empty(t, c.pass(8*time.Second-1))
	require.Len(t, c.pass(1), 1)
}

func TestJudgeGivesAFullLeaseAfterItsOwnStall(t *testing.T) {
	c := newCourt(t)
	c.judge.Lead(c.now)
	c.open(1, 1, 10*time.Second)
	c.renew(1, 1)
	require.Empty(t, c.pass(2*time.Second))

	c.now = c.now.Add(stall + 1 + 20*time.Second) // it did not look for so long
	require.Empty(t, c.judge.Look(c.now, &c.roll))
	require.Empty(t, c.pass(8*time.Second-1))
	require.Len(t, c.pass(1), 1)

	c.now = c.now.Add(stall) // late, but not too late
	require.Len(t, c.judge.Look(c.now, &c.roll), 1)
	c.now = c.now.Add(stall + 1)
	require.Empty(t, c.judge.Look(c.now, &c.roll))
}

func TestJudgeTakesEachTTLForItself(t *testing.T) {
	c := newCourt(t)
	c.judge.Lead(c.now)
	c.open(1, 1, 5*time.Second)
	c.open(1, 2, 10*time.Second)
	c.open(1, 3, 5*time.Second)
	c.renew(1, 7)
	due := c.pass(4 * time.Second)
	require.Equal(t, []Judgement{{1, 1, 7, 5 * time.Second}}, due)
	require.Len(t, c.roll.Expire(1, 1, 7, due[0].TTL), 2)
	require.NotNil(t, c.roll.Session(ID{1, 1, 2}), "its lease is not over")
	require.Empty(t, c.pass(4*time.Second-1))
	require.Equal(t, []Judgement{{1, 1, 7, 10 * time.Second}}, c.pass(1))
}

func TestJudgeListsInOrderOfReplicas(t *testing.T) {
	c := newCourt(t)
	c.judge.Lead(c.now)
	for _, r := range []uint64{5, 3, 9, 1, 7} {
		c.open(r, 1, 10*time.Second)
		c.renew(r, r)
	}
	c.roll.Boot(4, 1) // has no session: nothing to end
	var met []uint64
	for _, j := range c.pass(8 * time.Second) {
		met = append(met, j.Replica)
		require.Equal(t, j.Replica, j.Renewal)
	}
	require.Equal(t, []uint64{1, 3, 5, 7, 9}, met)
}

// What this process noted about a former life says nothing about the present one,
// and the roll may come from a snapshot, with renewals that were never noted here.
func TestJudgeIgnoresNotesOfAnotherRenewal(t *testing.T) {
	c := newCourt(t)
	c.open(1, 1, 10*time.Second)
	c.renew(1, 1)
	at, ok := c.judge.RenewedAt(1, 1)
	require.True(t, ok)
	require.Equal(t, c.now, at)

	c.judge.Lead(c.now)
	require.True(t, c.roll.Renew(1, 1, 2)) // as restored; no note of it
	c.now = c.now.Add(stall / 2)
	c.judge.Renewed(1, 1, 1, c.now)
	require.Len(t, c.pass(8*time.Second-stall/2), 1, "counted from the beginning of the term")

	c.roll.Boot(1, 2)
	require.True(t, c.roll.Open(Session{ID: ID{1, 2, 1}, TTL: 10 * time.Second}))
	_, ok = c.judge.RenewedAt(1, 2)
	require.False(t, ok)
	_, ok = c.judge.RenewedAt(2, 1)
	require.False(t, ok)
}

// A session that no honest process opens must not stay for ever either.
func TestJudgeEndsASessionWithoutTTL(t *testing.T) {
	c := newCourt(t)
	c.judge.Lead(c.now)
	c.open(1, 1, 0)
	c.renew(1, 1)
	due := c.pass(1)
	require.Equal(t, []Judgement{{1, 1, 1, 0}}, due)
	require.Len(t, c.roll.Expire(1, 1, 1, due[0].TTL), 1)
}

// Random lives, against the definition: a session is due when its lease has passed
// since the latest of its last renewal, the election and the end of a stall.
func TestJudgeAgainstDefinition(t *testing.T) {
	rnd := dice(t)
	c := newCourt(t)
	const replicas = 4
	ttls := map[ID]time.Duration{}
	var renewedAt [replicas + 1]time.Time
	var renewals [replicas + 1]uint64
	for r := uint64(1); r <= replicas; r++ {
		for s := uint64(1); s <= 3; s++ {
			ttl := time.Duration(1+rnd.IntN(20)) * time.Second
			c.open(r, s, ttl)
			ttls[ID{r, 1, s}] = ttl
		}
		renewedAt[r] = c.now
		renewals[r]++
		c.renew(r, renewals[r])
	}
	var leading bool
	var since, looked time.Time
	for range 50_000 {
		switch k := rnd.IntN(100); {
		case k == 0:
			c.judge.Lead(c.now)
			leading, since, looked = true, c.now, c.now
		case k == 1 && rnd.IntN(4) == 0:
			c.judge.Follow()
			leading = false
		case k < 10:
			r := 1 + rnd.IntN(replicas)
			renewedAt[r] = c.now
			renewals[r]++
			c.renew(uint64(r), renewals[r])
		}
		d := time.Duration(rnd.IntN(int(stall)))
		if rnd.IntN(200) == 0 {
			d += stall
		}
		c.now = c.now.Add(d)
		if leading && c.now.Sub(looked) > stall {
			since = c.now
		}
		looked = c.now

		want := map[uint64]time.Duration{}
		for id, ttl := range ttls {
			from := since
			if renewedAt[id.Replica].After(from) {
				from = renewedAt[id.Replica]
			}
			if leading && c.now.Sub(from) >= Lease(ttl) {
				want[id.Replica] = max(want[id.Replica], ttl)
			}
		}
		got := map[uint64]time.Duration{}
		for _, j := range c.judge.Look(c.now, &c.roll) {
			got[j.Replica] = j.TTL
			require.Equal(t, renewals[j.Replica], j.Renewal)
		}
		require.Equal(t, want, got)
	}
}
