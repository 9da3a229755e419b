package dashboard

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/quorumlock/quorumlock/dashboard/api"
)

//go:embed templates
var sources embed.FS

// templates are the pages, each within the layout.
var templates = parse()

// fileTag stands for what all files are made of.
var fileTag = tag()

func parse() map[string]*template.Template {
	layout := template.Must(template.New("layout.html").Funcs(functions).ParseFS(sources, "templates/layout.html", "templates/parts.html"))
	names := append(slices.Collect(maps.Keys(pages)), "error")
	all := make(map[string]*template.Template, len(names))
	for _, name := range names {
		all[name] = template.Must(template.Must(layout.Clone()).ParseFS(sources, "templates/"+name+".html"))
	}
	return all
}

func tag() string {
	sum := sha256.New()
	for _, name := range []string{"style.css", "live.js", "icon.svg"} {
		body, err := fs.ReadFile(static, "static/"+name)
		if err != nil {
			panic(err) // it was embedded
		}
		sum.Write(body)
	}
	return `"` + hex.EncodeToString(sum.Sum(nil)[:8]) + `"`
}

var functions = template.FuncMap{
	"ago":   func(t time.Time) string { return span(time.Since(t)) },
	"until": func(t time.Time) string { return span(time.Until(t)) },
	"show":  api.Printable,
	"stamp": func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"comma": comma,
	"span":  span,
	"plus":  func(a, b int) int { return a + b },
	"less":  func(a, b uint64) uint64 { return a - b },
}

// A frame is what the layout shows around a page.
type frame struct {
	Site    string // Options.Title
	Title   string
	At      string
	Replica uint64
	JSON    string // where this page is as JSON
	Data    any

	CanAct  bool
	AsksWho bool   // who acts must say who that is
	Token   string // against forged forms
}

func (p *reply) render(w io.Writer, which page, data any) error {
	f := frame{
		Site: p.h.opts.Title, Title: which.title, At: p.at, Data: data, Replica: p.h.node.Status().ReplicaID,
		CanAct: p.h.opts.Authorize != nil, AsksWho: p.h.opts.User == nil,
	}
	if which.template != "error" && which.template != "live" {
		f.JSON = which.template + ".json"
		if q := p.r.URL.RawQuery; q != "" {
			f.JSON += "?" + q
		}
	}
	if f.CanAct && slices.Contains([]string{"cluster", "lock", "session"}, which.template) {
		f.Token = p.h.formToken(p.w, p.r)
	}
	return templates[which.template].Execute(w, f)
}

// span says how long something took, in one or two words.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return strconv.Itoa(int(d/time.Millisecond)) + " ms"
	case d < 2*time.Minute:
		return strconv.Itoa(int(d/time.Second)) + " s"
	case d < 2*time.Hour:
		return strconv.Itoa(int(d/time.Minute)) + " min"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d/time.Hour)) + " h"
	default:
		return strconv.Itoa(int(d/(24*time.Hour))) + " days"
	}
}

// comma sets a number in groups of three.
func comma(n any) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}
