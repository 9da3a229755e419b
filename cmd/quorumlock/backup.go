package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/dashboard/api"
)

func (t *tool) backup() func(context.Context, []string) error {
	t.look()
	dir := t.flags.String("dir", "", "of the stopped replica in this `directory`, in place of a page's")
	by := t.flags.String("by", self(), "`who` wants it: the application may ask")
	reason := t.flags.String("reason", "backup", "and why")
	return func(ctx context.Context, args []string) error {
		name, err := need(args, "into which file?")
		if err == nil && *dir == "" {
			err = t.pages.open()
		}
		if err != nil {
			return err
		}
		write := func(w io.Writer) error { return quorumlock.BackupDirectory(*dir, w) }
		if *dir == "" {
			write = func(w io.Writer) error { return t.pages.backup(ctx, *by, *reason, w) }
		}
		info, err := save(name, write)
		if err != nil {
			return err
		}
		if t.json {
			return t.encode(info)
		}
		return t.contents(info)
	}
}

// backup has the first page that can write a backup. What a page that failed has written
// is recognized as cut short when it is read.
func (p *pages) backup(ctx context.Context, by, reason string, w io.Writer) error {
	ask, err := json.Marshal(map[string]string{"by": by, "reason": reason})
	if err != nil {
		return err
	}
	return p.first(ctx, func(u *url.URL) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		patience := time.AfterFunc(p.timeout, func() { cancel(fmt.Errorf("%s: no answer in %v", u.Redacted(), p.timeout)) })
		answer, err := p.send(ctx, http.MethodPost, u, "backup", nil, "application/json", bytes.NewReader(ask))
		patience.Stop() // how long the rest takes depends on how much it is
		if cause := context.Cause(ctx); err != nil && cause != nil {
			return cause
		}
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		if t := answer.Header.Get("Content-Type"); t != api.BackupType {
			return fmt.Errorf("%s: this is no backup, but %q", u.Redacted(), t)
		}
		if _, err = io.Copy(w, answer.Body); err != nil {
			err = refusal{fmt.Errorf("%s: %w", u.Redacted(), err)} // the next one would write behind it
		}
		return err
	})
}

// save writes a file that is there whole and verified, or not at all. What it replaces
// stays until then.
func save(name string, write func(io.Writer) error) (info quorumlock.BackupInfo, err error) {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".part-*")
	if err != nil {
		return info, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	if err := write(f); err != nil {
		return info, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return info, err
	}
	if info, err = quorumlock.InspectBackup(f); err != nil {
		return info, err
	}
	if err := f.Sync(); err != nil {
		return info, err
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return info, err
	}
	return info, errors.Join(syncDirectory(filepath.Dir(name)), f.Close())
}

// syncDirectory makes a new name durable, where directories can be synced.
func syncDirectory(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	_ = d.Sync()
	return d.Close()
}
