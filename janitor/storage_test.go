package janitor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/bolt"
	"github.com/idem-go/idem/backend/postgres"
	idemredis "github.com/idem-go/idem/backend/redis"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testpg"
	"github.com/idem-go/idem/internal/testredis"
	"github.com/idem-go/idem/janitor"
)

const (
	liveRecords = 1_000
	decades     = 100 * 365 * 24 * time.Hour
)

// many is how many expired records a storage has; 200,000, but for a short run.
func many() int {
	if testing.Short() {
		return 20_000
	}
	return 200_000
}

// A storage has expired records and live ones.
type storage struct {
	handles [2]idem.Backend // as two processes have them
	expired int
	stored  func(t testing.TB) int // how many records there are in all; nil if that cannot be told
	tidies  bool                   // a write deletes an expired record as well
	expires bool                   // the storage deletes expired records by itself
}

func record(kind string, i int, ttl time.Duration) (key string, r idem.Record) {
	return fmt.Sprintf("%s-%d", kind, i), idem.Record{
		Token: fmt.Sprintf("%s%d.1", kind, i), Status: idem.Completed, Attempt: 1, Fence: int64(i), Fingerprint: payload,
		Result: idem.Result{Code: 200, Body: make([]byte, 100)}, TTL: ttl,
	}
}

// fill stores n records of a kind, many at once.
func fill(t testing.TB, b idem.Backend, kind string, n int, ttl time.Duration) {
	t.Helper()
	const parts = 256
	var wg sync.WaitGroup
	for part := range parts {
		wg.Go(func() {
			for i := part; i < n; i += parts {
				key, r := record(kind, i, ttl)
				if got, err := b.Swap(context.Background(), key, "", r); err != nil || got.Token != r.Token {
					t.Errorf("Swap(%q): token %q, %v", key, got.Token, err)
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

func openBolt(t testing.TB, path string) (b [2]idem.Backend, done func()) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType})
	if err != nil {
		t.Fatal(err)
	}
	var backends [2]*bolt.Backend
	for i := range b {
		if backends[i], err = bolt.New(db, nil); err != nil {
			t.Fatal(err)
		}
		b[i] = backends[i]
	}
	return b, func() {
		for _, b := range backends {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

// boltFile writes a file with n expired records. It is filled in the year 2000, the
// beginning of the time in a bubble of synctest; outside, the records of that day are
// expired.
func boltFile(t *testing.T, n int) (path string) {
	path = filepath.Join(testenv.Dir(t), "idem.db")
	synctest.Test(t, func(t *testing.T) {
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		b, err := bolt.New(db, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		fill(t, b, "live", liveRecords, decades)
		for from := 0; from < n; from += 10_000 { // in few transactions, which is quicker
			err := db.Update(func(tx *bbolt.Tx) error {
				bound := b.WithTx(tx)
				for i := from; i < min(n, from+10_000); i++ {
					key, r := record("expired", i, 24*time.Hour)
					if _, err := bound.Swap(context.Background(), key, "", r); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	})
	return path
}

// boltStorage is a copy of a file with n expired records.
func boltStorage(t *testing.T, file string, n int) storage {
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(testenv.Dir(t), "idem.db")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	handles, done := openBolt(t, path)
	t.Cleanup(done)
	return storage{handles: handles, expired: n, tidies: true}
}

func postgresStorage(t testing.TB, n int) storage {
	url, schema := testpg.Schema(t)
	s := storage{expired: n}
	var pool *pgxpool.Pool
	for i := range s.handles {
		config, err := pgxpool.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		config.MaxConns = 8
		if pool, err = pgxpool.NewWithConfig(context.Background(), config); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		b, err := postgres.New(pool, &postgres.Options{Schema: schema})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Migrate(context.Background()); err != nil {
			t.Fatal(err)
		}
		s.handles[i] = b
	}
	table := schema + ".idem_records"
	fill(t, s.handles[0], "live", liveRecords, decades)
	fill(t, s.handles[0], "model", 1, decades)
	testpg.Exec(t, url, fmt.Sprintf(`
		INSERT INTO %[1]s (key, token, status, attempt, fence, fingerprint, code, meta, body, omitted, checkpoint, lease, ttl, written_at, sweep_at)
		SELECT 'expired-' || i, 'expired' || i || '.1', status, attempt, fence, fingerprint, code, meta, body, omitted, checkpoint, lease, 86400000000000, written_at - interval '2 days', written_at - interval '1 day'
		FROM %[1]s, generate_series(0, %[2]d - 1) AS i WHERE key = 'model-0'`, table, n),
		`DELETE FROM `+table+` WHERE key = 'model-0'`,
		`VACUUM ANALYZE `+table)
	s.stored = func(t testing.TB) (n int) {
		if err := pool.QueryRow(context.Background(), `SELECT count(*) FROM `+table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	return s
}

func redisStorage(t testing.TB, n int, ttl time.Duration) storage {
	server := testredis.Start(t)
	s := storage{expired: n, expires: true}
	var client *goredis.Client
	for i := range s.handles {
		client = server.Client(t, nil)
		b, err := idemredis.New(client, &idemredis.Options{Warn: func(string) {}})
		if err != nil {
			t.Fatal(err)
		}
		s.handles[i] = b
	}
	fill(t, s.handles[0], "live", liveRecords, decades)
	fill(t, s.handles[0], "expired", n, ttl)
	s.stored = func(t testing.TB) int {
		n, err := client.DBSize(context.Background()).Result()
		if err != nil {
			t.Fatal(err)
		}
		return int(n) - 1 // the epoch
	}
	return s
}

// counted counts what the janitor asks of a backend.
type counted struct {
	idem.Backend
	mu      sync.Mutex
	batches int
	largest int
	swept   int
}

func (b *counted) Sweep(ctx context.Context, limit int) (int, error) {
	n, err := b.Backend.Sweep(ctx, limit)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.batches++
	b.largest = max(b.largest, limit, n)
	b.swept += n
	return n, err
}

// claiming has workers claim and complete keys of their own until stop is called,
// which returns how many they did. It returns when all of them are at work.
func claiming(t testing.TB, s storage, workers int) (stop func() int) {
	var done atomic.Int64
	stopped := make(chan struct{})
	var all, begun sync.WaitGroup
	for w := range workers {
		store := open(t, s.handles[w%2], nil)
		begun.Add(1)
		all.Go(func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("worker-%d-%d", w, i)
				out, err := store.Do(context.Background(), key, payload, func(context.Context, *idem.Claim) (idem.Result, error) {
					return idem.Result{Code: 201}, nil
				})
				if err != nil || out.Replayed || out.Attempt != 1 {
					t.Errorf("%s: %+v, %v", key, out, err)
				}
				done.Add(1)
				if i == 0 {
					begun.Done()
				}
				select {
				case <-stopped:
					return
				default:
				}
			}
		})
	}
	begun.Wait()
	return func() int {
		close(stopped)
		all.Wait()
		return int(done.Load())
	}
}

// 200,000 expired records among live ones, swept by two janitors at once beside
// claims: the batches are bounded, each record is deleted once, and nothing else is.
func TestSweepOfALargeStorage(t *testing.T) {
	t.Run("bolt", func(t *testing.T) {
		file := boltFile(t, many())
		t.Run("beside claims", func(t *testing.T) { sweepTwice(t, boltStorage(t, file, many()), 8) })
		// Writes delete expired records as well: the sum is exact without them.
		t.Run("alone", func(t *testing.T) { sweepTwice(t, boltStorage(t, file, many()), 0) })
	})
	t.Run("postgres", func(t *testing.T) { sweepTwice(t, postgresStorage(t, many()), 8) })
	// Redis deletes what is expired by itself: there is nothing to sweep.
	t.Run("redis", func(t *testing.T) { sweepTwice(t, redisStorage(t, 20_000, time.Millisecond), 8) })
}

func sweepTwice(t *testing.T, s storage, workers int) {
	stop := claiming(t, s, workers)
	var backends [2]*counted
	var reports [2]janitor.Report
	var sweeping sync.WaitGroup
	begun := time.Now()
	for i := range backends {
		backends[i] = &counted{Backend: s.handles[i]}
		sweeping.Go(func() {
			var err error
			if reports[i], err = janitor.Sweep(context.Background(), backends[i], nil); err != nil {
				t.Error(err)
			}
		})
	}
	sweeping.Wait()
	took := time.Since(begun)
	claims := stop()

	swept, batches := 0, 0
	for i, b := range backends {
		if reports[i].Swept != b.swept || b.largest > 1000 || reports[i].Incomplete {
			t.Errorf("%+v, counted %d in batches of up to %d", reports[i], b.swept, b.largest)
		}
		swept += b.swept
		batches += b.batches
	}
	t.Logf("%d records in %d batches and %v (%d and %d), %d claims beside them", swept, batches, took, backends[0].swept, backends[1].swept, claims)
	least := s.expired
	switch {
	case s.expires:
		least = 0
	case s.tidies:
		least -= 2 * claims // a claim and a completion each
	}
	if swept < least || swept > s.expired || s.expires && swept > 0 {
		t.Errorf("%d records were swept, want %d", swept, s.expired)
	}
	if want := swept / 1000; batches < want || batches > want+4 {
		t.Errorf("%d batches for %d records", batches, swept)
	}
	for i, b := range s.handles {
		if r, err := janitor.Sweep(t.Context(), b, nil); err != nil || r.Swept != 0 {
			t.Errorf("handle %d: another Sweep: %+v, %v; want none left", i, r, err)
		}
	}
	for i := range liveRecords {
		key, want := record("live", i, decades)
		got, err := s.handles[1].Get(t.Context(), key)
		if err != nil || got.Token != want.Token || !got.Result.Equal(want.Result) {
			t.Fatalf("%s: %+v, %v; want it as it was", key, got, err)
		}
	}
	for i := 0; i < s.expired; i += s.expired / 100 {
		key, _ := record("expired", i, 0)
		if got, err := s.handles[0].Get(t.Context(), key); err != nil || got.Token != "" {
			t.Fatalf("%s: %+v, %v; want none", key, got, err)
		}
	}
	if s.stored != nil && !s.expires {
		if got := s.stored(t); got != liveRecords+claims {
			t.Errorf("%d records are stored, want %d and the %d of the workers", got, liveRecords, claims)
		}
	}
}

// Two janitors at once recover each claim once, on every storage and in every scope.
func TestRecoveryOnEachStorage(t *testing.T) {
	for name, storageOf := range map[string]func(t *testing.T) storage{
		"bolt":     func(t *testing.T) storage { return boltStorage(t, boltFile(t, 0), 0) },
		"postgres": func(t *testing.T) storage { return postgresStorage(t, 0) },
		"redis":    func(t *testing.T) storage { return redisStorage(t, 0, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			s := storageOf(t)
			const claims = 100 // of each kind and scope
			stores := []*idem.Store{
				open(t, s.handles[0], &idem.Options{OnLapse: idem.Hold}),
				open(t, s.handles[1], &idem.Options{OnLapse: idem.Hold, Scope: "shop"}).Scoped("tenant *?[%_"),
			}
			kinds := map[string]idem.Status{"done": idem.Completed, "void": idem.Released, "open": idem.InProgress}
			var filling sync.WaitGroup
			for _, store := range stores {
				for kind := range kinds {
					filling.Go(func() {
						for i := range claims {
							lapse(t, store, fmt.Sprintf("%s %d", kind, i), kind)
						}
					})
				}
			}
			filling.Wait()
			var mu sync.Mutex
			tried := map[string]int{}
			opts := &janitor.Options{Recover: func(_ context.Context, c *idem.Claim) (idem.Result, error) {
				mu.Lock()
				tried[fmt.Sprint(c.Scope(), c.Key)]++
				mu.Unlock()
				switch string(c.Checkpoint) {
				case "done":
					return idem.Result{Code: 201}, nil
				case "void":
					return idem.Result{}, idem.NoEffect(errors.New("nothing happened"))
				}
				return idem.Result{}, errors.New("unknown")
			}}
			var reports [2]janitor.Report
			var sweeping sync.WaitGroup
			for i, b := range s.handles {
				sweeping.Go(func() { reports[i], _ = janitor.Sweep(context.Background(), b, opts) })
			}
			sweeping.Wait()
			all := len(stores) * claims
			if n := reports[0].Recovered + reports[1].Recovered; n != all {
				t.Errorf("%d recovered, want %d", n, all)
			}
			if n := reports[0].Freed + reports[1].Freed; n != all {
				t.Errorf("%d freed, want %d", n, all)
			}
			for i, r := range reports {
				if r.Incomplete || r.Unresolved != len(r.Errors) && len(r.Errors) < 100 {
					t.Errorf("janitor %d: %+v", i, r)
				}
			}
			for _, store := range stores {
				for kind, status := range kinds {
					for i := range claims {
						key := fmt.Sprintf("%s %d", kind, i)
						if r := lookup(t, store, key); r.Status != status || status == idem.InProgress && !r.Lapsed() {
							t.Errorf("%s: %+v", key, r)
						}
					}
				}
			}
			if len(tried) != 3*all {
				t.Errorf("%d claims were tried, want %d", len(tried), 3*all)
			}
			for key, n := range tried {
				if n != 1 && !strings.Contains(key, "open") {
					t.Errorf("%s was recovered %d times", key, n)
				}
			}
		})
	}
}
