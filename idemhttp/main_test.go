package idemhttp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testpg"
	"github.com/idem-go/idem/internal/testredis"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(shopEnv) != "" {
		os.Exit(runShop())
	}
	code := m.Run()
	testpg.Stop()
	testredis.StopShared()
	os.Exit(testenv.Leaks(code))
}

func newStore(t testing.TB, b idem.Backend, opts *idem.Options) *idem.Store {
	t.Helper()
	s, err := idem.New(b, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A fixture is a server whose handler is protected, on a backend in memory.
type fixture struct {
	t       testing.TB
	backend *memory.Backend
	store   *idem.Store
	url     string
	client  *http.Client
	runs    atomic.Int64 // of the handler
	log     log
}

// newFixture starts a server. The handler's runs are counted.
func newFixture(t testing.TB, opts *idemhttp.Options, handler http.HandlerFunc) *fixture {
	t.Helper()
	return newFixtureOn(t, nil, opts, handler)
}

func newFixtureOn(t testing.TB, storeOpts *idem.Options, opts *idemhttp.Options, handler http.HandlerFunc) *fixture {
	t.Helper()
	f := &fixture{t: t, backend: memory.New()}
	f.store = newStore(t, f.backend, storeOpts)
	f.serve(f.middleware(opts)(f.count(handler)))
	return f
}

// middleware returns the Middleware with the fixture's log.
func (f *fixture) middleware(opts *idemhttp.Options) func(http.Handler) http.Handler {
	o := idemhttp.Options{}
	if opts != nil {
		o = *opts
	}
	o.Log = newLog(&f.log)
	return idemhttp.Middleware(f.store, &o)
}

func (f *fixture) count(handler http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.runs.Add(1)
		handler(w, r)
	})
}

func (f *fixture) serve(h http.Handler) {
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.Start()
	f.url, f.client = srv.URL, srv.Client()
	f.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	f.t.Cleanup(srv.Close)
}

// A log is what a handler of slog has written.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// An answer is a response that has been read.
type answer struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
}

// reason is that of a problem, and "" for everything else.
func (a answer) reason() string {
	var p struct{ Reason string }
	if a.header.Get("Content-Type") != "application/problem+json" {
		return ""
	}
	_ = json.Unmarshal([]byte(a.body), &p)
	return p.Reason
}

func (a answer) replayed() bool { return a.header.Get(idemhttp.ReplayedHeader) == "true" }

func (a answer) String() string {
	return fmt.Sprintf("%d %v %q", a.status, a.header, a.body[:min(len(a.body), 300)])
}

// request returns a POST. A header line is "Name: value".
func (f *fixture) request(method, path, body string, lines ...string) *http.Request {
	f.t.Helper()
	req, err := http.NewRequest(method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Add(name, value)
	}
	return req
}

func (f *fixture) send(req *http.Request) answer {
	f.t.Helper()
	a, err := do(f.client, req)
	if err != nil {
		f.t.Fatal(err)
	}
	return a
}

func do(client *http.Client, req *http.Request) (answer, error) {
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, resp.Trailer, string(body)}, err
}

// post sends a POST with a key.
func (f *fixture) post(path, key, body string, lines ...string) answer {
	f.t.Helper()
	return f.send(f.request("POST", path, body, append(lines, `Idempotency-Key: "`+key+`"`)...))
}

// wantRuns fails the test if the handler has not run n times.
func (f *fixture) wantRuns(n int64) {
	f.t.Helper()
	if got := f.runs.Load(); got != n {
		f.t.Errorf("the handler ran %d times, want %d", got, n)
	}
}

// waitFor waits until the record under key has a status.
func (f *fixture) waitFor(key string, status idem.Status) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for {
		r, err := f.store.Lookup(ctx, key)
		if err != nil {
			f.t.Fatalf("%q did not become %v: %v", key, status, err)
		}
		if r.Status == status {
			return
		}
		_ = f.backend.Watch(ctx, key, r.Token)
	}
}

// stored returns what is stored.
func (f *fixture) stored() []idem.Entry {
	f.t.Helper()
	entries, _, err := f.backend.List(context.Background(), idem.Query{Limit: 1000})
	if err != nil {
		f.t.Fatal(err)
	}
	return entries
}

// dump returns all that is stored as text.
func (f *fixture) dump() string {
	var b strings.Builder
	for _, e := range f.stored() {
		fmt.Fprintf(&b, "%q %d %q %q %q\n", e.Key, e.Record.Result.Code, e.Record.Result.Meta, e.Record.Result.Body, e.Record.Checkpoint)
	}
	return b.String()
}

// created answers 201 with its own number.
func created() http.HandlerFunc {
	var n atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "created %d", n.Add(1))
	}
}

// A faulty Backend fails where fail says so.
type faulty struct {
	idem.Backend
	fail func(old string, new idem.Record) error // of a Swap, before it
}

// isExtension reports whether a Swap gives a running claim a new lease.
func isExtension(old string, new idem.Record) bool {
	attempt, _, _ := strings.Cut(new.Token, ".")
	return new.Status == idem.InProgress && strings.HasPrefix(old, attempt+".")
}

func (b *faulty) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	if err := b.fail(old, new); err != nil {
		return idem.Record{}, err
	}
	return b.Backend.Swap(ctx, key, old, new)
}

var discard = slog.New(slog.DiscardHandler)

func newLog(l *log) *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

var errDown = errors.New("connection refused")
