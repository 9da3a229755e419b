//lint:file-ignore SA4006 the README's lines stop short of looking at every error

package quorumlock_test

import (
	"context"
	"errors"
	"log"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fencing"
)

// What the README shows of the kinds of lock is in the functions below, line by line,
// so that it compiles.
func TestReadmeShowsWhatCompiles(t *testing.T) {
	lines := func(s string) string {
		all := strings.Split(s, "\n")
		for i := range all {
			all[i] = strings.TrimSpace(all[i])
		}
		return strings.Trim(strings.Join(all, "\n"), "\n")
	}
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	source, err := os.ReadFile("readme_test.go")
	require.NoError(t, err)
	_, kinds, found := strings.Cut(string(readme), "## Other kinds of lock")
	require.True(t, found)
	kinds, _, found = strings.Cut(kinds, "\n## ")
	require.True(t, found)
	_, quotas, found := strings.Cut(string(readme), "## Quotas")
	require.True(t, found)
	quotas, _, found = strings.Cut(quotas, "\n## ")
	require.True(t, found)
	kinds += quotas
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(kinds, -1)
	require.Len(t, snippets, 9)
	for _, s := range snippets {
		for part := range strings.SplitSeq(s[1], "\n...\n") {
			require.Contains(t, lines(string(source)), lines(part))
		}
	}
}

var _ = []any{readers, slots, several, bounds, whoHolds, watch, puttingRight, openWithQuotas, waitForQuota}

func readers(ctx context.Context, node *quorumlock.Node) error {
	reader, err := node.Acquire(ctx, "catalog", quorumlock.Share()) // beside other readers

	writer, err := node.Acquire(ctx, "catalog") // alone

	err = writer.Downgrade(ctx) // to a reader, with no moment at which nobody holds it
	_ = reader
	return err
}

func openWithQuotas() (*quorumlock.Node, error) {
	node, err := quorumlock.Open(quorumlock.Options{
		// ...
		Quotas: []quorumlock.Quota{
			{Rate: 5000, Burst: 10_000},                             // of this process
			{PerSession: true, Holds: 10_000, Waiters: 100},         // of each session
			{Prefix: "reports/", Rate: 50, Holds: 200, Waiters: 20}, // of these names
		},
	})
	return node, err
}

func waitForQuota(err error) {
	var over *quorumlock.QuotaError
	if errors.As(err, &over) {
		log.Println("again in", over.RetryAfter) // 0 for holds and waiters: they end when they end
	}
}

func slots(ctx context.Context, node *quorumlock.Node) error {
	hold, err := node.Acquire(ctx, "workers", quorumlock.Permits(1, 16)) // one of 16
	if err != nil {
		return err
	}
	shard := hold.Slots()[0] // 0 to 15, the lowest that was free, and nobody else's
	err = work(ctx, shard, hold.Token())
	return err
}

func several(ctx context.Context, node *quorumlock.Node) error {
	hold, err := node.AcquireAll(ctx, "account/1", "account/2")
	if err != nil {
		return err
	}
	defer hold.Release(ctx)
	from, to := hold.TokenFor("account/1"), hold.TokenFor("account/2")
	err = transfer(ctx, from, to)
	return err
}

func bounds(ctx context.Context, node *quorumlock.Node) error {
	hold, err := node.Acquire(ctx, "report/daily",
		quorumlock.MaxHold(10*time.Minute),   // it is over after that, whatever we do
		quorumlock.MinHold(time.Minute),      // nobody else has it sooner than that after the grant
		quorumlock.LockDelay(30*time.Second)) // nobody has it for that long after we lost it
	_ = hold
	return err
}

func whoHolds(ctx context.Context, node *quorumlock.Node) error {
	_, err := node.TryAcquire(ctx, "report/daily")
	var held *quorumlock.HeldError
	if errors.As(err, &held) {
		for _, h := range held.Holders {
			log.Printf("%s has it since %s (session %s, token %s)", h.Owner, h.AcquiredAt, h.Session, h.Token)
		}
		log.Printf("%d stand before us", held.Ahead)
	}
	return err
}

func watch(ctx context.Context, node *quorumlock.Node) error {
	for e, err := range node.Watch(ctx, "jobs/") {
		if err != nil {
			return err // ctx ended, or the node closed
		}
		switch e.Kind {
		case quorumlock.EventMissed: // too slow: forget what you know, a new picture follows
		case quorumlock.EventPicture: // how some locks are, in e.Locks; EventSynced after the last
		case quorumlock.EventGranted, quorumlock.EventReleased, quorumlock.EventLost:
			log.Println(e.Kind, e.Name, e.Owner, e.Token, e.Cause)
		}
	}
	return nil
}

func puttingRight(ctx context.Context, node *quorumlock.Node) error {
	err := node.RequestYield(ctx, "jobs/import", "deploy", "rolling out 1.9") // seen on hold.YieldRequests()

	info, err := node.Describe(ctx, "jobs/import")
	stuck := info.Holders[0]
	err = node.ForceRelease(ctx, info.Name, stuck.Token, "anna", "stuck since the disk filled up")
	err = node.ForceClose(ctx, stuck.Session, "anna", "its host is gone")
	return err
}

func work(context.Context, int, fencing.Token) error { return nil }

func transfer(context.Context, fencing.Token, fencing.Token) error { return nil }
