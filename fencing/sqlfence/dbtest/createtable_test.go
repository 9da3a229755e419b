package dbtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/quorumlock/quorumlock/fencing/sqlfence"
)

// Replicas that start together create the table together.
func TestCreateTableTogether(t *testing.T) {
	on(t, func(t *testing.T, d *database) {
		for round := range 5 {
			name := fmt.Sprintf("together_%d_%d_%d", os.Getpid(), tables.Add(1), round)
			f, err := sqlfence.New(d.dialect, sqlfence.WithTable(name))
			must(t, err)
			t.Cleanup(func() { d.drop(t, name) })
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					if err := f.CreateTable(t.Context(), d.DB); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		}
	})
}

func TestCreateTableKeepsTokens(t *testing.T) {
	on(t, func(t *testing.T, d *database) {
		must(t, d.admit(t, "a", 9))
		must(t, d.fence.CreateTable(t.Context(), d.DB))
		d.exec(t, d.fence.Schema()) // as a migration would
		refused(t, d.admit(t, "a", 5), "a", 5, 9)
	})
}

func TestCreateTableFails(t *testing.T) {
	on(t, func(t *testing.T, d *database) {
		f, err := sqlfence.New(d.dialect, sqlfence.WithTable("no_such_schema.fencing"))
		must(t, err)
		if err := f.CreateTable(t.Context(), d.DB); err == nil {
			t.Error("created in a schema that does not exist")
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := d.fence.CreateTable(ended, d.DB); !errors.Is(err, context.Canceled) {
			t.Errorf("ended ctx: %v", err)
		}
	})
}

func TestTableWithSchema(t *testing.T) {
	where := map[sqlfence.Dialect]string{
		sqlfence.PostgreSQL: "SELECT current_schema()",
		sqlfence.MySQL:      "SELECT DATABASE()",
		sqlfence.SQLite:     "SELECT 'main'",
	}
	on(t, func(t *testing.T, d *database) {
		var schema string
		must(t, d.QueryRowContext(t.Context(), where[d.dialect]).Scan(&schema))
		name := fmt.Sprintf("Qualified_%d_%d", os.Getpid(), tables.Add(1))
		f, err := sqlfence.New(d.dialect, sqlfence.WithTable(schema+"."+name))
		must(t, err)
		must(t, f.CreateTable(t.Context(), d.DB))
		t.Cleanup(func() { d.drop(t, name) })
		guard := f.Guard(d.DB)
		must(t, guard.Admit(t.Context(), "a", 9))
		refused(t, guard.Admit(t.Context(), "a", 5), "a", 5, 9)
	})
}
