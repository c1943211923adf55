package bolt

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

// queued waits until n writes are in the queue, or fails the test.
func queued(t testing.TB, b *Backend, n int) {
	t.Helper()
	ctx := within(t, 20*time.Second)
	for ctx.Err() == nil {
		b.writer.mu.Lock()
		have := len(b.writer.queue)
		b.writer.mu.Unlock()
		if have == n {
			return
		}
		time.Sleep(time.Millisecond) // between two looks
	}
	t.Fatalf("the queue has not got %d writes", n)
}

// RD-7: another part of the program holds bbolt's lock. Callers return when their
// contexts end, and what they have given up is not written later.
func TestRD7_LockedWriter(t *testing.T) {
	db := openDB(t, testPath(t))
	b := newOn(t, db, nil)
	swap(t, b, "done", "", completed("a.1", 10))
	store := newStore(t, b, nil)
	tx, err := db.Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			var err error
			switch i % 4 {
			case 0:
				_, err = b.Swap(ctx, fmt.Sprint(i), "", running("b.1"))
				if !definite(err) {
					t.Errorf("the error of a write that was never begun leaves its outcome open: %v", err)
				}
			case 1:
				_, _, err = store.Begin(ctx, fmt.Sprint(i), fp)
			case 2:
				_, err = b.Do(ctx, store, fmt.Sprint(i), fp, func(context.Context, *bbolt.Tx, *idem.Claim) (idem.Result, error) {
					t.Error("the function runs")
					return idem.Result{}, nil
				})
			case 3:
				_, err = b.Swap(ctx, "done", "x.1", running("c.1"))
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("call %d: %v, want the error of the context", i, err)
			}
		})
	}
	// Reading, and replaying, does not wait.
	if _, done, err := store.Begin(t.Context(), "done", fp); err != nil || done == nil {
		t.Errorf("Begin of a completed key: %+v, %v", done, err)
	}
	wg.Wait()
	prompt(t, start, 100*time.Millisecond, "giving up")
	queued(t, b, 0)
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	swap(t, b, "after", "", running("d.1")) // the writer works again
	for i := range 20 {
		if r := get(t, b, fmt.Sprint(i)); r.Token != "" {
			t.Errorf("call %d was given up, and its record is there: %+v", i, r)
		}
	}
}

// A caller that gives up while its batch is written returns at once; its record
// may come.
func TestGiveUpDuringCommit(t *testing.T) {
	b := open(t, testPath(t), nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	leave := errors.New("the client hung up")
	b.watchers.mu.Lock() // the commit does not come to its end
	result := make(chan error)
	go func() {
		_, err := b.Swap(ctx, "k", "", running("a.1"))
		result <- err
	}()
	for get(t, b, "k").Token == "" { // it has been written
		if t.Context().Err() != nil {
			t.Fatal("the record does not come")
		}
	}
	cancel(leave)
	if err := <-result; !errors.Is(err, context.Canceled) || errors.Is(err, leave) || definite(err) {
		t.Errorf("Swap = %v; want the context's error without its cause, and the outcome open", err)
	}
	b.watchers.mu.Unlock()
	swap(t, b, "after", "", running("b.1"))
}

// Writes that wait for each other's commit go into one transaction; a lone one
// waits for nobody.
func TestBatching(t *testing.T) {
	db := openDB(t, testPath(t))
	b := newOn(t, db, nil)
	commits := func() int {
		tx, err := db.Begin(false)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		return tx.ID()
	}
	before := commits()
	swap(t, b, "lone", "", running("a.1"))
	if n := commits() - before; n != 1 {
		t.Errorf("a lone write took %d commits", n)
	}
	tx, err := db.Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	const n = 500
	var won atomic.Int64
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			// Two callers for each key.
			r := running(fmt.Sprintf("t%d.1", i))
			got, err := b.Swap(t.Context(), fmt.Sprint(i/2), "", r)
			if err != nil {
				t.Error(err)
			} else if got.Token == r.Token {
				won.Add(1)
			}
		})
	}
	queued(t, b, n)
	before = commits()
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if took := commits() - before; took != 1 {
		t.Errorf("%d writes that had waited took %d commits, want 1", n, took)
	}
	if won.Load() != n/2 {
		t.Errorf("%d claims were granted, want %d", won.Load(), n/2)
	}
	checkFile(t, b)
}

// The error of one write in a batch is its caller's alone.
func TestErrorInBatch(t *testing.T) {
	db := openDB(t, testPath(t))
	b := newOn(t, db, nil)
	swap(t, b, "damaged", "", completed("a.1", 100))
	err := db.Update(func(tx *bbolt.Tx) error {
		log := tx.Bucket(table{c: b.core, tx: tx}.fileName(logOf(completed("a.1", 0))))
		k, v := log.Cursor().First()
		bad := append([]byte(nil), v...)
		bad[len(bad)-20] ^= 1
		return log.Put(append([]byte(nil), k...), bad)
	})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if i == 25 {
				_, err := b.Swap(t.Context(), "damaged", "a.1", completed("a.2", 1))
				if !errors.Is(err, idem.ErrCorrupt) || !definite(err) {
					t.Errorf("Swap of the damaged record: %v", err)
				}
				mentions(t, err, b.path, "damaged")
				return
			}
			if got, err := b.Swap(t.Context(), fmt.Sprint(i), "", running("a.1")); err != nil || got.Token != "a.1" {
				t.Errorf("Swap: %+v, %v", got, err)
			}
		})
	}
	queued(t, b, 50)
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

// Close waits for the calls that run and refuses the others; nothing is left
// behind.
func TestCloseDuringCalls(t *testing.T) {
	rounds := 100
	if testing.Short() || testenv.Race {
		rounds = 20
	}
	rnd := testenv.Rand(t)
	path := testPath(t)
	acked := make(map[string]bool)
	for round := range rounds {
		b, err := Open(path, nil)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for key := range acked {
			if r := get(t, b, key); r.Token == "" {
				t.Fatalf("round %d: %s was acknowledged and is lost", round, key)
			}
			if len(acked) > 200 {
				delete(acked, key)
			}
		}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := 0; ; i++ {
					key := fmt.Sprintf("%d-%d-%d", round, g, i)
					var err error
					switch g {
					case 0:
						_, err = b.Get(t.Context(), key)
					case 1:
						_, err = b.Sweep(t.Context(), 10)
					case 2:
						_, _, err = b.List(t.Context(), idem.Query{})
					default:
						_, err = b.Swap(t.Context(), key, "", running("a.1"))
						if err == nil {
							mu.Lock()
							acked[key] = true
							mu.Unlock()
						}
					}
					if err != nil {
						if !errors.Is(err, errClosed) || g > 2 && !definite(err) {
							t.Errorf("round %d, goroutine %d: %v", round, g, err)
						}
						return
					}
				}
			})
		}
		watching := make(chan error)
		swap(t, b, fmt.Sprint("watched", round), "", running("w.1"))
		go func() { watching <- b.Watch(context.Background(), fmt.Sprint("watched", round), "w.1") }()
		for range rnd.IntN(40) {
			swap(t, b, fmt.Sprint(round, rnd.Int64()), "", running("a.1"))
		}
		var closing sync.WaitGroup
		for range 2 {
			closing.Go(func() {
				if err := b.Close(); err != nil {
					t.Errorf("round %d: Close: %v", round, err)
				}
			})
		}
		closing.Wait()
		wg.Wait()
		if err := <-watching; !errors.Is(err, errClosed) {
			t.Errorf("round %d: Watch: %v", round, err)
		}
	}
}

// After an error of the disk everything is refused, with the reason, until the
// file is opened again.
func TestPoisoned(t *testing.T) {
	path := testPath(t)
	b, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	swap(t, b, "k", "", completed("a.1", 10))
	reason := errors.New("the disk is on fire")
	b.poison(reason, false)
	store := newStore(t, b, nil)
	ctx := t.Context()
	_, getErr := b.Get(ctx, "k")
	_, swapErr := b.Swap(ctx, "k2", "", running("b.1"))
	_, sweepErr := b.Sweep(ctx, 1)
	_, _, listErr := b.List(ctx, idem.Query{})
	_, doErr := b.Do(ctx, store, "k3", fp, neverInTx(t))
	for name, err := range map[string]error{"Get": getErr, "Swap": swapErr, "Sweep": sweepErr, "List": listErr, "Do": doErr, "Watch": b.Watch(ctx, "k", "a.1")} {
		if !errors.Is(err, idem.ErrUnavailable) || !errors.Is(err, reason) {
			t.Errorf("%s: %v; want ErrUnavailable and the reason", name, err)
		}
		mentions(t, err, "opened again")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if r := get(t, open(t, path, nil), "k"); r.Token != "a.1" {
		t.Errorf("opened again: %+v", r)
	}
}

// A day of claims and completions under a clock of the test's own: nothing waits
// for real time.
func TestVirtualDay(t *testing.T) {
	path := testPath(t)
	synctest.Test(t, func(t *testing.T) {
		b, err := Open(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		store, err := idem.New(b, &idem.Options{Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		out, err := store.Do(ctx, "long", fp, func(ctx context.Context, _ *idem.Claim) (idem.Result, error) {
			select { // ten leases long
			case <-time.After(10 * time.Minute):
				return idem.Result{Code: 5}, nil
			case <-ctx.Done():
				return idem.Result{}, context.Cause(ctx)
			}
		})
		if err != nil || out.Result.Code != 5 {
			t.Errorf("Do = %+v, %v", out, err)
		}
		time.Sleep(24*time.Hour - time.Nanosecond)
		if r, err := store.Lookup(ctx, "long"); err != nil || r.Status != idem.Completed {
			t.Errorf("before the end of the retention: %+v, %v", r, err)
		}
		time.Sleep(time.Hour)
		if r, err := store.Lookup(ctx, "long"); err != nil || r.Status != 0 {
			t.Errorf("after it: %+v, %v", r, err)
		}
		if n, err := b.Sweep(ctx, 10); n != 1 || err != nil {
			t.Errorf("Sweep = %d, %v", n, err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}
