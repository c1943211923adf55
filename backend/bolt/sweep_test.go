package bolt

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

// fill stores n records made by record under the keys of name, many at once.
func fill(t testing.TB, b idem.Backend, n int, key func(i int) string, record func(i int) idem.Record) {
	t.Helper()
	var wg sync.WaitGroup
	for part := range 64 {
		wg.Go(func() {
			for i := part; i < n; i += 64 {
				r := record(i)
				if got, err := b.Swap(context.Background(), key(i), "", r); err != nil || got.Token != r.Token {
					t.Errorf("Swap(%q): token %q, %v", key(i), got.Token, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func numbered(i int) string { return fmt.Sprintf("key-%d", i) }

// checkFile has bbolt check its structure, and the index compared with the file.
func checkFile(t testing.TB, b *Backend) {
	t.Helper()
	err := b.view(context.Background(), func(table table) error {
		for err := range table.tx.Check() {
			t.Errorf("bbolt finds damage: %v", err)
		}
		h, err := table.head()
		if err != nil {
			return err
		}
		x := b.index
		x.mu.RLock()
		known := x.spots.n
		x.mu.RUnlock()
		fresh := newCore(b.path, Options{Bucket: string(b.bucket)})
		if err := fresh.catchUp(table2(fresh, table)); err != nil {
			return err
		}
		if uint64(fresh.index.spots.n) != h.records || known < fresh.index.spots.n {
			t.Errorf("the file has %d records, %d can be found, the index has %d", h.records, fresh.index.spots.n, known)
		}
		return nil
	})
	if err != nil {
		t.Errorf("check: %v", err)
	}
}

// table2 returns t as another core sees it.
func table2(c *core, t table) table { return table{c, t.tx, t.top} }

// BB-4: a sweep leaves nothing that is due, and nothing else is touched.
func TestBB4_SweepToTheEnd(t *testing.T) {
	for _, test := range []struct{ n, batch int }{{10, 1}, {10, 7}, {10, 1000}, {20000, 1000}, {20000, 1_000_000}, {3000, 7}} {
		t.Run(fmt.Sprintf("%d by %d", test.n, test.batch), func(t *testing.T) {
			machine := newFakeClock()
			b := machine.use(open(t, testPath(t), nil))
			fill(t, b, test.n, numbered, func(i int) idem.Record {
				r := completed(fmt.Sprintf("t%d.1", i), 20)
				if i%2 == 0 {
					r.TTL = time.Hour
				}
				return r
			})
			machine.pass(time.Hour)
			total := 0
			for {
				n, err := b.Sweep(t.Context(), test.batch)
				if err != nil || n > test.batch {
					t.Fatalf("Sweep(%d) = %d, %v", test.batch, n, err)
				}
				if total += n; n == 0 {
					break
				}
			}
			if total != test.n/2 {
				t.Errorf("%d records were swept, want %d", total, test.n/2)
			}
			for i := range test.n {
				if r := get(t, b, numbered(i)); (r.Token != "") != (i%2 == 1) {
					t.Fatalf("record %d: %+v", i, r)
				}
			}
			checkFile(t, b)
		})
	}
}

// BB-4: the same in one transaction of the caller, which has changed the pages
// before.
func TestBB4_SweepInTransaction(t *testing.T) {
	machine := newFakeClock()
	db := openDB(t, testPath(t))
	b := machine.use(newOn(t, db, nil))
	fill(t, b, 1000, numbered, func(i int) idem.Record {
		r := completed(fmt.Sprintf("t%d.1", i), 20)
		r.TTL = time.Hour
		return r
	})
	err := db.Update(func(tx *bbolt.Tx) error {
		bound := b.WithTx(tx)
		for i := range 1005 - 1000 {
			r := completed(fmt.Sprintf("u%d.1", i), 20)
			r.TTL = time.Hour
			swap(t, bound, fmt.Sprintf("in-tx-%d", i), "", r)
		}
		machine.pass(time.Hour)
		n, err := bound.Sweep(t.Context(), 10_000)
		if n != 1005 {
			t.Errorf("%d records were swept, want 1005", n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := b.Sweep(t.Context(), 10); n != 0 || err != nil {
		t.Errorf("a second Sweep: %d, %v", n, err)
	}
	checkFile(t, b)
}

// RT-1: only records whose own expiry has passed are swept, whatever their order.
func TestRT1_MixedRetentions(t *testing.T) {
	rnd := testenv.Rand(t)
	machine := newFakeClock()
	b := machine.use(open(t, testPath(t), nil))
	type stored struct {
		r  idem.Record
		at time.Duration
	}
	live := make(map[string]*stored)
	var now time.Duration
	pass := func(d time.Duration) {
		machine.pass(d)
		now += d
	}
	for i := range 3000 {
		key := fmt.Sprintf("k%d", rnd.IntN(300))
		r := randomRecord(rnd)
		r.Token = fmt.Sprintf("t%d.1", i)
		r.TTL = time.Duration(1+rnd.IntN(6)) * time.Hour
		old := ""
		if s, ok := live[key]; ok && now-s.at < s.r.TTL {
			old = s.r.Token
		}
		swap(t, b, key, old, r)
		live[key] = &stored{r: r, at: now}
		if rnd.IntN(10) == 0 {
			pass(time.Duration(rnd.IntN(60)) * time.Minute)
		}
		if rnd.IntN(20) == 0 {
			if _, err := b.Sweep(t.Context(), rnd.IntN(50)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := b.Sweep(t.Context(), 10_000); err != nil {
		t.Fatal(err)
	}
	alive := 0
	for key, s := range live {
		got := get(t, b, key)
		if now-s.at >= s.r.TTL-time.Minute && now-s.at <= s.r.TTL { // too near to call: real time passes too
			continue
		}
		if expired := now-s.at >= s.r.TTL; expired != (got.Token == "") || !expired && !sameRecord(got, s.r) {
			t.Fatalf("%s, stored %v ago for %v: %+v", key, now-s.at, s.r.TTL, got)
		}
		if got.Token != "" {
			alive++
		}
	}
	if alive == 0 {
		t.Error("no record has survived: the test proves nothing")
	}
	checkFile(t, b)
}

// RT-2: a sweep of a store that was never used is no error; at a steady load the
// file stops growing, and a commit does not touch more and more pages.
func TestRT2_FileStopsGrowing(t *testing.T) {
	for name, opts := range map[string]*Options{"own": nil, "shared": {Shared: true}} {
		t.Run(name, func(t *testing.T) {
			machine := newFakeClock()
			path := testPath(t)
			b := machine.use(open(t, path, opts))
			if n, err := b.Sweep(t.Context(), 100); n != 0 || err != nil {
				t.Fatalf("Sweep of an empty store: %d, %v", n, err)
			}
			store := newStore(t, b, nil)
			cycles, pairs := 20, 5000
			if testing.Short() || b.shared != nil {
				cycles, pairs = 8, 1000
			}
			var early int64
			for cycle := range cycles {
				var wg sync.WaitGroup
				for part := range 50 {
					wg.Go(func() {
						for i := part; i < pairs; i += 50 {
							c, _, err := store.Begin(context.Background(), fmt.Sprintf("%d-%d", cycle, i), fp)
							if err == nil {
								err = store.Complete(context.Background(), c, idem.Result{Body: make([]byte, 256)})
							}
							if err != nil {
								t.Error(err)
							}
						}
					})
				}
				wg.Wait()
				machine.pass(25 * time.Hour)
				if _, err := b.Sweep(t.Context(), 2*pairs); err != nil {
					t.Fatal(err)
				}
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				if cycle == 2 {
					early = info.Size()
				}
				if cycle == cycles-1 && float64(info.Size()) > 1.5*float64(early) {
					t.Errorf("the file has %d bytes after cycle %d, and had %d after cycle 3", info.Size(), cycle+1, early)
				}
			}
			checkFile(t, b)
		})
	}
}

// RT-2: without any Sweep the writes themselves delete what is expired.
func TestRT2_WritesDeleteExpired(t *testing.T) {
	machine := newFakeClock()
	b := machine.use(open(t, testPath(t), nil))
	const n = 2000
	for round := range 4 {
		fill(t, b, n, func(i int) string { return fmt.Sprintf("%d-%d", round, i) }, func(i int) idem.Record {
			return completed(fmt.Sprintf("t%d-%d.1", round, i), 20)
		})
		machine.pass(24 * time.Hour)
	}
	err := b.view(t.Context(), func(table table) error {
		h, err := table.head()
		if h.records != n {
			t.Errorf("%d records are left, want the %d of the last round", h.records, n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	checkFile(t, b)
}

// RT-4: the retention counts from completion, and is judged on reading.
func TestRT4_RetentionWithoutSweep(t *testing.T) {
	machine := newFakeClock()
	b := machine.use(open(t, testPath(t), nil))
	store := newStore(t, b, nil)
	ctx := t.Context()
	c, _, err := store.Begin(ctx, "k", fp)
	if err != nil {
		t.Fatal(err)
	}
	machine.pass(20 * time.Second)
	if err := store.Complete(ctx, c, idem.Result{Code: 7}); err != nil {
		t.Fatal(err)
	}
	machine.pass(24*time.Hour - time.Second)
	if _, done, err := store.Begin(ctx, "k", fp); err != nil || done == nil || done.Result.Code != 7 {
		t.Fatalf("before the retention is over: %+v, %v; want a replay", done, err)
	}
	machine.pass(time.Second)
	if r, err := store.Lookup(ctx, "k"); err != nil || r.Status != 0 {
		t.Fatalf("after the retention: %+v, %v; want no record", r, err)
	}
	if c, _, err := store.Begin(ctx, "k", fp); err != nil || c == nil || c.Attempt != 1 {
		t.Fatalf("after the retention: claim %+v, %v", c, err)
	}
}

// PE-4: keys of expired records are claimed again while they are swept; nobody
// loses his claim.
func TestPE4_SweepBesideClaims(t *testing.T) {
	n := 60_000
	if testing.Short() || testenv.Race {
		n = 6_000
	}
	machine := newFakeClock()
	db := openDB(t, testPath(t))
	b := machine.use(newOn(t, db, nil))
	other := machine.use(newOn(t, db, nil))
	fill(t, b, n, numbered, func(i int) idem.Record {
		r := completed(fmt.Sprintf("old%d.1", i), 10)
		r.TTL = time.Hour
		return r
	})
	machine.pass(time.Hour)
	stop := make(chan struct{})
	var sweeping sync.WaitGroup
	for _, b := range []*Backend{b, other} {
		sweeping.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := b.Sweep(context.Background(), 500); err != nil {
					t.Errorf("Sweep: %v", err)
					return
				}
			}
		})
	}
	var mu sync.Mutex
	owners := make(map[string]string)
	var claiming sync.WaitGroup
	for caller := range 64 {
		claiming.Go(func() {
			backend := []*Backend{b, other}[caller%2]
			for i := caller / 2; i < n; i += 32 {
				r := running(fmt.Sprintf("new%d-%d.1", i, caller))
				got, err := backend.Swap(context.Background(), numbered(i), "", r)
				if err != nil {
					t.Errorf("Swap: %v", err)
					return
				}
				if got.Token == r.Token {
					mu.Lock()
					if owner, ok := owners[numbered(i)]; ok {
						t.Errorf("%s has two owners: %s and %s", numbered(i), owner, r.Token)
					}
					owners[numbered(i)] = r.Token
					mu.Unlock()
				}
			}
		})
	}
	claiming.Wait()
	close(stop)
	sweeping.Wait()
	if len(owners) != n {
		t.Errorf("%d of %d keys have an owner", len(owners), n)
	}
	for key, owner := range owners {
		if r := get(t, b, key); r.Token != owner {
			t.Fatalf("%s was claimed with token %q, and has %q", key, owner, r.Token)
		}
	}
	checkFile(t, b)
	checkFile(t, other)
}
