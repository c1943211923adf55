package janitor_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testpg"
	"github.com/idem-go/idem/internal/testredis"
	"github.com/idem-go/idem/janitor"
)

func TestMain(m *testing.M) {
	goredis.SetLogger(silent{})
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	code := m.Run()
	testpg.Stop()
	testredis.StopShared()
	os.Exit(testenv.Leaks(code))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

var payload = idem.FingerprintOf([]byte("payload"))

// hooked is the memory backend with Sweep, List and Swap replaced where a test
// wants that.
type hooked struct {
	*memory.Backend
	sweep func(ctx context.Context, limit int) (int, error)
	list  func(ctx context.Context, q idem.Query) ([]idem.Entry, string, error)
	swap  func(ctx context.Context, key, old string, new idem.Record) (idem.Record, error)
}

func (b *hooked) Sweep(ctx context.Context, limit int) (int, error) {
	if b.sweep != nil {
		return b.sweep(ctx, limit)
	}
	return b.Backend.Sweep(ctx, limit)
}

func (b *hooked) List(ctx context.Context, q idem.Query) ([]idem.Entry, string, error) {
	if b.list != nil {
		return b.list(ctx, q)
	}
	return b.Backend.List(ctx, q)
}

func (b *hooked) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	if b.swap != nil {
		return b.swap(ctx, key, old, new)
	}
	return b.Backend.Swap(ctx, key, old, new)
}

func open(t testing.TB, b idem.Backend, opts *idem.Options) *idem.Store {
	t.Helper()
	s, err := idem.New(b, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// lapse leaves an attempt under key whose outcome is unknown.
func lapse(t testing.TB, s *idem.Store, key, checkpoint string) {
	t.Helper()
	ctx := context.Background()
	c, done, err := s.Begin(ctx, key, payload)
	if c == nil {
		t.Fatalf("Begin(%q) = nil, %v, %v; want a claim", key, done, err)
	}
	if err := s.Checkpoint(ctx, c, []byte(checkpoint)); err != nil {
		t.Fatal(err)
	}
	if err := s.Abandon(ctx, c); err != nil {
		t.Fatal(err)
	}
}

// complete leaves a completed record under key.
func complete(t testing.TB, s *idem.Store, key string) {
	t.Helper()
	_, err := s.Do(context.Background(), key, payload, func(context.Context, *idem.Claim) (idem.Result, error) {
		return idem.Result{Code: 200}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func lookup(t testing.TB, s *idem.Store, key string) idem.Record {
	t.Helper()
	r, err := s.Lookup(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// reports collects the reports of janitors.
type reports struct {
	mu  sync.Mutex
	all []janitor.Report
}

func (r *reports) add(_ context.Context, report janitor.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, report)
}

func (r *reports) list() []janitor.Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

func (r *reports) last() janitor.Report {
	all := r.list()
	return all[len(all)-1]
}

// A log is what a janitor has logged.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *log) logger(replace func([]string, slog.Attr) slog.Attr) *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: replace}))
}

// about reports whether got is want, give or take a quarter.
func about(got, want time.Duration) bool {
	return got >= want-want/4 && got <= want+want/4
}
