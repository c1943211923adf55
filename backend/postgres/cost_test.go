package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
	"github.com/idem-go/idem/internal/faultproxy"
	"github.com/idem-go/idem/internal/testpg"
)

// nextXID returns the transaction id that is assigned next, and the position of
// the write-ahead log.
func (f *fixture) nextXID(t testing.TB) (xid, log int64) {
	t.Helper()
	err := f.pool.QueryRow(context.Background(), `SELECT txid_snapshot_xmax(txid_current_snapshot()), pg_current_wal_insert_lsn() - '0/0'`).Scan(&xid, &log)
	if err != nil {
		t.Fatal(err)
	}
	return xid, log
}

// PE-14: a thousand replays, alone and together, known to the process and not,
// assign no transaction id and write no log.
func TestPE14_ReplaysWriteNothing(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 8)
	s := newStore(t, f, nil)
	for i := range 100 {
		c, _, err := s.Begin(ctx, fmt.Sprintf("k%d", i), payloadA)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Complete(ctx, c, idem.Result{Body: []byte("done")}); err != nil {
			t.Fatal(err)
		}
	}
	replay := func(t *testing.T, s *idem.Store, i int) {
		if _, done, err := s.Begin(ctx, fmt.Sprintf("k%d", i%100), payloadA); done == nil {
			t.Errorf("%v", err)
		}
	}
	for what, run := range map[string]func(t *testing.T){
		"alone": func(t *testing.T) {
			for i := range 1000 {
				replay(t, s, i)
			}
		},
		"together": func(t *testing.T) {
			var all sync.WaitGroup
			for w := range 50 {
				all.Go(func() {
					for i := range 20 {
						replay(t, s, w*20+i)
					}
				})
			}
			all.Wait()
		},
		"unknown to the process": func(t *testing.T) {
			for range 10 {
				b, err := postgres.New(f.pool, &postgres.Options{Schema: f.schema})
				if err != nil {
					t.Fatal(err)
				}
				fresh := newStore(t, b, nil)
				var all sync.WaitGroup
				for i := range 100 {
					all.Go(func() { replay(t, fresh, i) })
				}
				all.Wait()
			}
		},
		"in a transaction": func(t *testing.T) {
			for i := range 1000 {
				out, err := f.Do(ctx, s, fmt.Sprintf("k%d", i%100), payloadA, func(context.Context, pgx.Tx, *idem.Claim) (idem.Result, error) {
					return idem.Result{}, errors.New("it ran")
				})
				if err != nil || !out.Replayed {
					t.Fatalf("%+v, %v", out, err)
				}
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			// The server writes something of its own now and then.
			for try := range 5 {
				xid, log := f.nextXID(t)
				run(t)
				nowXID, nowLog := f.nextXID(t)
				if xid == nowXID && log == nowLog {
					return
				}
				t.Logf("try %d: %d transaction ids and %d bytes of log", try, nowXID-xid, nowLog-log)
			}
			t.Error("each of 5 times 1000 replays have written something")
		})
	}
}

// A fresh claim, a completion and a replay take one round trip each, and the
// transaction of Do two beside those of its function.
func TestRoundTrips(t *testing.T) {
	ctx := context.Background()
	f, proxy := proxied(t, 1)
	s := newStore(t, f, nil)
	var trips atomic.Int64
	proxy.Judge(func([]byte) faultproxy.Fate { trips.Add(1); return faultproxy.Pass })
	count := func(what string, want int64, call func(i int) error) {
		t.Helper()
		for i := range 8 { // statements are prepared on the way
			before := trips.Load()
			if err := call(i); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if n := trips.Load() - before; i >= 4 && n != want {
				t.Errorf("%s took %d round trips, want %d", what, n, want)
			}
		}
	}
	claims := make([]*idem.Claim, 8)
	count("a fresh claim", 1, func(i int) (err error) {
		claims[i], _, err = s.Begin(ctx, fmt.Sprintf("k%d", i), payloadA)
		return err
	})
	count("a duplicate", 1, func(i int) error {
		if _, _, err := s.Begin(ctx, fmt.Sprintf("k%d", i), payloadA); !errors.Is(err, idem.ErrInProgress) {
			return fmt.Errorf("Begin = %w", err)
		}
		return nil
	})
	count("a completion", 1, func(i int) error { return s.Complete(ctx, claims[i], idem.Result{Body: []byte("x")}) })
	replay := func(s *idem.Store) func(int) error {
		return func(i int) error {
			if _, done, err := s.Begin(ctx, fmt.Sprintf("k%d", i), payloadA); done == nil {
				return fmt.Errorf("no replay: %w", err)
			}
			return nil
		}
	}
	count("a replay", 1, replay(s))
	other, err := postgres.New(f.pool, &postgres.Options{Schema: f.schema})
	if err != nil {
		t.Fatal(err)
	}
	count("a replay of an unknown key", 1, replay(newStore(t, other, nil)))
	count("a lost completion", 2, func(i int) error {
		if err := s.Complete(ctx, claims[i], idem.Result{Body: []byte("y")}); !errors.Is(err, idem.ErrCompleted) {
			return fmt.Errorf("Complete = %w", err)
		}
		return nil
	})
	count("Do", 3, func(i int) error {
		_, err := f.Do(ctx, s, fmt.Sprintf("do%d", i), payloadA, func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
			return idem.Result{}, f.pay(ctx, tx, c.Key)
		})
		return err
	})
	again := func(b *postgres.Backend) func(int) error {
		return func(i int) error {
			out, err := b.Do(ctx, s, fmt.Sprintf("do%d", i), payloadA, func(context.Context, pgx.Tx, *idem.Claim) (idem.Result, error) {
				return idem.Result{}, errors.New("it runs again")
			})
			if err == nil && !out.Replayed {
				return errors.New("no replay")
			}
			return err
		}
	}
	count("Do that replays", 2, again(f.Backend))
	fresh, err := postgres.New(f.pool, &postgres.Options{Schema: f.schema})
	if err != nil {
		t.Fatal(err)
	}
	count("Do that replays an unknown key", 3, again(fresh))
}

// A completion leaves the indexes alone.
func TestUpdatesStayHot(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4)
	s := newStore(t, f, nil)
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := range 250 {
				c, _, err := s.Begin(ctx, fmt.Sprintf("k%d-%d", w, i), payloadA)
				if err != nil {
					t.Error(err)
					return
				}
				if err := s.Complete(ctx, c, idem.Result{Body: make([]byte, 256)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	var updates, hot int64
	f.pool.Reset() // a session reports its figures when it ends
	for updates < 2000 {
		err := f.pool.QueryRow(ctx, `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'idem_records'`, f.schema).Scan(&updates, &hot)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond) // between looks
	}
	t.Logf("%d of %d updates were HOT", hot, updates)
	if hot < updates*85/100 {
		t.Errorf("%d of %d updates were HOT, want 85 %%", hot, updates)
	}
}

// KF-6: keys up to the limit, of random bytes, which no index can compress.
func TestKF6_LongKeys(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4)
	s := newStore(t, f, &idem.Options{Scope: strings.Repeat("s", idem.MaxScope)})
	random := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = "0123456789abcdef"[rand.IntN(16)]
		}
		return string(b)
	}
	for _, n := range []int{1, idem.MaxKey} {
		if c, _, err := s.Begin(ctx, random(n), payloadA); c == nil {
			t.Errorf("a key of %d bytes: %v", n, err)
		}
	}
	for _, key := range []string{"", random(idem.MaxKey + 1), random(3200), random(40000)} {
		if _, _, err := s.Begin(ctx, key, payloadA); !errors.Is(err, idem.ErrKey) {
			t.Errorf("a key of %d bytes: %v", len(key), err)
		}
	}
}

// A column of another type is read as what it says, or refused, but never taken
// for the type that it should have.
func TestColumnsOfOtherTypes(t *testing.T) {
	ctx := context.Background()
	const refused = "omitted TYPE integer USING omitted::integer"
	for _, change := range []string{
		"attempt TYPE integer", "code TYPE smallint", "status TYPE bigint", refused, "token TYPE varchar",
		"lease TYPE float8", "fence TYPE float8", "ttl TYPE numeric", "written_at TYPE timestamp",
	} {
		f := newFixture(t, 1)
		s := newStore(t, f, nil)
		want := idem.Result{Code: 201, Body: []byte("body")}
		c, _, err := s.Begin(ctx, "k", payloadA)
		if err == nil {
			err = s.Complete(ctx, c, want)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.exec(t, `ALTER TABLE `+f.schema+`.idem_records ALTER `+change)
		f.pool.Reset() // statements prepared before would be refused
		r, err := s.Lookup(ctx, "k")
		if (err != nil) != (change == refused) {
			t.Errorf("%s: %v", change, err)
		}
		if err != nil {
			continue
		}
		if !r.Result.Equal(want) || r.Attempt != 1 || r.Fence != c.Fence || r.Fingerprint != payloadA || r.TTL != idem.MinRetention || r.Status != idem.Completed {
			t.Errorf("%s: the record is read as %+v", change, r)
		}
	}
}

// A duplicate that waits is told at once within the process; from another
// process by notification, if both listen; else it asks. A completion in a
// transaction wakes it when it commits.
func TestWaiting(t *testing.T) {
	ctx := context.Background()
	base, schema := testpg.Schema(t)
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	proxy := faultproxy.New(t, u.Host) // of the connections that listen
	u.Host = proxy.Addr()
	opts := &postgres.Options{Schema: schema, Listen: u.String()}
	here := migrated(t, open(t, base, 8), opts)
	there, err := postgres.New(open(t, base, 8), opts)
	if err != nil {
		t.Fatal(err)
	}
	deaf, err := postgres.New(open(t, base, 8), &postgres.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	wait := func(name string, b, by *postgres.Backend, end func(s *idem.Store, c *idem.Claim) error) time.Duration {
		t.Helper()
		key := idem.NewKey()
		mine, theirs := newStore(t, by, nil), newStore(t, b, nil)
		c, _, err := mine.Begin(ctx, key, payloadA)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		woken := make(chan time.Time, 200)
		for range 200 {
			all.Go(func() {
				out, err := theirs.Do(ctx, key, payloadA, unwanted)
				if err != nil || string(out.Result.Body) != key {
					t.Errorf("%s: %+v, %v", name, out, err)
				}
				woken <- time.Now()
			})
		}
		time.Sleep(300 * time.Millisecond) // a time in which the operation runs and the others wait
		if err := end(mine, c); err != nil {
			t.Fatal(err)
		}
		done := time.Now()
		first := <-woken
		all.Wait()
		return first.Sub(done)
	}
	complete := func(s *idem.Store, c *idem.Claim) error {
		return s.Complete(ctx, c, idem.Result{Body: []byte(c.Key)})
	}
	inTx := func(s *idem.Store, c *idem.Claim) error {
		pool := open(t, base, 1)
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return complete(s.With(here.WithTx(tx)), c) })
	}
	t.Logf("in the process: %v", wait("in the process", deaf, deaf, complete))
	t.Logf("by asking: %v", wait("by asking", deaf, here, complete))
	t.Logf("by notification: %v", wait("by notification", there, here, complete))
	t.Logf("by notification, of a transaction: %v", wait("of a transaction", there, here, inTx))
	t.Logf("by asking, since the writer does not notify: %v", wait("silent writer", there, deaf, complete))
	proxy.Refuse(true)
	t.Logf("by asking, since the connection broke: %v", wait("broken", there, here, complete))
	proxy.Refuse(false)
	t.Logf("by notification again: %v", wait("again", there, here, complete))
}

// 200 who wait ask no more than one does.
func TestRow37_HerdOfWaiters(t *testing.T) {
	ctx := context.Background()
	f, proxy := proxied(t, 8)
	s := newStore(t, f, nil)
	c, _, err := s.Begin(ctx, "k", payloadA)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var began atomic.Int64
	for range 200 {
		all.Go(func() {
			began.Add(1)
			if out, err := s.Do(ctx, "k", payloadA, unwanted); err != nil || out.Result.Code != 5 {
				t.Errorf("%+v, %v", out, err)
			}
		})
	}
	time.Sleep(time.Second) // until all of them wait
	var queries atomic.Int64
	proxy.Judge(func([]byte) faultproxy.Fate { queries.Add(1); return faultproxy.Pass })
	started := time.Now()
	time.Sleep(2 * time.Second) // a time in which they wait
	n, took := queries.Load(), time.Since(started)
	t.Logf("%d waiters made %d queries in %v", began.Load(), n, took)
	if n > int64(took/(10*time.Millisecond)) {
		t.Errorf("%d queries in %v, want at most 100 a second", n, took)
	}
	if err := s.Complete(ctx, c, idem.Result{Code: 5}); err != nil {
		t.Fatal(err)
	}
	all.Wait()
}

// unwanted is the function of those who wait for another's result.
func unwanted(context.Context, *idem.Claim) (idem.Result, error) {
	return idem.Result{}, errors.New("the function ran")
}
