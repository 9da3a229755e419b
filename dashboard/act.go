package dashboard

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/dashboard/api"
	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/sessions"
)

// A Kind is what an Action does.
type Kind string

// What can be done over a holder's head. Handing a lock to a chosen waiter is not among
// it: only the holder can, with Hold.HandOver. It can be asked to, with RequestYield.
const (
	ForceRelease Kind = "force-release" // Node.ForceRelease of Name and Token
	ForceClose   Kind = "force-close"   // Node.ForceClose of Session
	RequestYield Kind = "request-yield" // Node.RequestYield of Name
	Transfer     Kind = "transfer"      // Node.TransferLeadership of Groups to Replica
	Backup       Kind = "backup"        // Node.Backup, to whoever asks; there is no form for it
	TakeLock     Kind = "take-lock"     // hold Name for a client outside of this process: see Options.MaxHolds

	// With Options.ChangeMembers, as JSON only. What takes longer than some seconds is
	// answered with status 202, and goes on when it is asked for again.
	AddReplica     Kind = "add-replica"     // Node.AddReplica of Replica at Address
	RemoveReplica  Kind = "remove-replica"  // Node.RemoveReplica of Replica
	ReplaceReplica Kind = "replace-replica" // Node.ReplaceReplica of Dead by Replica at Address
)

var kinds = map[string]Kind{string(ForceRelease): ForceRelease, string(ForceClose): ForceClose, string(RequestYield): RequestYield,
	string(Transfer): Transfer, string(Backup): Backup,
	string(AddReplica): AddReplica, string(RemoveReplica): RemoveReplica, string(ReplaceReplica): ReplaceReplica}

func (k Kind) changesMembers() bool {
	return k == AddReplica || k == RemoveReplica || k == ReplaceReplica
}

var doneTexts = map[string]string{
	string(ForceRelease): "The hold was ended.",
	string(ForceClose):   "The session was closed.",
	string(RequestYield): "The holders were asked to give the lock up.",
	string(Transfer):     "The chosen replica leads.",
}

// An Action is what somebody wants to do.
type Action struct {
	Kind    Kind
	Name    string        // of the lock: ForceRelease, RequestYield, TakeLock
	Token   fencing.Token // of the hold: ForceRelease
	Session sessions.ID   // ForceClose
	Replica uint64        // Transfer, AddReplica, RemoveReplica, ReplaceReplica
	Groups  []int         // Transfer: of which groups; all if nil
	Dead    uint64        // ReplaceReplica: which it takes the place of
	Address string        // AddReplica, ReplaceReplica
	By      string        // who: Options.User, or what the request says
	Reason  string        // and why
}

const (
	maxBody       = 64 << 10 // bytes
	actionTimeout = 10 * time.Second
	tokenCookie   = "quorumlock-form"
	tokenField    = "form-token"
)

// act does what a request asks for, if nothing speaks against it. The application's
// own word comes last, so that it judges only what could be done.
func (h *handler) act(p *reply, kind Kind) {
	p.json = p.json || mediaType(p.r) == "application/json" // whoever sends it reads it, refusals too
	if h.opts.Authorize == nil || kind.changesMembers() && !h.opts.ChangeMembers {
		p.fail(&failure{http.StatusForbidden, "Nothing can be changed here: the application has not enabled it."})
		return
	}
	if err := h.cross.Check(p.r); err != nil {
		p.fail(&failure{http.StatusForbidden, "This request comes from another site."})
		return
	}
	a, err := h.action(p.w, p.r, kind)
	if err != nil {
		p.fail(err)
		return
	}
	if err := h.opts.Authorize(p.r, a); err != nil {
		p.fail(&failure{http.StatusForbidden, "Not allowed: " + err.Error()})
		return
	}
	if kind == Backup {
		h.backup(p)
		return
	}
	ctx, cancel := context.WithTimeout(p.r.Context(), actionTimeout)
	defer cancel()
	err = h.perform(ctx, a)
	switch {
	case kind.changesMembers() && errors.Is(err, quorumlock.ErrUnfinished):
		p.page(http.StatusAccepted, page{}, api.Done{Waiting: err.Error()})
		return
	case err != nil:
		p.fail(err)
		return
	case p.json:
		p.page(http.StatusOK, page{}, api.Done{Done: string(kind)})
		return
	}
	// Not to the action's own address, so that a reload does not repeat it.
	target := "sessions"
	switch {
	case kind == Transfer:
		target = "cluster?" + url.Values{"done": {string(kind)}}.Encode()
	case a.Name != "":
		target = "lock?" + url.Values{"name": {a.Name}, "done": {string(kind)}}.Encode()
	}
	p.w.Header().Set("Location", target)
	p.w.WriteHeader(http.StatusSeeOther)
}

func (h *handler) perform(ctx context.Context, a Action) error {
	switch a.Kind {
	case ForceRelease:
		return h.node.ForceRelease(ctx, a.Name, a.Token, a.By, a.Reason)
	case ForceClose:
		return h.node.ForceClose(ctx, a.Session, a.By, a.Reason)
	case Transfer:
		return h.node.TransferLeadership(ctx, a.Replica, a.Groups...)
	case AddReplica:
		return h.node.AddReplica(ctx, a.Replica, a.Address)
	case RemoveReplica:
		return h.node.RemoveReplica(ctx, a.Replica)
	case ReplaceReplica:
		return h.node.ReplaceReplica(ctx, a.Dead, a.Replica, a.Address)
	default:
		return h.node.RequestYield(ctx, a.Name, a.By, a.Reason)
	}
}

// action reads what is asked for: a form, or a JSON object with the same fields.
func (h *handler) action(w http.ResponseWriter, r *http.Request, kind Kind) (a Action, err error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	fields := make(map[string]string)
	switch mediaType(r) {
	case "application/json":
		err = decode(r.Body, &fields)
	case "application/x-www-form-urlencoded":
		if kind.changesMembers() {
			return a, &failure{http.StatusUnsupportedMediaType, "Send application/json: there is no form for it."}
		}
		err = h.readForm(r, fields)
	default:
		return a, &failure{http.StatusUnsupportedMediaType, "Send a form, or application/json."}
	}
	if err != nil {
		return a, err
	}
	a = Action{Kind: kind, By: fields["by"], Reason: fields["reason"]}
	if h.opts.User != nil {
		a.By = h.opts.User(r)
	}
	switch kind {
	case ForceClose:
		a.Session, err = sessionID(fields["session"])
	case Transfer, AddReplica, RemoveReplica, ReplaceReplica:
		a.Replica, err = positive(fields, "replica")
		a.Address = fields["address"]
		if err == nil && kind == ReplaceReplica {
			a.Dead, err = positive(fields, "dead")
		}
		if err == nil && kind == Transfer && fields["group"] != "" {
			a.Groups, err = h.group(fields["group"])
		}
	case Backup:
	default:
		if a.Name = fields["name"]; a.Name == "" {
			err = badRequest("Which lock? name is missing.")
		}
	}
	if err == nil && kind == ForceRelease {
		var n uint64
		n, err = positive(fields, "token")
		a.Token = fencing.Token(n)
	}
	if err == nil && (strings.TrimSpace(a.By) == "" || strings.TrimSpace(a.Reason) == "") {
		err = badRequest("Say who you are and why.")
	}
	return a, err
}

func mediaType(r *http.Request) string {
	t, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return t
}

func positive(fields map[string]string, key string) (uint64, error) {
	n, err := strconv.ParseUint(fields[key], 10, 64)
	if err != nil || n == 0 {
		return 0, badRequest("%s must be a positive number, not %q.", key, fields[key])
	}
	return n, nil
}

// group reads which group is meant.
func (h *handler) group(text string) ([]int, error) {
	i, err := strconv.Atoi(text)
	if most := max(len(h.node.Status().Groups), 1) - 1; err != nil || i < 0 || i > most {
		return nil, badRequest("group must be a whole number from 0 to %d, not %q.", most, text)
	}
	return []int{i}, nil
}

func decode(body io.Reader, fields *map[string]string) error {
	d := json.NewDecoder(body)
	if err := d.Decode(fields); err != nil {
		return badRequest("The body is no JSON object of strings: %v.", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return badRequest("Something follows the JSON object.")
	}
	return nil
}

// readForm reads a form. The name of the lock stands in its address and not in a
// field: browsers change line ends in fields.
func (h *handler) readForm(r *http.Request, fields map[string]string) error {
	if err := r.ParseForm(); err != nil {
		return badRequest("The form cannot be read: %v.", err)
	}
	for key, values := range r.Form {
		if len(values) > 1 {
			return badRequest("%q is given %d times.", key, len(values))
		}
		fields[key] = values[0]
	}
	cookie, err := r.Cookie(tokenCookie)
	if err != nil || cookie.Value == "" || subtle.ConstantTimeCompare([]byte(cookie.Value), []byte(r.PostForm.Get(tokenField))) != 1 {
		return &failure{http.StatusForbidden, "The form is not from this page, or its cookie is gone. Go back, reload and try again."}
	}
	return nil
}

// formToken returns what a form must carry: the value of the cookie, which is set if
// the browser has none. It has no Path, so that it belongs to where the pages stand.
func (h *handler) formToken(w http.ResponseWriter, r *http.Request) string {
	if c, err := r.Cookie(tokenCookie); err == nil && len(c.Value) == len(rand.Text()) {
		return c.Value
	}
	value := rand.Text()
	http.SetCookie(w, &http.Cookie{
		Name: tokenCookie, Value: value, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	})
	return value
}
