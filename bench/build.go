package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// library is the module that is measured.
const library = "github.com/quorumlock/quorumlock"

// built are programs that are compiled before the time begins to count.
type built struct {
	lean   program // this program without the peers, for one replica in a process
	tests  program // the library's own benchmarks
	source string  // directory of the library, in which its benchmarks run
}

// A program is what was compiled, or why it was not.
type program struct {
	path string
	err  error
}

// build compiles what the jobs need into dir.
func (b *bench) build(ctx context.Context, dir string) {
	notNeeded := errors.New("not compiled")
	b.built.lean.err, b.built.tests.err = notNeeded, notNeeded
	if !b.has(quorumlockName) {
		return
	}
	if b.wants(processesJob) {
		fmt.Fprintln(b.progress, "compiling one replica")
		b.built.lean = compile(ctx, filepath.Join(dir, "replica"), "build", "-tags=lean", library+"/bench")
	}
	if b.wants(piecesJob) {
		fmt.Fprintln(b.progress, "compiling the library's benchmarks")
		b.built.tests = compile(ctx, filepath.Join(dir, "library.test"), "test", "-c", library)
		out, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", library).Output()
		if err != nil {
			b.built.tests.err = fmt.Errorf("the library's source is not found from here: %w", err)
		}
		b.built.source = strings.TrimSpace(string(out))
	}
}

// compile runs a command of the go tool that writes a program.
func compile(ctx context.Context, path, command string, args ...string) program {
	args = append([]string{command, "-o", path}, args...)
	cmd := exec.CommandContext(ctx, "go", args...)
	apart(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return program{err: fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))}
	}
	return program{path: path}
}
