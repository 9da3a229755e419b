package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

var backupHead = BackupHead{Cluster: "Zahlungen/€", At: 1_767_225_600_128, Groups: 2}

// aBackup is one of two groups.
func aBackup(w io.Writer) error {
	b := NewBackupWriter(w, backupHead)
	for i := range uint64(2) {
		b.Group(BackupGroup{Index: 5_000_000_001 + i, Term: 81 + i})
		h, lines := aState()
		h.Level = 2 + byte(i)
		if s := NewSnapshotWriter(b, h.Level); i == 0 {
			_, _ = s.Write(snapshotBody(h, lines)) // the error sticks
			_ = s.Close()
		} else {
			h.Lines = 0
			_, _ = s.Write(AppendHead(nil, h))
			_ = s.Close()
		}
	}
	return b.Close()
}

// readBackup reads one to its end, and returns its sum and how many lines it has.
func readBackup(src io.Reader) (sum string, lines int, err error) {
	b, h, err := ReadBackup(src)
	if err != nil {
		return "", 0, err
	}
	for range h.Groups {
		if _, err := b.Group(); err != nil {
			return "", 0, err
		}
		_, of, err := readAll(b)
		if err != nil {
			return "", 0, err
		}
		lines += len(of)
	}
	sum, err = b.Close()
	return sum, lines, err
}

func TestBackupGolden(t *testing.T) {
	require.Equal(t, 1, backupVersion, "keep the golden files of old versions, and add one")
	var b bytes.Buffer
	require.NoError(t, aBackup(&b))
	whole := golden(t, "backup.v1.hex", b.Bytes())
	src, h, err := ReadBackup(bytes.NewReader(whole))
	require.NoError(t, err)
	require.Equal(t, backupHead, h)
	g, err := src.Group()
	require.NoError(t, err)
	require.Equal(t, BackupGroup{Index: 5_000_000_001, Term: 81}, g)
	sum, lines, err := readBackup(bytes.NewReader(whole))
	require.NoError(t, err)
	require.Len(t, sum, sumLen)
	_, want := aState()
	require.Equal(t, len(want), lines)
}

// A writer that fails makes no backup, wherever it does.
func TestBackupThatCannotBeWritten(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, aBackup(&b))
	for room := range b.Len() {
		require.ErrorIs(t, aBackup(&failWriter{room}), io.ErrShortWrite, "room for %d", room)
	}
}

func FuzzReadBackup(f *testing.F) {
	var b bytes.Buffer
	require.NoError(f, aBackup(&b))
	f.Add(b.Bytes())
	f.Add(b.Bytes()[:100])
	f.Add([]byte(backupMagic + "\x02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, err := readBackup(bytes.NewReader(b))
		if err != nil && errors.Is(err, ErrVersion) == errors.Is(err, ErrMalformed) {
			t.Fatalf("%v matches neither or both", err)
		}
	})
}
