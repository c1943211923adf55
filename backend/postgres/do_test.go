package postgres_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
	"github.com/idem-go/idem/internal/faultproxy"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testpg"
)

// A doer is Do or DoSQL with the same business change.
type doer struct {
	*fixture
	do func(ctx context.Context, s *idem.Store, key string, before func(context.Context, *idem.Claim) error) (idem.Outcome, error)
}

// doer returns what the tests run with Do: before, and then one row.
func (f *fixture) doer(b *postgres.Backend) doer {
	return doer{f, func(ctx context.Context, s *idem.Store, key string, before func(context.Context, *idem.Claim) error) (idem.Outcome, error) {
		return b.Do(ctx, s, key, payloadA, func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
			if before != nil {
				if err := before(ctx, c); err != nil {
					return idem.Result{}, err
				}
			}
			return paid(key), f.pay(ctx, tx, key)
		})
	}}
}

func paid(key string) idem.Result { return idem.Result{Code: 201, Body: []byte("paid " + key)} }

// doers returns both, with the options given. before runs before the change.
func doers(t testing.TB, f *fixture, opts postgres.Options, max int) map[string]doer {
	t.Helper()
	opts.Schema = f.schema
	b, err := postgres.New(f.pool, &opts)
	if err != nil {
		t.Fatal(err)
	}
	std, err := postgres.NewSQL(openSQL(t, f.url, max), &opts)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]doer{
		"Do": f.doer(b),
		"DoSQL": {f, func(ctx context.Context, s *idem.Store, key string, before func(context.Context, *idem.Claim) error) (idem.Outcome, error) {
			return std.DoSQL(ctx, s, key, payloadA, func(ctx context.Context, tx *sql.Tx, c *idem.Claim) (idem.Result, error) {
				if before != nil {
					if err := before(ctx, c); err != nil {
						return idem.Result{}, err
					}
				}
				_, err := tx.ExecContext(ctx, `INSERT INTO `+f.schema+`.payments (key) VALUES ($1)`, key)
				return paid(key), err
			})
		}},
	}
}

// otherDoers returns Do in pgx's other modes, and with an ear for notifications.
func otherDoers(t testing.TB, f *fixture, max int32) map[string]doer {
	t.Helper()
	all := make(map[string]doer)
	for _, mode := range []string{"cache_describe", "describe_exec", "exec", "simple_protocol"} {
		b, err := postgres.New(open(t, testpg.With(f.url, "default_query_exec_mode", mode), max), &postgres.Options{Schema: f.schema})
		if err != nil {
			t.Fatal(err)
		}
		all["Do in mode "+mode] = f.doer(b)
	}
	b, err := postgres.New(f.pool, &postgres.Options{Schema: f.schema, Listen: f.url})
	if err != nil {
		t.Fatal(err)
	}
	all["Do with Listen"] = f.doer(b)
	return all
}

func TestDo(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 8)
	s := newStore(t, f, nil)
	all := doers(t, f, postgres.Options{}, 8)
	maps.Copy(all, otherDoers(t, f, 8))
	for name, d := range all {
		t.Run(name, func(t *testing.T) {
			for i := range 3 {
				out, err := d.do(ctx, s, name, nil)
				if err != nil || out.Replayed != (i > 0) || out.Attempt != 1 || string(out.Result.Body) != "paid "+name || out.Result.Code != 201 {
					t.Errorf("call %d: %+v, %v", i, out, err)
				}
			}
			broken := errors.New("broken")
			for _, err := range []error{broken, idem.NoEffect(broken)} {
				if _, got := d.do(ctx, s, name+" fails", func(context.Context, *idem.Claim) error { return err }); got != broken {
					t.Errorf("the error of the function came back as %v", got)
				}
			}
			if r, err := s.Lookup(ctx, name+" fails"); err != nil || r.Status != 0 {
				t.Errorf("a function that failed left %+v, %v", r, err)
			}
			func() {
				defer func() {
					if p := recover(); p != "oh" {
						t.Errorf("the panic came back as %v", p)
					}
				}()
				_, _ = d.do(ctx, s, name+" panics", func(context.Context, *idem.Claim) error { panic("oh") })
			}()
			// What went wrong left nothing behind, least of all a connection.
			out, err := d.do(ctx, s, name+" panics", nil)
			if err != nil || out.Attempt != 1 {
				t.Errorf("after a panic: %+v, %v", out, err)
			}
			// An attempt before it that has lapsed, and one that gave back.
			c, _, err := s.Begin(ctx, name+" lapsed", payloadA)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Abandon(ctx, c); err != nil {
				t.Fatal(err)
			}
			takeover := false
			out, err = d.do(ctx, s, name+" lapsed", func(_ context.Context, c *idem.Claim) error { takeover = c.Takeover; return nil })
			if err != nil || out.Attempt != 2 || !takeover {
				t.Errorf("after a lapsed attempt: %+v, takeover %v, %v", out, takeover, err)
			}
			c, _, err = s.Begin(ctx, name+" released", payloadB)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Release(ctx, c); err != nil {
				t.Fatal(err)
			}
			if out, err = d.do(ctx, s, name+" released", nil); err != nil || out.Attempt != 2 {
				t.Errorf("after a released attempt: %+v, %v", out, err)
			}
			if _, _, err := s.Begin(ctx, name, payloadB); !errors.Is(err, idem.ErrMismatch) {
				t.Errorf("another payload: %v", err)
			}
			paid := f.payments(t)
			for key, want := range map[string]int{name: 1, name + " fails": 0, name + " panics": 1, name + " lapsed": 1, name + " released": 1} {
				if paid[key] != want {
					t.Errorf("%q was paid %d times, want %d", key, paid[key], want)
				}
			}
		})
	}
	if n := f.pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are still in use", n)
	}
}

// A function that ends the transaction, or goes on after an error, is told.
func TestDoWatchesOverTheTransaction(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4)
	s := newStore(t, f, nil)
	for want, fn := range map[string]func(pgx.Tx){
		"ended the transaction": func(tx pgx.Tx) { _ = tx.Commit(ctx) },
		"ignored an error":      func(tx pgx.Tx) { _, _ = tx.Exec(ctx, `SELECT 1/0`) },
	} {
		_, err := f.Do(ctx, s, want, payloadA, func(_ context.Context, tx pgx.Tx, _ *idem.Claim) (idem.Result, error) {
			fn(tx)
			return idem.Result{}, nil
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Do = %v, want an error that says %q", err, want)
		}
		if r, err := s.Lookup(ctx, want); err != nil || r.Status != 0 {
			t.Errorf("left behind: %+v, %v", r, err)
		}
	}
	// Behind a savepoint an error does no harm.
	_, err := f.Do(ctx, s, "savepoint", payloadA, func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
		_ = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT 1/0`)
			return err
		})
		return idem.Result{}, f.pay(ctx, tx, c.Key)
	})
	if err != nil || f.payments(t)["savepoint"] != 1 {
		t.Errorf("Do = %v, payments %v", err, f.payments(t))
	}
}

// Reliability row 22: all three levels, as the default of the database and as
// the caller's choice. Many callers, one effect.
func TestDoAtEveryIsolation(t *testing.T) {
	ctx := context.Background()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		f := newFixture(t, 8, "default_transaction_isolation", string(level))
		s := newStore(t, f, nil)
		for name, d := range doers(t, f, postgres.Options{TxOptions: pgx.TxOptions{IsoLevel: level}}, 8) {
			t.Run(name+" "+string(level), func(t *testing.T) {
				var runs atomic.Int64
				for i := range 50 {
					key := fmt.Sprintf("%s-%d", name, i)
					var all sync.WaitGroup
					var fresh atomic.Int64
					for range 4 {
						all.Go(func() {
							out, err := d.do(ctx, s, key, func(context.Context, *idem.Claim) error { runs.Add(1); return nil })
							if err != nil || string(out.Result.Body) != "paid "+key {
								t.Errorf("%+v, %v", out, err)
							}
							if !out.Replayed {
								fresh.Add(1)
							}
						})
					}
					all.Wait()
					if fresh.Load() != 1 {
						t.Errorf("%d callers were told that they ran %q", fresh.Load(), key)
					}
				}
				for key, n := range f.payments(t) {
					if n != 1 {
						t.Errorf("%q was paid %d times", key, n)
					}
				}
				t.Logf("%d runs of 50 operations", runs.Load())
			})
		}
	}
}

// proxied returns a fixture whose pool connects through a proxy.
func proxied(t testing.TB, max int32, params ...string) (*fixture, *faultproxy.Proxy) {
	t.Helper()
	base, schema := testpg.Schema(t)
	u, err := url.Parse(testpg.With(base, params...))
	if err != nil {
		t.Fatal(err)
	}
	proxy := faultproxy.New(t, u.Host)
	u.Host = proxy.Addr()
	return newFixtureAt(t, u.String(), schema, max), proxy
}

// once returns a judge that gives one request that has text its fate.
func once(text string, fate faultproxy.Fate) func([]byte) faultproxy.Fate {
	var met atomic.Bool
	return func(request []byte) faultproxy.Fate {
		if bytes.Contains(request, []byte(text)) && met.CompareAndSwap(false, true) {
			return fate
		}
		return faultproxy.Pass
	}
}

// Reliability row 7: the request or the answer of COMMIT is lost, or both. Each
// key is paid once.
func TestRow7_CommitIsLost(t *testing.T) {
	ctx := context.Background()
	// In this mode the text of a statement is sent with it.
	f, proxy := proxied(t, 4, "default_query_exec_mode", "exec")
	s := newStore(t, f, nil)
	n := 0
	all, simple := doers(t, f, postgres.Options{}, 4), "Do in mode simple_protocol"
	all[simple] = otherDoers(t, f, 4)[simple]
	for name, d := range all {
		for mode, fate := range fates {
			t.Run(name+" "+mode, func(t *testing.T) {
				var ran, unanswered int
				for i := range 50 {
					n++
					key := fmt.Sprintf("%s-%s-%d", name, mode, i)
					proxy.Judge(once("commit\x00", fate))
					runs := 0
					out, err := d.do(ctx, s, key, func(context.Context, *idem.Claim) error { runs++; return nil })
					if err != nil || string(out.Result.Body) != "paid "+key || out.Replayed {
						t.Errorf("%+v, %v", out, err)
					}
					if ran += runs; runs > 1 {
						unanswered++
					}
				}
				t.Logf("50 lost commits, %d runs", ran)
				if mode == "request" && unanswered == 0 {
					t.Error("no commit was lost")
				}
			})
		}
	}
	proxy.Judge(nil)
	paid := f.payments(t)
	for key, times := range paid {
		if times != 1 {
			t.Errorf("%q was paid %d times", key, times)
		}
	}
	if len(paid) != n {
		t.Errorf("%d keys were paid, want %d", len(paid), n)
	}
}

// COMMIT is cut off, or its backend is terminated, or its context ends, at any
// point of its way: 300 points, and each key is paid once.
func TestRow7_CommitIsInterruptedAnywhere(t *testing.T) {
	ctx := context.Background()
	f, proxy := proxied(t, 8)
	s := newStore(t, f, nil)
	rnd := testenv.Rand(t)
	admin := open(t, testpg.URL(t), 2)
	interrupt := []func(pid uint32, cancel context.CancelFunc){
		func(uint32, context.CancelFunc) { proxy.Cut() },
		func(pid uint32, _ context.CancelFunc) { _, _ = admin.Exec(ctx, `SELECT pg_terminate_backend($1)`, pid) },
		func(pid uint32, _ context.CancelFunc) { _, _ = admin.Exec(ctx, `SELECT pg_cancel_backend($1)`, pid) },
		func(_ uint32, cancel context.CancelFunc) { cancel() },
	}
	var failed, again int
	for i := range 300 {
		key := fmt.Sprintf("k%d", i)
		delay := time.Duration(rnd.IntN(1500)) * time.Microsecond
		how := interrupt[i%len(interrupt)]
		for try := 0; ; try++ {
			call, cancel := context.WithCancel(ctx)
			var interrupting sync.WaitGroup
			runs := 0
			out, err := f.Do(call, s, key, payloadA, func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
				runs++
				if err := f.pay(ctx, tx, key); err != nil {
					return idem.Result{}, err
				}
				if try == 0 && runs == 1 {
					pid := tx.Conn().PgConn().PID()
					interrupting.Go(func() {
						// Any point in time will do, but a sleep is rarely as short as a commit.
						for began := time.Now(); time.Since(began) < delay; {
							runtime.Gosched()
						}
						how(pid, cancel)
					})
				}
				return idem.Result{Body: []byte(key)}, nil
			})
			interrupting.Wait()
			cancel()
			if runs > 1 {
				again++
			}
			if err == nil {
				if string(out.Result.Body) != key {
					t.Fatalf("%q got %+v", key, out)
				}
				break
			}
			failed++
			if try > 20 {
				t.Fatalf("%q: %v", key, err)
			}
		}
	}
	t.Logf("%d calls failed and were repeated, %d ran their function again", failed, again)
	if failed+again < 20 {
		t.Errorf("only %d interruptions met a commit or what is before it", failed+again)
	}
	paid := f.payments(t)
	for i := range 300 {
		if n := paid[fmt.Sprintf("k%d", i)]; n != 1 {
			t.Errorf("k%d was paid %d times", i, n)
		}
	}
}

// Reliability row 8: the backend is terminated, its query cancelled, or the
// caller's context, while COMMIT hangs on a standby that does not answer. The
// commit has taken place by then.
func TestRow8_CommitHangs(t *testing.T) {
	ctx := context.Background()
	srv := testpg.New(t)
	testpg.Exec(t, srv.URL(), `CREATE SCHEMA app`)
	f := newFixtureAt(t, srv.URL(), "app", 4)
	s := newStore(t, f, nil)
	admin := open(t, srv.URL(), 2)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := admin.Exec(ctx, sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	for how, interrupt := range map[string]string{"terminate": `SELECT pg_terminate_backend($1)`, "cancel": `SELECT pg_cancel_backend($1)`, "context": ""} {
		t.Run(how, func(t *testing.T) {
			exec(`ALTER SYSTEM SET synchronous_standby_names = 'ghost'`)
			exec(`SELECT pg_reload_conf()`)
			call, cancel := context.WithCancel(ctx)
			defer cancel()
			var key string
			var pid atomic.Uint32
			var runs int
			var result chan error
			// The setting reaches the server's processes one after the other, and
			// until then commits go through.
			for n, hangs := 0, false; !hangs; n++ {
				key, runs, result = fmt.Sprintf("%s%d", how, n), 0, make(chan error, 1)
				pid.Store(0)
				go func() {
					out, err := f.Do(call, s, key, payloadA, func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
						runs++
						pid.Store(tx.Conn().PgConn().PID())
						return idem.Result{Body: []byte("done")}, f.pay(ctx, tx, c.Key)
					})
					if err == nil && string(out.Result.Body) != "done" {
						err = fmt.Errorf("got %+v", out)
					}
					result <- err
				}()
				for returned := false; !hangs && !returned; {
					select {
					case err := <-result:
						if returned = true; err != nil {
							t.Fatal(err)
						}
					default:
						if err := admin.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep')`, pid.Load()).Scan(&hangs); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			if interrupt == "" {
				cancel()
			} else {
				exec(interrupt, pid.Load())
			}
			err := <-result
			exec(`ALTER SYSTEM RESET synchronous_standby_names`)
			exec(`SELECT pg_reload_conf()`)
			if err != nil {
				t.Errorf("Do = %v", err)
			}
			if r, err := s.Lookup(ctx, key); err != nil || r.Status != idem.Completed {
				t.Errorf("Lookup = %+v, %v", r, err)
			}
			if runs != 1 || f.payments(t)[key] != 1 {
				t.Errorf("%d runs, paid %d times", runs, f.payments(t)[key])
			}
		})
	}
}
