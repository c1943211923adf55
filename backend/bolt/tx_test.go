package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

var ledger = []byte("ledger")

// count adds one under key in the business data and returns how often that was
// done.
func count(tx *bbolt.Tx, key string) (int, error) {
	b, err := tx.CreateBucketIfNotExists(ledger)
	if err != nil {
		return 0, err
	}
	n := append(b.Get([]byte(key)), 'x')
	return len(n), b.Put([]byte(key), bytes.Clone(n))
}

// counted returns how often count has committed.
func counted(t testing.TB, b *Backend, key string) (n int) {
	t.Helper()
	err := b.view(t.Context(), func(table table) error {
		if l := table.tx.Bucket(ledger); l != nil {
			n = len(l.Get([]byte(key)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// transactors are the ways to have a backend with transactions.
func transactors(t *testing.T, test func(t *testing.T, b *Backend)) {
	t.Helper()
	t.Run("New", func(t *testing.T) { test(t, newOn(t, openDB(t, testPath(t)), nil)) })
	t.Run("Open", func(t *testing.T) { test(t, open(t, testPath(t), nil)) })
	t.Run("Shared", func(t *testing.T) {
		test(t, open(t, testPath(t), &Options{Shared: true, OpenTimeout: 20 * time.Second}))
	})
}

func TestDo(t *testing.T) {
	transactors(t, func(t *testing.T, b *Backend) {
		store := newStore(t, b, nil).Scoped("tenant")
		charge := func(_ context.Context, tx *bbolt.Tx, c *idem.Claim) (idem.Result, error) {
			n, err := count(tx, c.Key)
			return idem.Result{Code: n, Body: []byte("receipt")}, err
		}
		for i := range 3 {
			out, err := b.Do(t.Context(), store, "k", fp, charge)
			if err != nil || out.Replayed != (i > 0) || out.Result.Code != 1 || string(out.Result.Body) != "receipt" || out.Attempt != 1 {
				t.Fatalf("Do %d = %+v, %v", i, out, err)
			}
		}
		if _, err := b.Do(t.Context(), store, "k", idem.FingerprintOf([]byte("other")), charge); !errors.Is(err, idem.ErrMismatch) {
			t.Errorf("Do with another payload: %v", err)
		}
		if out, err := store.Do(t.Context(), "k", fp, func(context.Context, *idem.Claim) (idem.Result, error) {
			return idem.Result{}, errors.New("the function ran")
		}); err != nil || !out.Replayed {
			t.Errorf("the Store's own Do: %+v, %v", out, err)
		}
		if n := counted(t, b, "k"); n != 1 {
			t.Errorf("the change was made %d times", n)
		}
	})
}

// Duplicates at once: one runs, the others wait for it and get its result.
func TestDoConcurrently(t *testing.T) {
	transactors(t, func(t *testing.T, b *Backend) {
		store := newStore(t, b, nil)
		for key := range 5 {
			var ran, replayed atomic.Int64
			var wg sync.WaitGroup
			for range 30 {
				wg.Go(func() {
					out, err := b.Do(t.Context(), store, fmt.Sprint(key), fp, func(_ context.Context, tx *bbolt.Tx, c *idem.Claim) (idem.Result, error) {
						ran.Add(1)
						n, err := count(tx, c.Key)
						return idem.Result{Code: n}, err
					})
					if err != nil || out.Result.Code != 1 {
						t.Errorf("Do = %+v, %v", out, err)
					}
					if out.Replayed {
						replayed.Add(1)
					}
				})
			}
			wg.Wait()
			if ran.Load() != 1 || replayed.Load() != 29 {
				t.Errorf("%d ran, %d were replayed", ran.Load(), replayed.Load())
			}
			if n := counted(t, b, fmt.Sprint(key)); n != 1 {
				t.Errorf("the change was made %d times", n)
			}
		}
	})
}

// An error, a panic or a Goexit leaves no trace, and the attempt does not count.
func TestDoRollsBack(t *testing.T) {
	transactors(t, func(t *testing.T, b *Backend) {
		store := newStore(t, b, nil)
		declined := errors.New("declined")
		do := func(fn func() (idem.Result, error)) (idem.Outcome, error) {
			return b.Do(t.Context(), store, "k", fp, func(_ context.Context, tx *bbolt.Tx, c *idem.Claim) (idem.Result, error) {
				if _, err := count(tx, "k"); err != nil {
					return idem.Result{}, err
				}
				return fn()
			})
		}
		if _, err := do(func() (idem.Result, error) { return idem.Result{}, declined }); err != declined {
			t.Errorf("Do = %v, want the function's error as it is", err)
		}
		if _, err := do(func() (idem.Result, error) { return idem.Result{}, idem.NoEffect(declined) }); !errors.Is(err, declined) {
			t.Errorf("Do = %v, want the function's error", err)
		}
		if _, err := do(func() (idem.Result, error) { return idem.Result{}, fmt.Errorf("inner: %w", idem.ErrInProgress) }); !errors.Is(err, idem.ErrInProgress) {
			t.Errorf("Do = %v, want the function's error", err)
		}
		func() {
			defer func() {
				if p := recover(); p != declined {
					t.Errorf("the panic was %v", p)
				}
			}()
			_, _ = do(func() (idem.Result, error) { panic(declined) })
		}()
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = do(func() (idem.Result, error) { runtime.Goexit(); return idem.Result{}, nil })
		}()
		<-gone
		if r, err := store.Lookup(t.Context(), "k"); err != nil || r.Status != 0 {
			t.Errorf("a trace is left: %+v, %v", r, err)
		}
		if n := counted(t, b, "k"); n != 0 {
			t.Errorf("the change was made %d times", n)
		}
		out, err := do(func() (idem.Result, error) { return idem.Result{Code: 4}, nil })
		if err != nil || out.Attempt != 1 || out.Result.Code != 4 {
			t.Errorf("Do at last = %+v, %v; want the first attempt", out, err)
		}
		checkFile(t, b)
	})
}

// A claim outside of a transaction is waited for, while the file is free.
func TestDoWaitsForOtherAttempt(t *testing.T) {
	transactors(t, func(t *testing.T, b *Backend) {
		store := newStore(t, b, nil)
		c, _, err := store.Begin(t.Context(), "k", fp)
		if err != nil {
			t.Fatal(err)
		}
		result := make(chan idem.Outcome)
		go func() {
			out, err := b.Do(t.Context(), store, "k", fp, func(context.Context, *bbolt.Tx, *idem.Claim) (idem.Result, error) {
				t.Error("the function runs beside another attempt")
				return idem.Result{}, nil
			})
			if err != nil {
				t.Error(err)
			}
			result <- out
		}()
		swap(t, b, "free", "", running("a.1"))
		if err := store.Complete(t.Context(), c, idem.Result{Code: 6}); err != nil {
			t.Fatal(err)
		}
		if out := <-result; !out.Replayed || out.Result.Code != 6 {
			t.Errorf("Do = %+v", out)
		}
		// It gives up when its context ends, and at once if it is not to wait.
		if _, _, err := store.Begin(t.Context(), "k2", fp); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := b.Do(ctx, store, "k2", fp, neverInTx(t)); !errors.Is(err, idem.ErrInProgress) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Do = %v; want ErrInProgress and the context's error", err)
		}
		noWait := newStore(t, b, &idem.Options{NoWait: true})
		if _, err := b.Do(t.Context(), noWait, "k2", fp, neverInTx(t)); !errors.Is(err, idem.ErrInProgress) {
			t.Errorf("Do with NoWait = %v", err)
		}
	})
}

// RS-4: the caller goes away while the function runs; what it has done commits.
func TestRS4_DoWithoutCaller(t *testing.T) {
	b := newOn(t, openDB(t, testPath(t)), nil)
	store := newStore(t, b, nil)
	ctx, cancel := context.WithCancel(t.Context())
	out, err := b.Do(ctx, store, "k", fp, func(_ context.Context, tx *bbolt.Tx, _ *idem.Claim) (idem.Result, error) {
		cancel()
		n, err := count(tx, "k")
		return idem.Result{Code: n}, err
	})
	if err != nil || out.Result.Code != 1 || counted(t, b, "k") != 1 {
		t.Errorf("Do = %+v, %v, %d changes", out, err, counted(t, b, "k"))
	}
	if _, err := b.Do(ctx, store, "k3", fp, neverInTx(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("Do with a context that is done: %v", err)
	}
}

// Claim first, complete in the business transaction: an attempt that has lost its
// claim rolls back.
func TestCompleteInTransaction(t *testing.T) {
	machine := newFakeClock()
	db := openDB(t, testPath(t))
	b := machine.use(newOn(t, db, nil))
	store := newStore(t, b, nil)
	complete := func(c *idem.Claim, code int) error {
		return db.Update(func(tx *bbolt.Tx) error {
			if _, err := count(tx, "k"); err != nil {
				return err
			}
			return store.With(b.WithTx(tx)).Complete(t.Context(), c, idem.Result{Code: code})
		})
	}
	first, _, err := store.Begin(t.Context(), "k", fp)
	if err != nil {
		t.Fatal(err)
	}
	machine.pass(time.Minute)
	second, _, err := store.Begin(t.Context(), "k", fp)
	if err != nil || !second.Takeover {
		t.Fatal(second, err)
	}
	if err := complete(first, 1); !errors.Is(err, idem.ErrLost) {
		t.Errorf("the first attempt completes: %v, want ErrLost", err)
	}
	if err := complete(second, 2); err != nil {
		t.Errorf("the second attempt completes: %v", err)
	}
	if _, done, err := store.Begin(t.Context(), "k", fp); err != nil || done == nil || done.Result.Code != 2 {
		t.Errorf("replay: %+v, %v", done, err)
	}
	if n := counted(t, b, "k"); n != 1 {
		t.Errorf("the change was made %d times", n)
	}
}

// A transaction sees its own writes, through any handle; others see them after the
// commit, and never after a rollback.
func TestWithTxVisibility(t *testing.T) {
	db := openDB(t, testPath(t))
	a, b := newOn(t, db, nil), newOn(t, db, nil)
	swap(t, a, "old", "", completed("o.1", 1))
	rollback := errors.New("roll back")
	for _, end := range []error{rollback, nil} {
		err := db.Update(func(tx *bbolt.Tx) error {
			ta, tb := a.WithTx(tx), b.WithTx(tx)
			swap(t, ta, "x", "", running("x.1"))
			swap(t, tb, "y", "", running("y.1"))
			swap(t, tb, "x", "x.1", completed("x.2", 3))
			swap(t, ta, "y", "y.1", completed("y.2", 3))
			swap(t, a.WithTx(tx), "old", "o.1", completed("o.2", 3))
			for _, h := range []*Backend{ta, tb, a.WithTx(tx)} {
				for key, token := range map[string]string{"x": "x.2", "y": "y.2", "old": "o.2"} {
					if r := get(t, h, key); r.Token != token {
						t.Errorf("in the transaction %q has the token %q", key, r.Token)
					}
				}
				if es, _, err := h.List(t.Context(), idem.Query{}); err != nil || len(es) != 3 {
					t.Errorf("in the transaction List = %v, %v", es, err)
				}
			}
			// Others do not see them yet. (A read transaction of the same goroutine
			// is allowed as long as it ends before the next write.)
			for _, h := range []*Backend{a, b} {
				if r := get(t, h, "x"); r.Token != "" {
					t.Errorf("before the commit others see %+v", r)
				}
			}
			if got, err := ta.Swap(t.Context(), "x", "", running("z.1")); err != nil || got.Token != "x.2" {
				t.Errorf("a Swap that does not swap: %+v, %v", got, err)
			}
			return end
		})
		if err != end {
			t.Fatal(err)
		}
		want := map[string]string{"x": "x.2", "y": "y.2", "old": "o.2"}
		if end != nil {
			want = map[string]string{"x": "", "y": "", "old": "o.1"}
		}
		for _, h := range []*Backend{a, b, newOn(t, db, nil)} {
			for key, token := range want {
				if r := get(t, h, key); r.Token != token {
					t.Errorf("after the end %v %q has the token %q, want %q", end, key, r.Token, token)
				}
			}
			checkFile(t, h)
		}
	}
}

// A read transaction that began before other commits still has its own state.
func TestWithTxOldView(t *testing.T) {
	// With room for all of it, so that the file need not be mapped anew.
	db, err := bbolt.Open(testPath(t), 0o600, &bbolt.Options{InitialMmapSize: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	b := newOn(t, db, nil)
	fill(t, b, 50, numbered, func(i int) idem.Record { return running(fmt.Sprintf("t%d.1", i)) })
	tx, err := db.Begin(false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	for i := range 25 {
		swap(t, b, numbered(i), fmt.Sprintf("t%d.1", i), completed("new.1", 1))
	}
	swap(t, b, "more", "", running("m.1"))
	old := b.WithTx(tx)
	for i := range 50 {
		if r := get(t, old, numbered(i)); r.Token != fmt.Sprintf("t%d.1", i) {
			t.Fatalf("%s: %+v", numbered(i), r)
		}
	}
	if r := get(t, old, "more"); r.Token != "" {
		t.Errorf("a record of the future: %+v", r)
	}
	if _, err := old.Swap(t.Context(), "free", "", running("a.1")); !definite(err) {
		t.Errorf("Swap in a read transaction: %v", err)
	}
	if got, err := old.Swap(t.Context(), numbered(1), "", running("a.1")); err != nil || got.Token != "t1.1" {
		t.Errorf("Swap that does not swap in a read transaction: %+v, %v", got, err)
	}
}

func TestBoundBackendRefuses(t *testing.T) {
	db := openDB(t, testPath(t))
	b := newOn(t, db, nil)
	tx, err := db.Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	bound := b.WithTx(tx)
	if err := bound.Watch(t.Context(), "k", "t"); err == nil {
		t.Error("Watch in a transaction: no error")
	}
	if err := bound.Close(); err == nil {
		t.Error("Close of a bound backend: no error")
	}
	if _, err := bound.Do(t.Context(), newStore(t, b, nil), "k", fp, neverInTx(t)); err == nil {
		t.Error("Do of a bound backend: no error")
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Do(t.Context(), newStore(t, b, nil), "k", fp, nil); !errors.Is(err, idem.ErrOptions) {
		t.Errorf("Do without a function: %v", err)
	}
	if _, err := bound.Get(t.Context(), "k"); !errors.Is(err, errTxClosed) {
		t.Errorf("Get after the transaction: %v", err)
	}
	if _, err := bound.Swap(t.Context(), "k", "", running("a.1")); !errors.Is(err, errTxClosed) || !definite(err) {
		t.Errorf("Swap after the transaction: %v", err)
	}
	if _, _, err := bound.List(t.Context(), idem.Query{}); !errors.Is(err, errTxClosed) {
		t.Errorf("List after the transaction: %v", err)
	}
	if _, err := bound.Sweep(t.Context(), 1); !errors.Is(err, errTxClosed) {
		t.Errorf("Sweep after the transaction: %v", err)
	}
}

// BB-3: what was read does not change when the file does, and what is given in is
// not shared.
func TestBB3_NothingIsShared(t *testing.T) {
	machine := newFakeClock()
	b := machine.use(open(t, testPath(t), nil))
	rnd := testenv.Rand(t)
	body := make([]byte, 64<<10)
	for i := range body {
		body[i] = byte(rnd.Uint32())
	}
	given := completed("a.1", 0)
	given.Result.Body = bytes.Clone(body)
	given.Result.Meta = map[string]string{"name": "value"}
	swap(t, b, "k", "", given)
	clear(given.Result.Body)
	given.Result.Meta["name"] = "changed"
	first, second := get(t, b, "k"), get(t, b, "k")
	clear(second.Result.Body)
	second.Result.Meta["name"] = "changed"
	if third := get(t, b, "k"); !bytes.Equal(third.Result.Body, body) || third.Result.Meta["name"] != "value" {
		t.Error("changing a result changes what is stored")
	}
	machine.pass(24 * time.Hour)
	if n, err := b.Sweep(t.Context(), 10); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	for i := range 50 { // 50 MiB: the file is mapped anew several times
		swap(t, b, numbered(i), "", completed("b.1", 1<<20))
	}
	if !bytes.Equal(first.Result.Body, body) {
		t.Error("a result has changed with the file")
	}
}

// PE-8: keys of every kind and length.
func TestPE8_Keys(t *testing.T) {
	b := newOn(t, openDB(t, testPath(t)), nil)
	long := string(bytes.Repeat([]byte("k"), idem.MaxStoredKey))
	keys := []string{"k", "K", "k ", " k", "\u00e9", "e\u0301", "ß", "ss", "%", "*", "a\x1fb", "head", "idem", long, long[1:]}
	for i, key := range keys {
		swap(t, b, key, "", completed(fmt.Sprintf("t%d.1", i), 1))
	}
	for i, key := range keys {
		if r := get(t, b, key); r.Token != fmt.Sprintf("t%d.1", i) {
			t.Errorf("%q: %+v", key, r)
		}
	}
	if _, err := b.Swap(t.Context(), long+"k", "", completed("a.1", 1)); !errors.Is(err, idem.ErrKey) {
		t.Errorf("a longer key: %v", err)
	}
}
