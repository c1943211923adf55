package janitor_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/janitor"
)

// start runs a janitor that is stopped, and has returned, when stop returns.
func start(t testing.TB, b idem.Backend, opts *janitor.Options) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- janitor.Run(ctx, b, opts) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
	}
}

// What is wrong with the options shows before anything has happened.
func TestOptionsAreChecked(t *testing.T) {
	undecided := func(context.Context, *idem.Claim) (idem.Result, error) { return idem.Result{}, errors.New("no") }
	for name, tt := range map[string]struct {
		opts janitor.Options
		want string
	}{
		"negative interval":   {janitor.Options{Interval: -1}, "interval -1ns"},
		"endless interval":    {janitor.Options{Interval: math.MaxInt64}, "is not within"},
		"negative budget":     {janitor.Options{Budget: -1}, "budget -1ns"},
		"negative parallel":   {janitor.Options{Parallel: -1}, "-1 recoveries"},
		"retention too short": {janitor.Options{Store: &idem.Options{Retention: time.Hour}}, "retention 1h0m0s is below"},
		"bad scope":           {janitor.Options{Store: &idem.Options{Scope: "a\x00"}}, "control character"},
		"no lister":           {janitor.Options{Recover: undecided}, "cannot list its records"},
	} {
		calls := 0
		// Only the methods of a Backend: it is no Lister.
		b := struct{ idem.Backend }{&hooked{Backend: memory.New(), sweep: func(context.Context, int) (int, error) {
			calls++
			return 0, nil
		}}}
		err := janitor.Run(t.Context(), b, &tt.opts)
		_, once := janitor.Sweep(t.Context(), b, &tt.opts)
		for _, err := range []error{err, once} {
			if !errors.Is(err, idem.ErrOptions) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v, want ErrOptions with %q", name, err, tt.want)
			}
		}
		if calls > 0 {
			t.Errorf("%s: the backend was called", name)
		}
	}
	if err := janitor.Run(t.Context(), nil, nil); !errors.Is(err, idem.ErrOptions) {
		t.Errorf("no backend: %v", err)
	}
}

func TestRunSweepsInIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, interval := range []time.Duration{0, time.Second, 7 * 24 * time.Hour} {
			var runs []time.Time
			stop := start(t, memory.New(), &janitor.Options{
				Interval: interval,
				Observe:  func(context.Context, janitor.Report) { runs = append(runs, time.Now()) },
			})
			if interval == 0 {
				interval = time.Minute
			}
			begun := time.Now()
			time.Sleep(30 * interval)
			stop()
			if len(runs) < 24 || len(runs) > 41 || !runs[0].Equal(begun) {
				t.Fatalf("%v: %d runs in 30 intervals, the first %v after the start", interval, len(runs), runs[0].Sub(begun))
			}
			different := map[time.Duration]bool{}
			for i := range runs[1:] {
				d := runs[i+1].Sub(runs[i])
				if different[d] = true; !about(d, interval) {
					t.Errorf("%v: a run %v after the one before", interval, d)
				}
			}
			if len(different) < 2 {
				t.Errorf("%v: the intervals do not vary", interval)
			}
		}
	})
}

// RT-2 (c): a Sweep that fails and one that panics are reported, and the third run
// sweeps.
func TestRT2_RunGoesOnAfterErrorsAndPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errSweep := errors.New("no such bucket")
		b := &hooked{Backend: memory.New()}
		store := open(t, b, nil)
		for i := range 50 {
			complete(t, store, fmt.Sprint(i))
		}
		time.Sleep(24 * time.Hour)
		n := 0
		b.sweep = func(ctx context.Context, limit int) (int, error) {
			switch n++; n {
			case 1:
				return 0, errSweep
			case 2:
				panic(errSweep)
			}
			return b.Backend.Sweep(ctx, limit)
		}
		var l log
		var seen reports
		stop := start(t, b, &janitor.Options{
			Logger:  l.logger(nil),
			Observe: seen.add,
		})
		time.Sleep(150 * time.Second)
		stop()
		if len(seen.list()) < 3 {
			t.Fatalf("%d runs", len(seen.list()))
		}
		for i, r := range seen.list()[:2] {
			if len(r.Errors) != 1 || !errors.Is(r.Errors[0], errSweep) || !r.Incomplete || r.Swept != 0 {
				t.Errorf("run %d: %+v, want the error", i, r)
			}
		}
		if r := seen.list()[2]; r.Swept != 50 || len(r.Errors) > 0 || r.Incomplete {
			t.Errorf("the third run: %+v, want 50 swept", r)
		}
		if text := l.String(); strings.Count(text, "level=WARN") != 2 || !strings.Contains(text, `error="panic: no such bucket" stack=`) {
			t.Errorf("the log does not have both:\n%s", text)
		}
	})
}

// Batches are bounded, and so is the time that a run goes on beginning them.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rest := 100 * 1000
		b := &hooked{Backend: memory.New(), sweep: func(_ context.Context, limit int) (int, error) {
			if limit != 1000 {
				t.Errorf("a batch of %d", limit)
			}
			time.Sleep(time.Second)
			n := min(limit, rest)
			rest -= n
			return n, nil
		}}
		var seen reports
		stop := start(t, b, &janitor.Options{
			Budget:  10 * time.Second,
			Observe: seen.add,
		})
		time.Sleep(2*time.Minute + 30*time.Second)
		stop()
		if len(seen.list()) < 2 {
			t.Fatalf("%d runs", len(seen.list()))
		}
		for _, r := range seen.list()[:2] {
			if r.Swept != 10_000 || r.Duration != 10*time.Second || !r.Incomplete {
				t.Errorf("%+v, want 10 batches in 10 s", r)
			}
		}
		// However small the budget is, every run gets on.
		before := rest
		if r, err := janitor.Sweep(context.Background(), b, &janitor.Options{Budget: 1}); err != nil || r.Swept != 1000 || !r.Incomplete || rest != before-1000 {
			t.Errorf("with a budget of 1 ns: %+v, %v", r, err)
		}
		// Once, for a scheduled job, it goes to the end.
		left := rest
		if r, err := janitor.Sweep(context.Background(), b, nil); err != nil || r.Swept != left || r.Incomplete || rest != 0 {
			t.Errorf("%+v, %v; want the other %d records", r, err, left)
		}
	})
}

// A storage that does not answer is given up on, and asked again.
func TestSweepThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		b := &hooked{Backend: memory.New(), sweep: func(ctx context.Context, _ int) (int, error) {
			if calls++; calls > 1 {
				return 0, nil
			}
			<-ctx.Done()
			return 0, ctx.Err()
		}}
		var seen reports
		stop := start(t, b, &janitor.Options{Observe: seen.add})
		time.Sleep(5 * time.Minute)
		stop()
		if calls < 2 || !errors.Is(seen.list()[0].Errors[0], context.DeadlineExceeded) || seen.list()[0].Duration != time.Minute {
			t.Errorf("%d calls, first run %+v", calls, seen.list()[0])
		}
	})
}

// A janitor that is stopped returns within one batch, and that is no error.
func TestStop(t *testing.T) {
	t.Run("in the interval", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			stop := start(t, memory.New(), nil)
			time.Sleep(time.Second)
			begun := time.Now()
			stop()
			if d := time.Since(begun); d != 0 {
				t.Errorf("it took %v", d)
			}
		})
	})
	t.Run("between batches", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var seen reports
			stop := start(t, &hooked{Backend: memory.New(), sweep: func(context.Context, int) (int, error) {
				time.Sleep(time.Second) // does not heed its context
				return 1000, nil
			}}, &janitor.Options{Interval: time.Hour, Observe: seen.add})
			time.Sleep(4500 * time.Millisecond)
			begun := time.Now()
			stop()
			if d := time.Since(begun); d != time.Second/2 {
				t.Errorf("it took %v, want the end of the batch", d)
			}
			if len(seen.list()) != 1 || seen.list()[0].Swept != 5000 || !seen.list()[0].Incomplete || len(seen.list()[0].Errors) > 0 {
				t.Errorf("%+v", seen.list())
			}
		})
	})
	t.Run("in a recovery", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := memory.New()
			store := open(t, b, &idem.Options{OnLapse: idem.Hold})
			for i := range 10 {
				lapse(t, store, fmt.Sprint(i), "")
			}
			var l log
			var runs atomic.Int64
			var seen reports
			stop := start(t, b, &janitor.Options{
				Logger:  l.logger(nil),
				Observe: seen.add,
				Recover: func(ctx context.Context, _ *idem.Claim) (idem.Result, error) {
					runs.Add(1)
					<-ctx.Done()
					return idem.Result{}, ctx.Err()
				},
			})
			time.Sleep(5 * time.Minute)
			begun := time.Now()
			stop()
			if d := time.Since(begun); d != 0 || runs.Load() != 4 {
				t.Errorf("it took %v after %d recoveries", d, runs.Load())
			}
			if len(seen.list()) != 1 || len(seen.list()[0].Errors) > 0 || strings.Contains(l.String(), "WARN") {
				t.Errorf("%+v\n%s", seen.list(), l.String())
			}
			for i := range 10 { // open for the next janitor, at once
				if r := lookup(t, store, fmt.Sprint(i)); !r.Lapsed() {
					t.Errorf("claim %d: %+v", i, r)
				}
			}
		})
	})
	t.Run("before the start", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		b := &hooked{Backend: memory.New(), sweep: func(context.Context, int) (int, error) {
			t.Error("it swept")
			return 0, nil
		}}
		if err := janitor.Run(ctx, b, nil); err != nil {
			t.Error(err)
		}
		if r, err := janitor.Sweep(ctx, b, nil); !errors.Is(err, context.Canceled) || !r.Incomplete {
			t.Errorf("Sweep: %+v, %v", r, err)
		}
	})
}

func TestSweepReturnsWhatWentWrong(t *testing.T) {
	errSweep, errList := errors.New("sweep broke"), errors.New("list broke")
	b := &hooked{
		Backend: memory.New(),
		sweep:   func(context.Context, int) (int, error) { return 3, errSweep },
		list:    func(context.Context, idem.Query) ([]idem.Entry, string, error) { return nil, "", errList },
	}
	r, err := janitor.Sweep(t.Context(), b, &janitor.Options{Recover: func(context.Context, *idem.Claim) (idem.Result, error) {
		return idem.Result{}, nil
	}})
	if !errors.Is(err, errSweep) || !errors.Is(err, errList) || r.Swept != 3 || len(r.Errors) != 2 || !r.Incomplete {
		t.Errorf("%+v, %v", r, err)
	}
}

// What the retention and the policies promise holds, however long the janitor was
// away, or the clock jumped.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		takeover := open(t, b, &idem.Options{Scope: "takeover", Lease: time.Hour})
		hold := open(t, b, &idem.Options{Scope: "hold", OnLapse: idem.Hold})
		week := open(t, b, &idem.Options{Scope: "week", Retention: idem.MaxRetention})
		for _, s := range []*idem.Store{takeover, hold, week} {
			complete(t, s, "done")
			if _, _, err := s.Begin(t.Context(), "running", payload); err != nil {
				t.Fatal(err)
			}
		}
		lapse(t, hold, "left", "note")
		check := func(after string, swept int, want map[string]idem.Status) {
			t.Helper()
			r, err := janitor.Sweep(context.Background(), b, nil)
			if err != nil || r.Swept != swept {
				t.Errorf("%s: %+v, %v; want %d swept", after, r, err, swept)
			}
			for name, status := range want {
				scope, key, _ := strings.Cut(name, "/")
				s := map[string]*idem.Store{"takeover": takeover, "hold": hold, "week": week}[scope]
				if got := lookup(t, s, key).Status; got != status {
					t.Errorf("%s: %s is %v, want %v", after, name, got, status)
				}
			}
		}
		time.Sleep(24*time.Hour - 1)
		check("just before the end", 0, map[string]idem.Status{"takeover/done": idem.Completed, "hold/done": idem.Completed})
		time.Sleep(time.Nanosecond)
		check("a day", 2, map[string]idem.Status{
			"takeover/done": 0, "hold/done": 0, "week/done": idem.Completed,
			"takeover/running": idem.InProgress, "hold/running": idem.InProgress, "hold/left": idem.InProgress,
		})
		time.Sleep(time.Hour)
		check("Lease and Retention", 1, map[string]idem.Status{"takeover/running": 0, "week/running": idem.InProgress})
		time.Sleep(365 * 24 * time.Hour)
		check("a year", 2, map[string]idem.Status{
			"week/done": 0, "week/running": 0, "hold/running": idem.InProgress, "hold/left": idem.InProgress,
		})
		if r := lookup(t, hold, "left"); string(r.Checkpoint) != "note" {
			t.Errorf("the checkpoint is %q", r.Checkpoint)
		}
	})
}

// Started and stopped by many at once, beside claims: nothing is lost, recovered
// twice or left running.
func TestStartStopStress(t *testing.T) {
	rnd := testenv.Rand(t)
	b := memory.New()
	store := open(t, b, &idem.Options{OnLapse: idem.Hold})
	const claims = 200
	for i := range claims {
		lapse(t, store, fmt.Sprint(i), "")
	}
	var effects [claims]atomic.Int64
	opts := &janitor.Options{
		Interval: time.Millisecond,
		Recover: func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
			if ctx.Err() != nil {
				return idem.Result{}, ctx.Err()
			}
			var i int
			_, _ = fmt.Sscan(c.Key, &i)
			effects[i].Add(1)
			return idem.Result{Code: 1}, nil
		},
	}
	var wg sync.WaitGroup
	for range 10 {
		waits := make([]int, 50)
		for i := range waits {
			waits[i] = rnd.IntN(200)
		}
		wg.Go(func() {
			for _, n := range waits {
				stop := start(t, b, opts)
				for range n {
					runtime.Gosched()
				}
				stop()
			}
		})
	}
	wg.Wait()
	if _, err := janitor.Sweep(t.Context(), b, opts); err != nil {
		t.Fatal(err)
	}
	for i := range claims {
		// One effect; a stop between effect and record would be a second, but
		// the completion does not depend on ctx.
		if n, r := effects[i].Load(), lookup(t, store, fmt.Sprint(i)); n != 1 || r.Status != idem.Completed {
			t.Errorf("claim %d: %d effects, %v", i, n, r.Status)
		}
	}
}
