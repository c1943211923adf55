package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

func TestMain(m *testing.M) {
	if job := os.Getenv(childEnv); job != "" {
		os.Exit(runChild(job))
	}
	goleak.VerifyTestMain(m)
}

// A fakeClock is the machine's clock, which a test can move.
type fakeClock struct {
	real func() (wall, mono int64)

	mu         sync.Mutex
	wall, mono time.Duration // added to the real readings
}

func newFakeClock() *fakeClock { return &fakeClock{real: systemClock()} }

func (f *fakeClock) now() (wall, mono int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wall, mono = f.real()
	return wall + int64(f.wall), mono + int64(f.mono)
}

// pass lets time pass.
func (f *fakeClock) pass(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wall += d
	f.mono += d
}

// step sets the wall clock, ahead or back.
func (f *fakeClock) step(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wall += d
}

// use makes b go by the clock.
func (f *fakeClock) use(b *Backend) *Backend {
	b.clock.mu.Lock()
	defer b.clock.mu.Unlock()
	// What the clock has read so far was by another monotonic clock.
	_, mono := f.now()
	b.clock.now, b.clock.at = f.now, mono
	return b
}

// testPath returns the path of a file that is not there yet.
func testPath(t testing.TB) string { return filepath.Join(testenv.Dir(t), "idem.db") }

// open opens a file and closes it after the test.
func open(t testing.TB, path string, opts *Options) *Backend {
	t.Helper()
	b, err := Open(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// openDB opens a file as a program does that uses bbolt itself.
func openDB(t testing.TB, path string) *bbolt.DB {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func newOn(t testing.TB, db *bbolt.DB, opts *Options) *Backend {
	t.Helper()
	b, err := New(db, opts)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newStore(t testing.TB, b idem.Backend, opts *idem.Options) *idem.Store {
	t.Helper()
	s, err := idem.New(b, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// within returns a context that bounds what could hang.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// fp is the fingerprint of most tests.
var fp = idem.FingerprintOf([]byte("payload"))

// completed returns a completed record with a body of n bytes.
func completed(token string, n int) idem.Record {
	return idem.Record{
		Token: token, Status: idem.Completed, Attempt: 1, Fence: 1, Fingerprint: fp,
		Result: idem.Result{Code: 201, Body: make([]byte, n)}, TTL: 24 * time.Hour,
	}
}

// running returns a record in progress.
func running(token string) idem.Record {
	return idem.Record{Token: token, Status: idem.InProgress, Attempt: 1, Fence: 1, Fingerprint: fp, Lease: time.Minute, TTL: 24 * time.Hour}
}

// swap stores r and fails the test if that does not succeed.
func swap(t testing.TB, b idem.Backend, key, old string, r idem.Record) {
	t.Helper()
	got, err := b.Swap(t.Context(), key, old, r)
	if err != nil || got.Token != r.Token {
		t.Fatalf("Swap(%q, %q, token %q): token %q, %v", key, old, r.Token, got.Token, err)
	}
}

// get returns the record under key and fails the test if that does not succeed.
func get(t testing.TB, b idem.Backend, key string) idem.Record {
	t.Helper()
	r, err := b.Get(t.Context(), key)
	if err != nil {
		t.Fatalf("Get(%q): %v", key, err)
	}
	return r
}

// neverInTx is a function for Do that must not run.
func neverInTx(t testing.TB) func(context.Context, *bbolt.Tx, *idem.Claim) (idem.Result, error) {
	return func(context.Context, *bbolt.Tx, *idem.Claim) (idem.Result, error) {
		t.Error("the function runs")
		return idem.Result{}, errors.New("the function ran")
	}
}

// definite reports whether a backend's error says that nothing has been applied.
func definite(err error) bool {
	return fmt.Sprintf("%T", err) == fmt.Sprintf("%T", idem.NoEffect(nil))
}
