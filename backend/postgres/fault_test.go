package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/backend/postgres"
	"github.com/idem-go/idem/internal/faultproxy"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testpg"
)

var fates = map[string]faultproxy.Fate{"request": faultproxy.LoseRequest, "reply": faultproxy.LoseReply, "both": faultproxy.CutBoth, "half the reply": faultproxy.TruncateReply, "reset": faultproxy.Reset}

// Reliability rows 5 and 6: the request or the reply of a claim or a completion
// is lost, or both. Nobody is locked out by his own claim, and a completion that
// is repeated succeeds.
func TestRow5And6_LostClaimsAndCompletions(t *testing.T) {
	ctx := context.Background()
	f, proxy := proxied(t, 4, "default_query_exec_mode", "exec")
	s := newStore(t, f, nil)
	for mode, fate := range fates {
		t.Run(mode, func(t *testing.T) {
			for i := range 100 {
				key := fmt.Sprintf("%s-%d", mode, i)
				proxy.Judge(once("INSERT INTO", fate))
				c, _, err := s.Begin(ctx, key, payloadA)
				if err != nil {
					t.Fatalf("Begin = %v", err)
				}
				if c.Attempt != 1 {
					t.Errorf("%q is attempt %d", key, c.Attempt)
				}
				proxy.Judge(once("UPDATE", fate))
				if err := s.Complete(ctx, c, idem.Result{Body: []byte(key)}); err != nil {
					t.Errorf("Complete = %v", err)
				}
				proxy.Judge(nil)
				if err := s.Complete(ctx, c, idem.Result{Body: []byte(key)}); err != nil {
					t.Errorf("Complete, repeated = %v", err)
				}
				if err := s.Complete(ctx, c, idem.Result{Body: []byte("other")}); !errors.Is(err, idem.ErrCompleted) {
					t.Errorf("Complete with another result = %v", err)
				}
				if r, err := s.Lookup(ctx, key); err != nil || string(r.Result.Body) != key || r.Attempt != 1 {
					t.Errorf("Lookup = %+v, %v", r, err)
				}
			}
		})
	}
}

// PG-6: the connection is cut at any point of a claim. Each key is claimed once,
// by the one who was told so.
func TestPG6_RetriedInsertRecognisesItsOwnRow(t *testing.T) {
	ctx := context.Background()
	f, proxy := proxied(t, 8)
	s := newStore(t, f, nil)
	rnd := testenv.Rand(t)
	start := time.Now()
	if _, _, err := s.Begin(ctx, "before", payloadA); err != nil {
		t.Fatal(err)
	}
	usual := max(int(time.Since(start)), 1)
	// Between two cuts some claims succeed, however slow everything is: a claim needs
	// a new connection after each.
	const workers, each = 4, 125
	claimed := make(chan struct{})
	cuts := 0
	var cutting sync.WaitGroup
	cutting.Go(func() {
		for range claimed {
			if rnd.IntN(4) == 0 {
				time.Sleep(time.Duration(rnd.IntN(usual))) // into the next ones
				proxy.Cut()
				cuts++
			}
		}
	})
	var all sync.WaitGroup
	var failed atomic.Int64
	for w := range workers {
		all.Go(func() {
			for i := range each {
				key := fmt.Sprintf("k%d-%d", w, i)
				c, done, err := s.Begin(ctx, key, payloadA)
				switch {
				case err != nil && !errors.Is(err, idem.ErrUnavailable):
					t.Errorf("%q: %v", key, err) // in progress, by whom?
				case err != nil:
					failed.Add(1)
				case done != nil || c.Attempt != 1:
					t.Errorf("%q: %+v, %+v", key, c, done)
				default:
					select {
					case claimed <- struct{}{}:
					default: // a cut is on its way
					}
				}
			}
		})
	}
	all.Wait()
	close(claimed)
	cutting.Wait()
	t.Logf("%d cuts, %d of %d claims failed", cuts, failed.Load(), workers*each)
	if failed.Load() > workers*each/2 || cuts < 10 {
		t.Errorf("%d cuts, and %d of %d claims failed: too few cuts, or more than half of the claims", cuts, failed.Load(), workers*each)
	}
}

// Reliability row 9: the context of each call ends at any point. What was
// acknowledged is there; what was definitely refused is not.
func TestRow9_ContextEndsAnywhere(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 8)
	rnd := testenv.Rand(t)
	claim := func() idem.Record {
		return idem.Record{Token: idem.NewKey() + ".1", Status: idem.InProgress, Attempt: 1, Lease: time.Minute, TTL: time.Hour}
	}
	// Many calls are interrupted, by what one takes here and now.
	var took []time.Duration
	for i := range 101 {
		start := time.Now()
		if _, err := f.Swap(ctx, fmt.Sprintf("before%d", i), "", claim()); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	usual := int(took[50])
	var acknowledged, definite, unknown int
	for i := range 400 {
		key := fmt.Sprintf("k%d", i)
		short, cancel := context.WithTimeout(ctx, time.Duration(rnd.IntN(3*usual)))
		r := claim()
		got, err := f.Swap(short, key, "", r)
		cancel()
		stored, lookErr := f.Get(ctx, key)
		switch {
		case lookErr != nil:
			t.Fatal(lookErr)
		case err == nil:
			acknowledged++
			if got.Token != r.Token || stored.Token != r.Token {
				t.Errorf("an acknowledged claim is missing: %+v", stored)
			}
		case !errors.Is(err, context.DeadlineExceeded):
			t.Errorf("Swap = %v", err)
		case surely(err):
			definite++
			if stored.Token != "" {
				t.Errorf("a claim that surely had no effect is stored: %v", err)
			}
		default:
			unknown++
		}
	}
	t.Logf("%d acknowledged, %d definitely not, %d unknown", acknowledged, definite, unknown)
	if definite+unknown < 50 {
		t.Errorf("only %d calls were interrupted", definite+unknown)
	}
}

// surely reports whether err says that nothing has happened: a claim whose
// function returns it is given back.
func surely(err error) bool {
	s, newErr := idem.New(memory.New(), nil)
	if newErr != nil {
		panic(newErr)
	}
	ctx := context.Background()
	_, _ = s.Do(ctx, "k", payloadA, func(context.Context, *idem.Claim) (idem.Result, error) { return idem.Result{}, err })
	r, _ := s.Lookup(ctx, "k")
	return r.Status == idem.Released
}

// Reliability row 10 and RD-7: nothing comes back any more. Calls return at their
// deadline, and their connections are not used again.
func TestRow10_SilentConnection(t *testing.T) {
	ctx := context.Background()
	f, proxy := proxied(t, 4)
	s := newStore(t, f, nil)
	for i := range 20 {
		proxy.Judge(func([]byte) faultproxy.Fate { return faultproxy.Silence })
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		started := time.Now()
		_, _, err := s.Begin(short, fmt.Sprintf("k%d", i), payloadA)
		took := time.Since(started)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, idem.ErrUnavailable) {
			t.Errorf("Begin = %v", err)
		}
		if took > 2*time.Second {
			t.Errorf("Begin took %v with a deadline of 100ms", took)
		}
		proxy.Judge(nil)
		if c, _, err := s.Begin(ctx, fmt.Sprintf("after%d", i), payloadA); c == nil {
			t.Errorf("afterwards: %v", err)
		}
	}
}

// A connection that went silent holds up those who are on it, and nobody else.
func TestSilentConnectionDoesNotHoldUpOthers(t *testing.T) {
	ctx := context.Background()
	f, proxy := proxied(t, 8)
	s := newStore(t, f, nil)
	var hung atomic.Int64
	proxy.Judge(func([]byte) faultproxy.Fate {
		if hung.Add(1) <= 2 {
			return faultproxy.Silence
		}
		return faultproxy.Pass
	})
	stuck, giveUp := context.WithCancel(ctx)
	var all sync.WaitGroup
	for i := range 2 {
		all.Go(func() { _, _, _ = s.Begin(stuck, fmt.Sprintf("stuck%d", i), payloadA) })
	}
	for hung.Load() < 2 {
		time.Sleep(time.Millisecond) // gives way; what is waited for is the condition
	}
	var waiting sync.WaitGroup
	for i := range 20 {
		waiting.Go(func() {
			late, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			if c, _, err := s.Begin(late, fmt.Sprintf("k%d", i), payloadA); c == nil {
				t.Errorf("Begin = %v", err)
			}
		})
	}
	waiting.Wait()
	giveUp()
	all.Wait()
}

// Reliability row 11: latency, answers in pieces of three bytes, resets.
func TestRow11_SlowNetwork(t *testing.T) {
	ctx := context.Background()
	f, proxy := proxied(t, 4)
	s := newStore(t, f, nil)
	for what, set := range map[string]func(){
		"latency": func() { proxy.Delay(30 * time.Millisecond) },
		"slices":  func() { proxy.Slice(3) },
		"resets":  func() { proxy.Refuse(true); proxy.Refuse(false) },
	} {
		for i := range 10 {
			set()
			key := fmt.Sprintf("%s%d", what, i)
			c, _, err := s.Begin(ctx, key, payloadA)
			if err != nil {
				t.Fatalf("%s: Begin = %v", what, err)
			}
			if err := s.Complete(ctx, c, idem.Result{Body: []byte(key)}); err != nil {
				t.Errorf("%s: Complete = %v", what, err)
			}
			if _, done, err := s.Begin(ctx, key, payloadA); done == nil || string(done.Result.Body) != key {
				t.Errorf("%s: %+v, %v", what, done, err)
			}
			proxy.Delay(0)
			proxy.Slice(0)
		}
	}
}

// FL-4: the store is down in one way or another. Nothing runs.
func TestFL4_StoreDown(t *testing.T) {
	base, schema := testpg.Schema(t)
	migrated(t, open(t, base, 2), &postgres.Options{Schema: schema})
	refusing := faultproxy.New(t, "127.0.0.1:1")
	closed := open(t, base, 2)
	closed.Close()
	slow, slowly := proxied(t, 2)
	slowly.Judge(func([]byte) faultproxy.Fate { return faultproxy.Silence })
	for what, pool := range map[string]*pgxpool.Pool{
		"refusing":       open(t, "postgres://postgres@"+refusing.Addr()+"/postgres?sslmode=disable&connect_timeout=1", 2),
		"read-only":      open(t, testpg.With(base, "default_transaction_read_only", "on"), 2),
		"authentication": open(t, strings.Replace(base, "postgres@", "nobody@", 1), 2),
		"timing out":     slow.pool,
		"closed":         closed,
	} {
		t.Run(what, func(t *testing.T) {
			b, err := postgres.New(pool, &postgres.Options{Schema: schema})
			if err != nil {
				t.Fatal(err)
			}
			for _, call := range []func(context.Context, *idem.Store) error{
				func(ctx context.Context, s *idem.Store) error {
					_, _, err := s.Begin(ctx, "k", payloadA)
					return err
				},
				func(ctx context.Context, s *idem.Store) error {
					_, err := s.Do(ctx, "k", payloadA, func(context.Context, *idem.Claim) (idem.Result, error) {
						t.Error("the function ran")
						return idem.Result{}, nil
					})
					return err
				},
			} {
				ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
				err := call(ctx, newStore(t, b, nil))
				cancel()
				if !errors.Is(err, idem.ErrUnavailable) || errors.Is(err, idem.ErrInProgress) {
					t.Errorf("%v, want ErrUnavailable", err)
				}
				if what == "read-only" {
					if _, ok := errors.AsType[*pgconn.PgError](err); !ok || !strings.Contains(err.Error(), "connect to the primary") {
						t.Errorf("the error does not tell the reason: %v", err)
					}
				}
			}
		})
	}
}

// crowd returns how many callers come at once: many, or so few that their calls are
// put together in another way.
func crowd(round int) int { return []int{64, 4}[round%2] }

// What is wrong with one call is told to that call alone, whoever shared its round
// trip.
func TestErrorsOfABatchHitTheirCaller(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4)
	f.exec(t, `ALTER TABLE `+f.schema+`.idem_records ADD CHECK (key NOT LIKE 'bad%')`)
	f.exec(t, `ALTER TABLE `+f.schema+`.idem_records ALTER lease DROP NOT NULL`)
	s := newStore(t, f, nil)
	for i := range 10 {
		if c, _, err := s.Begin(ctx, fmt.Sprintf("damaged%d", i), payloadA); c == nil {
			t.Fatal(err)
		}
	}
	f.exec(t, `UPDATE `+f.schema+`.idem_records SET lease = NULL`)
	for round := range 20 {
		var all sync.WaitGroup
		for i := range crowd(round) {
			all.Go(func() {
				key := fmt.Sprintf("good%d-%d", round, i)
				switch i % 8 {
				case 0:
					key = fmt.Sprintf("bad%d-%d", round, i)
				case 1:
					key = fmt.Sprintf("damaged%d", i%10)
				}
				c, _, err := s.Begin(ctx, key, payloadA)
				switch key[0] {
				case 'b':
					if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "23514" || !errors.Is(err, idem.ErrUnavailable) {
						t.Errorf("%q: %v", key, err)
					}
				case 'd':
					if !errors.Is(err, idem.ErrCorrupt) {
						t.Errorf("%q: %v", key, err)
					}
				default:
					if c == nil {
						t.Errorf("%q: %v", key, err)
					} else if err := s.Complete(ctx, c, idem.Result{}); err != nil {
						t.Errorf("%q: %v", key, err)
					}
				}
			})
		}
		all.Wait()
	}
}

// One caller of a batch gives up, and the others do not notice.
func TestGivingUpInABatchHurtsNobody(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4)
	s := newStore(t, f, nil)
	rnd := testenv.Rand(t)
	for round := range 20 {
		var all sync.WaitGroup
		for i := range crowd(round) {
			impatient := i%4 == 0
			patience := time.Duration(rnd.IntN(2000)) * time.Microsecond
			all.Go(func() {
				ctx := ctx
				if impatient {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, patience)
					defer cancel()
				}
				c, _, err := s.Begin(ctx, fmt.Sprintf("k%d-%d", round, i), payloadA)
				if c == nil && (!impatient || !errors.Is(err, context.DeadlineExceeded)) {
					t.Errorf("Begin = %v", err)
				}
			})
		}
		all.Wait()
	}
}

// Reliability row 1, PG-1 and CL-1: many callers and few keys, from several pools.
func TestRow1_ManyCallersOneKey(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 8)
	var stores []*idem.Store
	for range 4 {
		b, err := postgres.New(open(t, f.url, 4), &postgres.Options{Schema: f.schema})
		if err != nil {
			t.Fatal(err)
		}
		stores = append(stores, newStore(t, b, nil))
	}
	rnd := testenv.Rand(t)
	for round := range 20 {
		// With one key they wait in turn; with more, batches that have some in common meet.
		keys := []int{1, 24}[round%2]
		claims := make([]atomic.Int64, keys)
		var busy, done atomic.Int64
		var all sync.WaitGroup
		for i := range 200 {
			n := rnd.IntN(keys)
			if i < keys {
				n = i // each is wanted
			}
			all.Go(func() {
				key := fmt.Sprintf("k%d-%d", round, n)
				s := stores[i%len(stores)]
				c, r, err := s.Begin(ctx, key, payloadA)
				switch {
				case c != nil:
					claims[n].Add(1)
					if err := s.Complete(ctx, c, idem.Result{Body: []byte(key)}); err != nil {
						t.Errorf("Complete = %v", err)
					}
				case r != nil:
					done.Add(1)
					if string(r.Result.Body) != key {
						t.Errorf("got the result %q", r.Result.Body)
					}
				case errors.Is(err, idem.ErrInProgress):
					busy.Add(1)
				default:
					t.Errorf("Begin = %v", err)
				}
			})
		}
		all.Wait()
		for n := range claims {
			if got := claims[n].Load(); got != 1 {
				t.Errorf("%d claims of key %d of %d; in all %d in progress, %d replays", got, n, keys, busy.Load(), done.Load())
			}
		}
	}
}
