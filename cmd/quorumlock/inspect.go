package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/quorumlock/quorumlock"
)

func (t *tool) inspect() func(context.Context, []string) error {
	t.flags.BoolVar(&t.json, "json", false, "print JSON")
	return func(_ context.Context, args []string) error {
		dir, err := need(args, "which directory?")
		if err != nil {
			return err
		}
		info, err := quorumlock.InspectDirectory(dir)
		if err != nil {
			return err
		}
		if t.json {
			return t.encode(info)
		}
		return t.directory(info)
	}
}

func (t *tool) directory(info quorumlock.DirectoryInfo) error {
	how := "founded it"
	if info.Joined {
		how = "joined it later"
	}
	if err := t.table(row("DIRECTORY", info.Path),
		row("cluster", info.Cluster),
		row("replica", info.Replica, how),
		row("host", info.Hostname),
		row("lives", info.Epoch)); err != nil {
		return err
	}
	var rows []string
	for _, id := range slices.Sorted(maps.Keys(merged(info.Founders, info.Peers))) {
		rows = append(rows, row(id, info.Founders[id], info.Peers[id]))
	}
	if err := t.table("\nREPLICA\tFOUNDED AT\tHEARD AT", rows...); err != nil {
		return err
	}
	rows = nil
	for i, g := range info.Groups {
		rows = append(rows, row(i, g.Term, g.Vote, g.First, g.Last, g.Committed, g.Snapshot, g.SnapshotFile))
	}
	return t.table("\nGROUP\tTERM\tVOTE\tFIRST ENTRY\tLAST\tCOMMITTED\tSNAPSHOT\tFILE", rows...)
}

func merged(a, b map[uint64]string) map[uint64]string {
	all := make(map[uint64]string)
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

func (t *tool) restore() func(context.Context, []string) error {
	t.flags.BoolVar(&t.json, "json", false, "print JSON")
	return func(_ context.Context, args []string) error {
		name, err := need(args, "which backup?")
		if err != nil {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		info, err := quorumlock.InspectBackup(f)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if t.json {
			return t.encode(info)
		}
		if err := t.contents(info); err != nil {
			return err
		}
		_, err = fmt.Fprintf(t.out, `
The backup is whole. A new cluster begins with it like this, on each replica alike: stop every process of
the old cluster; an empty Dir; all Members; a new name as Cluster; and Options.Restore, the path of a copy of
this file (each compares its sum with the others'). docs/OPERATIONS.md has all of it.
`)
		return err
	}
}

// contents shows what is in a backup.
func (t *tool) contents(info quorumlock.BackupInfo) error {
	if err := t.table(row("CLUSTER", info.Cluster),
		row("written", info.At.Format("2006-01-02 15:04:05 MST")),
		row("level", info.Level),
		row("sum", info.Sum)); err != nil {
		return err
	}
	var rows []string
	for i, g := range info.Groups {
		rows = append(rows, row(i, g.Term, g.Index, g.Token, g.Locks, g.Sessions, g.Jobs))
	}
	return t.table("\nGROUP\tTERM\tINDEX\tTOKEN\tLOCKS\tSESSIONS\tJOBS", rows...)
}
