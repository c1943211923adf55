// Package browsertest drives the page of the shop in a browser. It is a module of
// its own, so that nobody else needs what drives browsers.
package browsertest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/idem-go/idem/internal/testenv"
)

// program is the shop, built once for all tests.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "idem-shop-")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "shop")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = ".."
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	code := 1
	if build.Run() == nil {
		code = m.Run()
	}
	if shared.stop != nil {
		shared.stop()
	}
	_ = os.RemoveAll(dir)
	os.Exit(testenv.Leaks(code))
}

// within is how long anything may take that is waited for.
const within = 30 * time.Second

// A shop is a running program with a store of its own.
type shop struct {
	t     *testing.T
	store string
	addr  string
	url   string
	cmd   *exec.Cmd
}

func openShop(t *testing.T, packing time.Duration) *shop {
	t.Helper()
	s := &shop{t: t, store: "bolt://" + filepath.Join(testenv.Dir(t), "shop.db"), addr: "127.0.0.1:0"}
	s.start(packing)
	t.Cleanup(func() {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		if err := s.cmd.Wait(); err != nil {
			t.Errorf("the shop: %v", err)
		}
	})
	return s
}

// start starts the program, again at the address where it was.
func (s *shop) start(packing time.Duration) {
	s.t.Helper()
	s.cmd = exec.Command(program, "-addr", s.addr, "-store", s.store, "-packing", packing.String())
	s.cmd.Stderr = s.t.Output()
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		s.t.Fatalf("the shop says %q: %v", line, err)
	}
	_, addr, _ := strings.Cut(strings.TrimSpace(line), "http://")
	s.addr = strings.TrimSuffix(addr, "/")
	s.url = "http://" + s.addr
}

// kill is kill -9.
func (s *shop) kill() {
	s.t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	_ = s.cmd.Wait()
}

// until waits until the state that the shop shows has a text in it.
func (s *shop) until(text string) {
	s.t.Helper()
	deadline := time.After(within)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(s.get("/state"), text) {
		select {
		case <-deadline:
			s.t.Fatalf("the state does not come to have %s", text)
		case <-tick.C:
		}
	}
}

// get returns what is at a path.
func (s *shop) get(path string) string {
	s.t.Helper()
	resp, err := http.Get(s.url + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s %v", path, resp.Status, err)
	}
	return string(body)
}

// wantOrders fails the test unless the books, asked without the page, have n
// orders.
func (s *shop) wantOrders(n int) {
	s.t.Helper()
	body := s.get("/api/orders")
	var books struct{ Orders int }
	if err := json.Unmarshal([]byte(body), &books); err != nil {
		s.t.Fatal(err)
	}
	if books.Orders != n {
		s.t.Errorf("the books have %d orders, want %d: %s", books.Orders, n, body)
	}
}

// A browser is a window of Chromium that shows the shop.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex
	faults []string // what the page has complained about
}

// shared is the Chromium that most tests have windows of.
var shared struct {
	sync.Mutex
	ctx  context.Context
	stop func()
}

// startChromium starts a Chromium, with options of chromedp besides. The caller
// stops it.
func startChromium(t *testing.T, more ...chromedp.ExecAllocatorOption) (ctx context.Context, stop func()) {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		testenv.Skip(t, "chromium", "there is no chromium, chromium-browser or google-chrome in the path")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WindowSize(1280, 1000))
	allocated, stopAll := chromedp.NewExecAllocator(context.Background(), append(opts, more...)...)
	ctx, cancel := chromedp.NewContext(allocated)
	stop = func() {
		cancel()
		stopAll()
	}
	if err := chromedp.Do(ctx); err != nil {
		stop()
		t.Fatalf("chromium does not start: %v", err)
	}
	return ctx, stop
}

// open opens a window in which script runs or not. It shares nothing with the
// windows of other tests.
func (s *shop) open(script bool) *browser {
	s.t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.ctx == nil {
		shared.ctx, shared.stop = startChromium(s.t)
	}
	return s.openIn(shared.ctx, script, chromedp.WithNewBrowserContext())
}

// openIn opens a window of a Chromium.
func (s *shop) openIn(chromium context.Context, script bool, opts ...chromedp.ContextOption) *browser {
	t := s.t
	t.Helper()
	ctx, cancel := chromedp.NewContext(chromium, opts...)
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, b.hear); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.complain)
	if !script {
		if _, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
			t.Fatal(err)
		}
	}
	b.do(chromedp.Navigate(s.url + "/"))
	return b
}

// hear notes what the page complains about: exceptions, and what the policy for
// its content forbids. That an answer is no success or is cut off is noted by the
// browser as well, and is what is tested.
func (b *browser) hear(event any) {
	fault := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		fault = "exception: " + e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			fault += " " + e.ExceptionDetails.Exception.Description
		}
	case *log.EventEntryAdded:
		if e.Entry.Source != log.EntrySourceNetwork {
			fault = fmt.Sprintf("%s: %s", e.Entry.Source, e.Entry.Text)
		}
	}
	if fault != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.faults = append(b.faults, fault)
	}
}

func (b *browser) complain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, fault := range b.faults {
		b.t.Errorf("the page complains: %s", fault)
	}
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, within)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("%v; the page is:\n%s", err, b.text())
	}
}

// back goes back to the page at a path, which may have been kept as it was: then it
// is not loaded.
func (b *browser) back(path string) {
	b.t.Helper()
	history, err := chromedp.Run(b.ctx, chromedp.NavigationEntries())
	if err != nil {
		b.t.Fatal(err)
	}
	to := history.Entries[history.CurrentIndex-1].ID
	if _, err := chromedp.Call(b.ctx, page.NavigateToHistoryEntry, page.NavigateToHistoryEntryParams{EntryID: to}); err != nil {
		b.t.Fatal(err)
	}
	b.until(fmt.Sprintf(`location.pathname + location.search === %q && document.readyState === 'complete'`, path))
}

// text returns what can be read on the page.
func (b *browser) text() string {
	text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`document.body.innerText`))
	if err != nil {
		return err.Error()
	}
	return text
}

func (b *browser) click(selector string) {
	b.t.Helper()
	b.do(chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible))
}

// ask returns what an expression is in the page.
func ask[T any](b *browser, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, within)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits until an expression is true in the page. It survives that another
// page comes in between.
func (b *browser) until(expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, within)
	defer cancel()
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](expression))
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			b.t.Fatalf("%s did not come true (%v); the page is:\n%s", expression, err, b.text())
		case <-tick.C:
		}
	}
}

// untilCount waits until the page shows n orders, and none in flight.
func (b *browser) untilCount(n int) {
	b.t.Helper()
	b.until(fmt.Sprintf(`document.querySelector('#count')?.textContent === '%d' && document.querySelector('#flying')?.textContent === '0'`, n))
}

// counts is how many requests of each outcome the page shows, such as "ran:1 replayed:1".
const counts = `(() => {
	const n = {};
	for (const tr of document.querySelectorAll('#outcomes tbody tr')) n[tr.dataset.outcome] = (n[tr.dataset.outcome] || 0) + 1;
	return Object.keys(n).sort().map((k) => k + ':' + n[k]).join(' ');
})()`

func (b *browser) untilOutcomes(want string) {
	b.t.Helper()
	b.until(fmt.Sprintf("%s === '%s'", counts, want))
}

// sent returns what the page says that the browser has got: the lines of its list.
func (b *browser) sent() []string {
	b.t.Helper()
	return strings.Split(ask[string](b, `[...document.querySelectorAll('#sent li')].map((li) => [...li.querySelectorAll('.tag')].map((t) => t.textContent).join(', ')).join('\n')`), "\n")
}

// trial presses one of the buttons and waits until what it does has ended.
func (b *browser) trial(id string) {
	b.t.Helper()
	b.click("#" + id)
	b.until(`document.querySelector('#trials').getAttribute('aria-busy') === 'false'`)
}
