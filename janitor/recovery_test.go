package janitor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/janitor"
)

const lease = 30 * time.Second

type recovery = func(context.Context, *idem.Claim) (idem.Result, error)

// How Recover ends decides what becomes of the claim.
func TestRecoverDecides(t *testing.T) {
	errBoom := errors.New("provider is down")
	answer := idem.Result{Code: 201, Body: []byte("receipt")}
	for _, tt := range []struct {
		name   string
		fn     recovery
		broken bool // completions fail
		status idem.Status
		report janitor.Report // counts
		err    string         // in the report
	}{
		{"result", func(context.Context, *idem.Claim) (idem.Result, error) { return answer, nil }, false, idem.Completed, janitor.Report{Recovered: 1}, ""},
		{"no effect", func(context.Context, *idem.Claim) (idem.Result, error) {
			return idem.Result{}, idem.NoEffect(errBoom)
		}, false, idem.Released, janitor.Report{Freed: 1}, ""},
		{"no effect, wrapped", func(context.Context, *idem.Claim) (idem.Result, error) {
			return idem.Result{}, fmt.Errorf("asked: %w", idem.NoEffect(errBoom))
		}, false, idem.Released, janitor.Report{Freed: 1}, ""},
		{"error", func(context.Context, *idem.Claim) (idem.Result, error) { return answer, errBoom }, false, idem.InProgress, janitor.Report{Unresolved: 1}, `idem: recover "order-1": provider is down`},
		{"panic", func(context.Context, *idem.Claim) (idem.Result, error) { panic(errBoom) }, false, idem.InProgress, janitor.Report{Unresolved: 1}, `idem: recover "order-1": panic: provider is down`},
		{"goexit", func(context.Context, *idem.Claim) (idem.Result, error) { runtime.Goexit(); return answer, nil }, false, idem.InProgress, janitor.Report{Unresolved: 1}, `runtime.Goexit`},
		{"not recorded", func(context.Context, *idem.Claim) (idem.Result, error) { return answer, nil }, true, idem.InProgress, janitor.Report{Unresolved: 1}, idem.ErrNotRecorded.Error()},
	} {
		for _, policy := range []idem.LapsePolicy{idem.Takeover, idem.Hold} {
			t.Run(fmt.Sprintf("%s/%v", tt.name, policy), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := &hooked{Backend: memory.New()}
					if tt.broken {
						b.swap = func(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
							if new.Status == idem.Completed {
								return idem.Record{}, errBoom
							}
							return b.Backend.Swap(ctx, key, old, new)
						}
					}
					store := open(t, b, &idem.Options{OnLapse: policy})
					lapse(t, store, "order-1", "bank reference")
					time.Sleep(time.Hour)
					report, err := janitor.Sweep(context.Background(), b, &janitor.Options{Recover: func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
						if c.Key != "order-1" || !c.Takeover || string(c.Checkpoint) != "bank reference" || c.Attempt != 2 || c.Fingerprint != payload {
							t.Errorf("claim %+v", c)
						}
						return tt.fn(ctx, c)
					}})
					if report.Recovered != tt.report.Recovered || report.Freed != tt.report.Freed || report.Unresolved != tt.report.Unresolved || report.Incomplete {
						t.Errorf("%+v, want %+v", report, tt.report)
					}
					if (tt.err == "") != (err == nil) || tt.err != "" && !strings.Contains(err.Error(), tt.err) {
						t.Errorf("error %v, want %q", err, tt.err)
					}
					if tt.err != "" && tt.name != "goexit" && !errors.Is(err, errBoom) {
						t.Errorf("%v has lost its cause", err)
					}
					if tt.report.Unresolved > 0 && (report.Oldest < time.Hour || report.Oldest > time.Hour+lease) {
						t.Errorf("the oldest is open for %v", report.Oldest)
					}
					r := lookup(t, store, "order-1")
					if r.Status != tt.status || r.Status == idem.Completed && !r.Result.Equal(answer) {
						t.Errorf("stored: %+v, want %v", r, tt.status)
					}
					// What is not decided is open to the next run, at the latest
					// after the lease.
					time.Sleep(lease)
					if r := lookup(t, store, "order-1"); r.Status == idem.InProgress && (!r.Lapsed() || string(r.Checkpoint) != "bank reference") {
						t.Errorf("left: %+v", r)
					}
				})
			})
		}
	}
}

// Any number of janitors recovers each claim once.
func TestTwoJanitors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		store := open(t, b, &idem.Options{OnLapse: idem.Hold})
		const claims = 500
		for i := range claims {
			complete(t, store, fmt.Sprint("old", i))
		}
		time.Sleep(24 * time.Hour)
		// No write in between: it would delete expired records itself.
		fresh := memory.New()
		if r, err := janitor.Sweep(t.Context(), fresh, nil); err != nil || r.Swept != 0 {
			t.Errorf("a storage that was never used: %+v, %v", r, err)
		}
		var mu sync.Mutex
		recovered := map[string]int{}
		var seen reports
		opts := &janitor.Options{
			Observe: seen.add,
			Recover: func(_ context.Context, c *idem.Claim) (idem.Result, error) {
				time.Sleep(time.Second)
				mu.Lock()
				defer mu.Unlock()
				recovered[c.Key]++
				return idem.Result{Code: 1}, nil
			},
		}
		var stops []func()
		for range 2 {
			stops = append(stops, start(t, b, opts))
		}
		time.Sleep(time.Second)
		for i := range claims {
			lapse(t, store, fmt.Sprint(i), "")
		}
		time.Sleep(20 * time.Minute)
		for _, stop := range stops {
			stop()
		}
		var sum janitor.Report
		for _, r := range seen.list() {
			sum.Swept += r.Swept
			sum.Recovered += r.Recovered
			sum.Errors = append(sum.Errors, r.Errors...)
		}
		if sum.Swept != claims || sum.Recovered != claims || len(recovered) != claims || len(sum.Errors) > 0 {
			t.Errorf("%+v with %d keys, want %d of each", sum, len(recovered), claims)
		}
		for key, n := range recovered {
			if n != 1 {
				t.Errorf("%s was recovered %d times", key, n)
			}
		}
	})
}

// A recovery that takes longer than its lease keeps the claim, up to MaxHold.
func TestRecoverIsKeptAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		store := open(t, b, &idem.Options{OnLapse: idem.Hold, NoWait: true})
		lapse(t, store, "slow", "")
		lapse(t, store, "endless", "")
		var cause error
		stop := start(t, b, &janitor.Options{
			Store: &idem.Options{Lease: lease, MaxHold: 20 * lease},
			Recover: func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
				if c.Key == "endless" {
					<-ctx.Done()
					cause = context.Cause(ctx)
					return idem.Result{}, cause
				}
				time.Sleep(10 * lease)
				return idem.Result{Code: 1}, context.Cause(ctx)
			},
		})
		defer stop()
		time.Sleep(time.Second)
		for range 29 {
			if _, _, err := store.Begin(t.Context(), "slow", payload); !errors.Is(err, idem.ErrInProgress) {
				t.Errorf("beside the recovery: %v", err)
			}
			time.Sleep(lease / 3)
		}
		time.Sleep(lease)
		if r := lookup(t, store, "slow"); r.Status != idem.Completed {
			t.Errorf("slow: %+v", r)
		}
		time.Sleep(11 * lease)
		if r := lookup(t, store, "endless"); !errors.Is(cause, idem.ErrLost) || !r.Lapsed() {
			t.Errorf("endless: ended by %v, %+v", cause, r)
		}
	})
}

// A recovery that has lost its claim is told, and changes nothing.
func TestRecoverLosesItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		store := open(t, b, nil)
		lapse(t, store, "k", "")
		report, err := janitor.Sweep(t.Context(), b, &janitor.Options{Recover: func(ctx context.Context, _ *idem.Claim) (idem.Result, error) {
			r, _ := b.Get(t.Context(), "k")
			taken := r
			taken.Token, taken.Attempt = "other.1", 3
			if _, err := b.Swap(t.Context(), "k", r.Token, taken); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return idem.Result{Code: 1}, nil
		}})
		if !errors.Is(err, idem.ErrLost) || !errors.Is(err, idem.ErrNotRecorded) || report.Unresolved != 1 || report.Recovered != 0 {
			t.Errorf("%+v, %v", report, err)
		}
		if r := lookup(t, store, "k"); r.Token != "other.1" {
			t.Errorf("the taker's record was changed: %+v", r)
		}
	})
}

func TestRecoveriesInParallel(t *testing.T) {
	for parallel, want := range map[int]int64{0: 4, 1: 1, 7: 7} {
		synctest.Test(t, func(t *testing.T) {
			b := memory.New()
			store := open(t, b, nil)
			for i := range 250 { // more than a page
				lapse(t, store, fmt.Sprint(i), "")
			}
			var now, most atomic.Int64
			report, err := janitor.Sweep(t.Context(), b, &janitor.Options{Parallel: parallel, Recover: func(context.Context, *idem.Claim) (idem.Result, error) {
				most.Store(max(most.Load(), now.Add(1)))
				defer now.Add(-1)
				time.Sleep(time.Second)
				return idem.Result{Code: 1}, nil
			}})
			if err != nil || report.Recovered != 250 || most.Load() != want {
				t.Errorf("Parallel %d: %+v, %v, %d at a time", parallel, report, err, most.Load())
			}
		})
	}
}

// Recoveries have a budget, too; those that failed do not keep the others waiting.
func TestBudgetOfRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		store := open(t, b, &idem.Options{OnLapse: idem.Hold})
		for i := range 30 {
			lapse(t, store, fmt.Sprintf("%02d", i), "")
		}
		var seen reports
		var tried []string
		stop := start(t, b, &janitor.Options{
			Parallel: 1,
			Budget:   10 * time.Second,
			Observe:  seen.add,
			Recover: func(_ context.Context, c *idem.Claim) (idem.Result, error) {
				time.Sleep(time.Second)
				tried = append(tried, c.Key)
				return idem.Result{}, errors.New("unknown")
			},
		})
		time.Sleep(10 * time.Minute)
		stop()
		if r := seen.list()[0]; r.Unresolved != 10 || r.Duration != 10*time.Second || !r.Incomplete {
			t.Errorf("the first run: %+v", r)
		}
		slices.Sort(tried)
		if n := len(slices.Compact(tried)); n != 30 {
			t.Errorf("%d of 30 claims were tried in 10 minutes", n)
		}
	})
}

// Only claims of the Store's scope are recovered, and Recover learns the scope.
func TestScopes(t *testing.T) {
	b := memory.New()
	all := open(t, b, nil)
	shop := open(t, b, &idem.Options{Scope: "shop"})
	stores := []*idem.Store{all, shop, shop.Scoped("tenant"), all.Scoped("shopping")}
	for _, s := range stores {
		lapse(t, s, "k", "")
	}
	recovered := func(opts janitor.Options) (scopes []string) {
		var mu sync.Mutex
		opts.Recover = func(_ context.Context, c *idem.Claim) (idem.Result, error) {
			mu.Lock()
			defer mu.Unlock()
			scopes = append(scopes, strings.Join(c.Scope(), "/"))
			return idem.Result{Code: 1}, nil
		}
		if _, err := janitor.Sweep(t.Context(), b, &opts); err != nil {
			t.Error(err)
		}
		slices.Sort(scopes)
		return scopes
	}
	if got := recovered(janitor.Options{Store: &idem.Options{Scope: "shop"}}); !slices.Equal(got, []string{"shop", "shop/tenant"}) {
		t.Errorf("scope shop: %q", got)
	}
	if got := recovered(janitor.Options{}); !slices.Equal(got, []string{"", "shopping"}) {
		t.Errorf("the rest: %q", got)
	}
	for _, s := range stores {
		if r := lookup(t, s, "k"); r.Status != idem.Completed || r.TTL != idem.MinRetention {
			t.Errorf("%+v", r)
		}
	}
}

// What is recovered is kept as the Store's options say; what is not, as long as
// the policy it began with says.
func TestStoreOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		hold := open(t, b, &idem.Options{OnLapse: idem.Hold})
		lapse(t, hold, "done", "")
		lapse(t, hold, "open", "")
		var events atomic.Int64
		_, err := janitor.Sweep(t.Context(), b, &janitor.Options{
			Store: &idem.Options{Retention: idem.MaxRetention, MaxResult: 3, Observe: func(context.Context, idem.Event) { events.Add(1) }},
			Recover: func(_ context.Context, c *idem.Claim) (idem.Result, error) {
				if c.Key == "open" {
					return idem.Result{}, errors.New("unknown")
				}
				return idem.Result{Body: []byte("long")}, nil
			},
		})
		if err == nil || events.Load() == 0 {
			t.Errorf("%v, %d events", err, events.Load())
		}
		if r := lookup(t, hold, "done"); r.TTL != idem.MaxRetention || !r.Result.Omitted {
			t.Errorf("%+v", r)
		}
		time.Sleep(365 * 24 * time.Hour)
		if _, _, err := hold.Begin(t.Context(), "open", payload); !errors.Is(err, idem.ErrUnresolved) {
			t.Errorf("a year later: %v, want ErrUnresolved", err)
		}
	})
}

// A claim keeps to the policy it began with, whatever that of the janitor's Store.
func TestPolicyOfTheClaim(t *testing.T) {
	b := memory.New()
	store := open(t, b, nil)
	lapse(t, store, "k", "")
	want := lookup(t, store, "k").TTL
	_, err := janitor.Sweep(t.Context(), b, &janitor.Options{
		Store:   &idem.Options{OnLapse: idem.Hold},
		Recover: func(context.Context, *idem.Claim) (idem.Result, error) { return idem.Result{}, errors.New("unknown") },
	})
	if err == nil {
		t.Error("Sweep returns no error of Recover")
	}
	if r := lookup(t, store, "k"); r.TTL != want || r.Attempt != 2 {
		t.Errorf("%+v; want the TTL %v", r, want)
	}
}

// The log names keys in the attribute "key" only, so that they can be masked there,
// and has no content.
func TestLogHasNoSecrets(t *testing.T) {
	b := memory.New()
	store := open(t, b, &idem.Options{Scope: "anna.scope"})
	for _, key := range []string{"anna.error", "anna.panic", "anna.free", "anna.done", "anna.lost"} {
		lapse(t, store, key, "s3cret note")
	}
	run := func(logger *slog.Logger) error {
		_, err := janitor.Sweep(t.Context(), b, &janitor.Options{Logger: logger, Recover: func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
			answer := idem.Result{Code: 201, Meta: map[string]string{"m": "s3cret meta"}, Body: []byte("s3cret body")}
			switch c.Key {
			case "anna.error":
				return answer, errors.New("boom")
			case "anna.panic":
				panic("ouch")
			case "anna.free":
				return answer, idem.NoEffect(errors.New("nothing there"))
			case "anna.lost":
				return answer, store.Abandon(ctx, c)
			}
			return answer, nil
		}})
		return err
	}
	var plain log
	err := run(plain.logger(nil))
	for _, want := range []string{"key=anna.error", "scope=[anna.scope]", "key=anna.panic", "key=anna.free", "key=anna.done", "error=boom", "stack=", "retry_in=", "unresolved=2"} {
		if !strings.Contains(plain.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, plain.String())
		}
	}
	if e, ok := errors.AsType[*idem.Error](err); !ok || !strings.HasPrefix(e.Key, "anna.") {
		t.Errorf("the error has no key: %v", err)
	}
	if strings.Contains(plain.String()+err.Error(), "s3cret") {
		t.Errorf("content is in the log or the error:\n%s\n%v", plain.String(), err)
	}
	var masked log
	_ = run(masked.logger(func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == "key" || a.Key == "scope" {
			return slog.String(a.Key, "***")
		}
		return a
	}))
	if text := masked.String(); strings.Contains(text, "anna") || !strings.Contains(text, "***") {
		t.Errorf("a key is elsewhere in the log:\n%s", text)
	}
}

// A report has the first errors and counts the rest.
func TestManyErrors(t *testing.T) {
	b := memory.New()
	store := open(t, b, nil)
	for i := range 250 {
		lapse(t, store, fmt.Sprint(i), "")
	}
	report, err := janitor.Sweep(t.Context(), b, &janitor.Options{Recover: func(context.Context, *idem.Claim) (idem.Result, error) {
		return idem.Result{}, errors.New("unknown")
	}})
	if err == nil || len(report.Errors) != 100 || report.Unresolved != 250 {
		t.Errorf("%d errors, %d unresolved, %v", len(report.Errors), report.Unresolved, err)
	}
}
