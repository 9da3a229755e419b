package browsertest

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

var screenshots = flag.String("screenshots", "", "write the pictures of the README into this directory")

var running = flag.String("url", "", "look at an example that runs already: what it printed")

// patience bounds what a test waits for.
const patience = time.Minute

// browserPath finds a Chromium, or skips the test.
func browserPath(t *testing.T) string {
	if os.Getenv("QUORUMLOCK_TEST_BROWSER") == "" {
		t.Skip("takes minutes: QUORUMLOCK_TEST_BROWSER=1 runs it")
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no chromium here: on Debian, apt-get install chromium")
	return ""
}

// built is where the example is built, once for all tests.
var built string

func TestMain(m *testing.M) {
	var err error
	if built, err = os.MkdirTemp("", "browsertest-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(built)
	os.Exit(code)
}

var build = sync.OnceValues(func() (binary string, err error) {
	binary = filepath.Join(built, "dashboard")
	command := exec.Command("go", "build", "-o", binary, "./dashboard")
	command.Dir = "../../examples"
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return binary, nil
})

// serve runs the example, which is what a newcomer opens, and returns its address.
func serve(t *testing.T, args ...string) string {
	if *running != "" {
		return *running
	}
	binary, err := build()
	require.NoError(t, err)
	example := exec.Command(binary, append(args, "-http", "127.0.0.1:0", "-for", "3m")...)
	example.Stderr = os.Stderr
	lines, err := example.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, example.Start())
	t.Cleanup(func() {
		require.NoError(t, example.Process.Signal(os.Interrupt))
		require.NoError(t, example.Wait(), "it ends cleanly, with pages of live changes open")
	})
	line, err := bufio.NewReader(lines).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(strings.TrimPrefix(line, "open "))
}

// A browser is one that notes what pages complain about.
type browser struct {
	t   *testing.T
	ctx context.Context
	url string

	mu     sync.Mutex
	wrongs []string
}

func openBrowser(t *testing.T, args ...string) *browser {
	path := browserPath(t)
	url := serve(t, args...)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.WSURLReadTimeout(patience))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // which root cannot have
	}
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	bounded, cancelBound := context.WithTimeout(allocator, 2*time.Minute)
	t.Cleanup(cancelBound)
	ctx, cancelTab := chromedp.NewContext(bounded)
	t.Cleanup(cancelTab)
	b := &browser{t: t, ctx: ctx, url: url}
	require.NoError(t, chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *log.EventEntryAdded:
			if e.Entry.Level == log.EntryLevelError {
				b.wrongs = append(b.wrongs, e.Entry.Text+" "+e.Entry.URL)
			}
		case *runtime.EventExceptionThrown:
			b.wrongs = append(b.wrongs, e.ExceptionDetails.Text)
		}
	}))
	_, err := chromedp.Call(ctx, log.Enable, cdp.Empty{})
	require.NoError(t, err)
	return b
}

func (b *browser) run(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, steps...))
}

// look opens a page in a colour scheme and a size.
func (b *browser) look(page, scheme string, width, height int64) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	require.NoError(b.t, err)
	b.run(
		chromedp.EmulateViewport(width, height),
		chromedp.Navigate(b.url+page),
		chromedp.WaitVisible("h1"),
	)
}

func eval[T any](b *browser, script string) (v T) {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](script))
	require.NoError(b.t, err, script)
	return v
}

// fits fails if the page can be scrolled sideways.
func (b *browser) fits(page string) {
	b.t.Helper()
	wide := eval[[]string](b, `[...document.querySelectorAll("main *, header *")].filter(e =>
		e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".hide, thead, .skip")).map(e => e.outerHTML.slice(0, 120))`)
	require.Empty(b.t, wide, page)
	require.LessOrEqual(b.t, eval[int](b, `document.documentElement.scrollWidth - innerWidth`), 0, page)
}

// contrast is the least contrast of text to what is behind it, by WCAG 2.
const contrast = `(() => {
	const parse = c => (c.match(/[\d.]+/g) || []).map(Number);
	const light = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 });
		return .2126 * r + .7152 * g + .0722 * b };
	const behind = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
		if (c.length === 3 || c[3] > .99) return c } return [255, 255, 255] };
	let worst = [99, ""];
	for (const e of document.querySelectorAll("body *")) {
		if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility()) continue;
		const a = light(parse(getComputedStyle(e).color)), b = light(behind(e));
		const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
		if (ratio < worst[0]) worst = [ratio, e.outerHTML.slice(0, 100)];
	}
	return {ratio: worst[0], where: worst[1]};
})()`

var everyPage = []string{"cluster", "locks", "locks?prefix=nothing", "lock?name=invoice/4712", "lock?name=gateway/acme",
	"lock?name=tariffs", "sessions", "session?id=1.1.1", "elections", "busiest",
	"live?prefix=task/"}

// In light and dark, on a desk and on a phone: text can be read and nothing sticks out.
func TestEveryPageInEveryLook(t *testing.T) {
	b := openBrowser(t)
	backs := make(map[string]bool)
	for _, scheme := range []string{"light", "dark"} {
		for _, page := range everyPage {
			b.look(page, scheme, 1200, 800)
			b.fits(page)
			b.reads(page)
			backs[eval[string](b, `getComputedStyle(document.body).backgroundColor`)] = true
			b.look(page, scheme, 360, 740)
			b.fits(page + " on a phone")
			b.reads(page + " on a phone")
		}
	}
	require.Len(t, backs, 2, "light and dark differ")
	require.Empty(t, b.complaints())
}

// With several groups the page shows each, and leadership of one can be handed over, without
// scripts too.
func TestGroups(t *testing.T) {
	if *running != "" {
		t.Skip("that example may have one group")
	}
	b := openBrowser(t, "-groups", "3")
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1200, 360} {
			b.look("cluster", scheme, width, 900)
			require.NotZero(t, eval[int](b, `[...document.querySelectorAll("details")].filter(d => d.open = true).length`))
			b.fits("cluster")
			b.reads("cluster")
		}
	}
	_, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	require.NoError(t, err)
	for late, text := time.Now().Add(patience), ""; !strings.Contains(text, "The chosen replica leads"); {
		require.True(t, time.Now().Before(late), "a busy replica may decline, but not for ever: %s", text)
		b.look("cluster", "light", 1200, 900)
		form := "details:last-of-type"
		b.run(
			chromedp.Click(form+" summary"), chromedp.SetValue(form+" [name=group]", "2"),
			chromedp.SendKeys(form+" [name=by]", "ann"), chromedp.SendKeys(form+" [name=reason]", "spread"),
			chromedp.Submit(form+" form"),
		)
		b.await("p[role=alert], p[role=status] + p[role=status]") // of the next page: it did not work, or it is done
		text, err = chromedp.Run(b.ctx, chromedp.TextContent("main"))
		require.NoError(t, err)
	}
}

func (b *browser) reads(page string) {
	b.t.Helper()
	worst := eval[struct {
		Ratio float64
		Where string
	}](b, contrast)
	require.GreaterOrEqual(b.t, worst.Ratio, 4.5, "%s: %s", page, worst.Where)
	require.Equal(b.t, 1, eval[int](b, `document.querySelectorAll("h1").length`), page)
	require.Equal(b.t, 1, eval[int](b, `document.querySelectorAll("main").length`), page)
	unlabelled := eval[[]string](b, `[...document.querySelectorAll("input:not([type=hidden]), select")].filter(e => !e.labels.length).map(e => e.outerHTML)`)
	require.Empty(b.t, unlabelled, page)
	uncaptioned := eval[int](b, `[...document.querySelectorAll("table")].filter(e => !e.caption || e.querySelector("th:not([scope])")).length`)
	require.Zero(b.t, uncaptioned, page)
}

// complaints are the errors that the browser noted: what the policy refused, too.
func (b *browser) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wrongs
}

// Everything but live changes can be read, searched and paged with scripts off, and a
// hold can be ended.
func TestWithoutJavaScript(t *testing.T) {
	b := openBrowser(t)
	_, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	require.NoError(t, err)
	text := func(selector string) string {
		s, err := chromedp.Run(b.ctx, chromedp.TextContent(selector))
		require.NoError(t, err, selector)
		return s
	}
	b.look("locks", "light", 1200, 800)
	require.Contains(t, text("main"), "gateway/acme")
	b.run(chromedp.Click(".pager a[rel=next]"), chromedp.WaitVisible(".pager a:not([rel])"))
	require.Contains(t, text("main"), "invoice/47")
	require.NotContains(t, text("main"), "gateway/acme")
	b.run(chromedp.SendKeys("#prefix", "invoice/4712"), chromedp.Submit("#prefix"), chromedp.WaitNotPresent(".pager"))
	b.run(chromedp.Click("tbody th a"), chromedp.WaitVisible("h1.name"))
	require.Contains(t, text("main"), "8 waiting")
	b.look("live", "light", 1200, 800)
	require.Contains(t, text("noscript"), "Live changes need it")

	b.look("lock?name=invoice/4750", "light", 1200, 800)
	b.run(
		chromedp.Click("details.danger summary"),
		chromedp.SendKeys("details.danger [name=by]", "ann"), chromedp.SendKeys("details.danger [name=reason]", "stuck"),
		chromedp.Submit("details.danger form"), chromedp.WaitVisible("[role=status]"),
	)
	require.Contains(t, text("main"), "The hold was ended")
	require.Contains(t, text("main"), "Nobody holds it")
	require.Empty(t, b.complaints())
}

// Changes come by themselves, a lost hold among them, and stop coming when paused.
func TestLiveChanges(t *testing.T) {
	b := openBrowser(t)
	b.look("live?prefix=task/", "light", 1200, 800)
	b.await("#feed li.lost")
	require.Equal(t, "live", eval[string](b, `document.getElementById("status").textContent`))
	require.Contains(t, eval[string](b, `document.querySelector("li.lost").textContent`), "watchdog")
	b.run(chromedp.Click("#pause"))
	require.Equal(t, "true", eval[string](b, `document.getElementById("pause").getAttribute("aria-pressed")`))
	b.run(chromedp.Click("#clear"))
	require.Zero(t, eval[int](b, `document.querySelectorAll("#feed li").length`))
	b.run(chromedp.Poll[chromedp.Void](`waiting.length > 2`, chromedp.WithPollingTimeout(patience)))
	require.Zero(t, eval[int](b, `document.querySelectorAll("#feed li").length`))
	b.run(chromedp.Click("#pause"))
	require.NotZero(t, eval[int](b, `document.querySelectorAll("#feed li").length`))
	require.Empty(t, b.complaints())
}

func (b *browser) await(selector string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeoutCause(b.ctx, patience, errors.New("waited for "+selector))
	defer cancel()
	require.NoError(b.t, chromedp.Do(ctx, chromedp.WaitVisible(selector)))
}

// With -screenshots it draws the README's pictures.
func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("-screenshots says where to")
	}
	b := openBrowser(t)
	total := 0
	for _, s := range []struct {
		file, page, scheme string
		width, height      int64
		isLive             bool
	}{
		{"dashboard-cluster", "cluster", "light", 1120, 480, false},
		{"dashboard-locks", "locks?limit=14", "light", 1120, 800, false},
		{"dashboard-lock", "lock?name=invoice/4712", "dark", 1120, 830, false},
		{"dashboard-live", "live?prefix=task/", "light", 1120, 640, true},
		{"dashboard-phone", "lock?name=invoice/4712", "dark", 390, 820, false},
	} {
		b.look(s.page, s.scheme, s.width, s.height)
		if s.isLive {
			b.await("#feed li:nth-child(12)")
			b.await("#feed li.lost:nth-child(-n+9)")
			b.run(chromedp.Click("#pause"))
		}
		png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
		require.NoError(t, err)
		small, err := shrink(png)
		require.NoError(t, err)
		total += len(small)
		require.NoError(t, os.WriteFile(filepath.Join(*screenshots, s.file+".png"), small, 0o644))
		fmt.Println(s.file, len(png), len(small))
	}
	require.Less(t, total, 300_000)
}
