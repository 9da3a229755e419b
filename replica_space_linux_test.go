package quorumlock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func init() {
	childRoles["full-while-running"] = childFullWhileRunning
	childRoles["full-at-start"] = childFullAtStart
}

// ownMounts is a child that may mount what nobody else sees, and that is gone with it.
func ownMounts() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
}

// smallDisk mounts a disk of 4 MiB, and returns a function that leaves no byte of it.
func smallDisk(dir string) (fill func() (ballast string, err error), err error) {
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=4m"); err != nil {
		fmt.Println("> no disk:", err)
		return nil, err
	}
	return func() (string, error) {
		f, err := os.Create(filepath.Join(dir, "lost+found")) // a name that may be there
		for block := make([]byte, 4096); err == nil; {
			_, err = f.Write(block)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return "", err
		}
		return f.Name(), f.Close()
	}, nil
}

func childFullWhileRunning(args []string) error {
	fill, err := smallDisk(args[0])
	if err != nil {
		return err
	}
	e, err := childReplica(args[0], args[1], newListMachine(), nil)
	if err != nil {
		return err
	}
	if err := childPropose(e, "before"); err != nil {
		return err
	}
	if _, err := fill(); err != nil {
		return err
	}
	fmt.Println("> full")
	for { // the log has some room left that was written before
		if err := childPropose(e, fmt.Sprintf("%04096d", 0)); err != nil {
			return err
		}
	}
}

// A disk that runs full under a replica stops it with the cause in OnFatal.
func TestReplicaDiskRunsFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	next, _ := childProcessIn(t, ownMounts(), "full-while-running", dir, freeAddresses(t, 1)[0])
	line := next()
	if strings.HasPrefix(line, "no disk") {
		t.Skip(line)
	}
	require.Equal(t, "full", line)
	line = next()
	require.Contains(t, line, "fatal: ")
	require.Contains(t, line, dir)
	require.Contains(t, line, "cannot be trusted any more")
	require.Contains(t, line, syscall.ENOSPC.Error())
	require.Equal(t, "ended", next())
}

func childFullAtStart(args []string) error {
	fill, err := smallDisk(args[0])
	if err != nil {
		return err
	}
	for range 2 { // the first start, and a later one
		ballast, err := fill()
		if err != nil {
			return err
		}
		if _, err = childReplica(args[0], args[1], newListMachine(), nil); err == nil {
			return errors.New("opened on a full disk")
		}
		if !errors.Is(err, ErrDirectory) || !errors.Is(err, syscall.ENOSPC) {
			return err
		}
		fmt.Println("> refused")
		if err := os.Remove(ballast); err != nil {
			return err
		}
		e, err := childReplica(args[0], args[1], newListMachine(), nil)
		if err != nil {
			return err
		}
		if err := errors.Join(childPropose(e, "x"), e.close()); err != nil {
			return err
		}
	}
	fmt.Println("> opened again")
	return nil
}

// On a full disk Open says so, and once there is room again it succeeds: at the first
// start as at a later one.
func TestReplicaOpensOnAFullDisk(t *testing.T) {
	t.Parallel()
	next, _ := childProcessIn(t, ownMounts(), "full-at-start", t.TempDir(), freeAddresses(t, 1)[0])
	line := next()
	if strings.HasPrefix(line, "no disk") {
		t.Skip(line)
	}
	require.Equal(t, "refused", line)
	require.Equal(t, "refused", next())
	require.Equal(t, "opened again", next())
	require.Equal(t, "ended", next())
}
