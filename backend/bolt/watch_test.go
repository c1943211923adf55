package bolt

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
)

// watching starts n watchers of the key and waits until they watch.
func watching(t testing.TB, b *Backend, key, token string, n int) chan error {
	t.Helper()
	results := make(chan error, n)
	for range n {
		go func() { results <- b.Watch(t.Context(), key, token) }()
	}
	ctx := within(t, 20*time.Second)
	for ctx.Err() == nil {
		b.watchers.mu.Lock()
		w := b.watchers.byKey[key]
		all := w != nil && w.n == n
		b.watchers.mu.Unlock()
		if all {
			return results
		}
	}
	t.Fatalf("there are not %d watchers", n)
	return nil
}

func TestWatchIsWokenByEveryWrite(t *testing.T) {
	transactors(t, func(t *testing.T, b *Backend) {
		store := newStore(t, b, nil)
		for name, write := range map[string]func(key string){
			"Swap": func(key string) { swap(t, b, key, "a.1", completed("a.2", 1)) },
			"a transaction": func(key string) {
				db, err := b.acquire(t.Context(), writing)
				if err != nil {
					t.Fatal(err)
				}
				defer b.release()
				b.snapshots.pause()
				defer b.snapshots.resume()
				err = db.Update(func(tx *bbolt.Tx) error {
					swap(t, b.WithTx(tx), key, "a.1", completed("a.2", 1))
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			},
			"Do": func(string) {
				_, err := b.Do(t.Context(), store, "Do", fp, func(context.Context, *bbolt.Tx, *idem.Claim) (idem.Result, error) {
					return idem.Result{}, nil
				})
				if err != nil {
					t.Fatal(err)
				}
			},
		} {
			r := running("a.1")
			if name == "Do" {
				r = completed("a.1", 1)
				r.Status = idem.Released
			}
			swap(t, b, name, "", r)
			results := watching(t, b, name, "a.1", 20)
			write(name)
			for range 20 {
				if err := <-results; err != nil {
					t.Errorf("%s: Watch: %v", name, err)
				}
			}
		}
		if len(b.watchers.byKey) > 0 {
			t.Errorf("watchers are left: %v", b.watchers.byKey)
		}
	})
}

// What another handle or another process writes is noticed too.
func TestWatchNoticesOthers(t *testing.T) {
	db := openDB(t, testPath(t))
	path := testPath(t)
	for name, pair := range map[string][2]*Backend{
		"handles": {newOn(t, db, nil), newOn(t, db, nil)},
		"shared":  {open(t, path, &Options{Shared: true}), open(t, path, &Options{Shared: true})},
	} {
		swap(t, pair[0], "k", "", running("a.1"))
		results := watching(t, pair[0], "k", "a.1", 1)
		swap(t, pair[1], "k", "a.1", completed("a.2", 1))
		if err := <-results; err != nil {
			t.Errorf("%s: Watch: %v", name, err)
		}
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	b := open(t, testPath(t), nil)
	swap(t, b, "k", "", running("a.1"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := b.Watch(ctx, "k", "a.1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Watch = %v", err)
	}
	if len(b.watchers.byKey) > 0 {
		t.Errorf("a watcher is left")
	}
}

// Records that move while the list is read are not passed by.
func TestListBesideWrites(t *testing.T) {
	machine := newFakeClock()
	b := machine.use(open(t, testPath(t), nil))
	const n = 500
	fill(t, b, n, numbered, func(i int) idem.Record { return running(fmt.Sprintf("t%d.1", i)) })
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for round := 2; ; round++ {
			for i := 0; i < n; i += 7 { // these go on and on, in progress and done
				r := running(fmt.Sprintf("t%d.%d", i, round))
				if round%2 == 0 {
					r = completed(r.Token, 10)
				}
				old := fmt.Sprintf("t%d.%d", i, round-1)
				if got, err := b.Swap(context.Background(), numbered(i), old, r); err != nil || got.Token != r.Token {
					t.Errorf("Swap: %+v, %v", got, err)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		}
	})
	for range 20 {
		seen := make(map[string]bool)
		q := idem.Query{Limit: 50}
		for calls := 0; calls < 1000; calls++ {
			entries, next, err := b.List(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				seen[e.Key] = true
			}
			if q.Cursor = next; next == "" {
				break
			}
		}
		if len(seen) != n {
			t.Errorf("%d keys were listed, want %d", len(seen), n)
		}
	}
	close(stop)
	wg.Wait()
}

// A query that selects little of much takes several calls, none of them long.
func TestListLooksAtLimitedNumber(t *testing.T) {
	b := open(t, testPath(t), nil)
	fill(t, b, listLooks+500, numbered, func(i int) idem.Record { return completed(fmt.Sprintf("t%d.1", i), 1) })
	swap(t, b, "wanted", "", completed("w.1", 1))
	q := idem.Query{Prefix: "wanted"}
	found, calls := 0, 0
	for {
		entries, next, err := b.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		found += len(entries)
		calls++
		if q.Cursor = next; next == "" {
			break
		}
	}
	if found != 1 || calls != 2 {
		t.Errorf("%d found in %d calls, want 1 in 2", found, calls)
	}
}
