package dashboard

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/quorumlock/quorumlock/dashboard/api"
)

// backup streams a backup of the cluster. If it ends early, so does the answer: what was
// sent is no backup then, and quorumlock.InspectBackup knows it as none.
func (h *handler) backup(p *reply) {
	ctx, cancel := context.WithTimeout(p.r.Context(), readTimeout)
	done, err := h.walk(ctx)
	cancel()
	if err != nil {
		p.fail(err)
		return
	}
	defer done()
	// A majority has to answer in time. How long the rest takes is up to the disk, for as
	// large as the state is, and to the client.
	ctx, cancel = context.WithTimeout(p.r.Context(), h.patience)
	err = errors.Join(h.node.Quorum(ctx)...)
	cancel()
	if err != nil {
		p.fail(err)
		return
	}
	p.w.Header().Set("Content-Type", api.BackupType)
	p.w.Header().Set("Content-Disposition", `attachment; filename="quorumlock.backup"`)
	w := &slowly{w: p.w, control: http.NewResponseController(p.w)}
	err = h.node.Backup(p.r.Context(), w)
	switch {
	case err != nil && !w.begun:
		p.w.Header().Del("Content-Disposition")
		p.fail(err)
	case err != nil:
		panic(http.ErrAbortHandler) // the client sees that something is missing
	}
}

// slowly writes to a client that may take its time, as long as it reads at all.
type slowly struct {
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool
}

func (s *slowly) Write(b []byte) (int, error) {
	s.begun = true
	_ = s.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // not every ResponseWriter has one
	return s.w.Write(b)
}
