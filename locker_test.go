package quorumlock

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// panicOf returns what f panics with.
func panicOf(f func()) (err error) {
	defer func() { err, _ = recover().(error) }()
	f()
	return nil
}

func TestLockerExcludes(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		inside := 0
		var all sync.WaitGroup
		for _, n := range nodes {
			shared := n.Locker("job", nil)
			for k := range 6 {
				l := shared
				if k%2 == 0 {
					l = n.Locker("job", nil)
				}
				all.Go(func() {
					for range 5 {
						l.Lock()
						inside++
						require.Equal(t, 1, inside)
						elapse(time.Millisecond)
						inside--
						l.Unlock()
					}
				})
			}
		}
		all.Wait()
		settled(t, nodes)
	})
}

// Lock waits through whatever passes, and panics at what does not. Unlock says what it
// can.
func TestLockerHasNoWords(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim, nodes map[uint64]*Node) {
		require.ErrorIs(t, panicOf(nodes[1].Locker("", nil).Lock), ErrName)
		l := nodes[1].Locker("job", nil)
		require.ErrorContains(t, panicOf(l.Unlock), "not locked")

		s.cut(1)
		locked := make(chan struct{})
		go func() { l.Lock(); close(locked) }()
		elapse(time.Hour)
		require.False(t, isClosed(locked))
		s.heal()
		<-locked

		s.cut(1)
		elapse(DefaultSessionTTL)
		err := panicOf(l.Unlock)
		require.ErrorIs(t, err, ErrLost)
		require.ErrorContains(t, panicOf(l.Unlock), "not locked")
		s.heal()

		var told []error
		l = nodes[1].Locker("job", func(err error) { told = append(told, err) })
		l.Lock()
		info, err := nodes[2].Describe(soon(t), "job")
		require.NoError(t, err)
		require.NoError(t, nodes[2].ForceClose(soon(t), info.Holders[0].Session, "ops", "stuck"))
		synctest.Wait()
		l.Unlock()
		require.Len(t, told, 1)
		var lost *LostError
		require.True(t, errors.As(told[0], &lost))

		// A wait that is lost is begun again, and no other goroutine is let in by a lock
		// that one of the same Locker has lost.
		held, err := nodes[2].Acquire(soon(t), "job")
		require.NoError(t, err)
		locked = make(chan struct{})
		go func() { l.Lock(); close(locked) }()
		synctest.Wait()
		info, err = nodes[2].Describe(soon(t), "job")
		require.NoError(t, err)
		require.NoError(t, nodes[2].ForceClose(soon(t), info.Waiters[0].Session, "ops", "stuck"))
		elapse(time.Second)
		require.NoError(t, held.Release(soon(t)))
		<-locked
		locked = make(chan struct{})
		go func() { l.Lock(); close(locked) }()
		synctest.Wait()
		info, err = nodes[2].Describe(soon(t), "job")
		require.NoError(t, err)
		require.Empty(t, info.Waiters)
		require.False(t, isClosed(locked))
		l.Unlock()
		<-locked
		l.Unlock()

		l.Lock()
		require.NoError(t, nodes[1].Close())
		l.Unlock()
		require.ErrorIs(t, told[1], ErrClosed)
		require.ErrorIs(t, panicOf(l.Lock), ErrClosed)
		require.ErrorIs(t, panicOf(l.Lock), ErrClosed, "it is not left locked here")
	})
}
