package idem_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

func item(key string) idem.Item { return idem.Item{Key: key, Fingerprint: payloadA} }

// endAll ends each task with a result that names its key.
func endAll(_ context.Context, tasks []*idem.Task) error {
	for _, t := range tasks {
		t.End(resultOf(t.Claim.Key), nil)
	}
	return nil
}

func resultOf(key string) idem.Result { return idem.Result{Code: 200, Body: []byte("of " + key)} }

// FL-2, for a batch: each task ends as it says, and what fn returns, or that it
// does not return, is the end of the others.
func TestFL2_EndingsOfABatch(t *testing.T) {
	errCard, errRest := errors.New("declined by accident"), errors.New("connection lost")
	items := []idem.Item{item("done"), item("none"), item("unknown"), item("rest")}
	for name, end := range map[string]func() error{
		"nil":       func() error { return nil },
		"error":     func() error { return errRest },
		"no effect": func() error { return idem.NoEffect(errRest) },
		"panic":     func() error { panic("boom") },
		"goexit":    func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, nil, nil)
			var ends []idem.Ending
			var panicked any
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				defer func() { panicked = recover() }()
				ends = s.DoAll(context.Background(), items, func(_ context.Context, tasks []*idem.Task) error {
					tasks[0].End(result1, nil)
					tasks[0].End(idem.Result{}, errCard) // only the first counts
					tasks[1].End(result1, idem.NoEffect(errCard))
					tasks[2].End(result1, errCard)
					return end()
				})
			}()
			<-ended
			if (name == "panic") != (panicked == "boom") {
				t.Errorf("panicked with %v", panicked)
			}
			rest := idem.InProgress
			if name == "no effect" {
				rest = idem.Released
			}
			for i, want := range []idem.Status{idem.Completed, idem.Released, idem.InProgress, rest} {
				if r := lookup(t, s, items[i].Key); r.Status != want || r.Lapsed() != (want == idem.InProgress) {
					t.Errorf("%q is %v, lapsed %v; want %v", items[i].Key, r.Status, r.Lapsed(), want)
				}
			}
			if ends == nil {
				if name != "panic" && name != "goexit" {
					t.Error("DoAll did not return")
				}
				return
			}
			errs := []error{nil, errCard, errCard, errRest}
			for i, e := range ends {
				if i == 3 && name == "nil" {
					if e.Err == nil || errors.Is(e.Err, idem.ErrOptions) {
						t.Errorf("a task that was forgotten ended with %v", e.Err)
					}
				} else if e.Err != errs[i] {
					t.Errorf("%q ended with %v, want %v as it is", items[i].Key, e.Err, errs[i])
				}
				if want := (i == 0); e.Result.Equal(result1) != want || e.Replayed || e.Attempt != 1 {
					t.Errorf("%q: %+v", items[i].Key, e)
				}
			}
		})
	}
}

// Items with one key and payload are one operation; another payload is a
// mistake of its own.
func TestDoAllWithOneKeySeveralTimes(t *testing.T) {
	for _, noWait := range []bool{false, true} {
		s := open(t, nil, &idem.Options{NoWait: noWait})
		runs := 0
		items := []idem.Item{item("a"), item("b"), item("a"), {Key: "a", Fingerprint: payloadB}, item("")}
		ends := s.DoAll(context.Background(), items, func(ctx context.Context, tasks []*idem.Task) error {
			runs += len(tasks)
			return endAll(ctx, tasks)
		})
		for i, want := range []error{nil, nil, nil, idem.ErrMismatch, idem.ErrKey} {
			if !errors.Is(ends[i].Err, want) || want == nil && !ends[i].Result.Equal(resultOf(items[i].Key)) || ends[i].Replayed != (i == 2) {
				t.Errorf("item %d: %+v, want %v", i, ends[i], want)
			}
		}
		if runs != 2 {
			t.Errorf("%d operations ran, want 2", runs)
		}
		ends[2].Result.Body[0] = 'x'
		if ends[0].Result.Body[0] == 'x' {
			t.Error("two items share the memory of their results")
		}
	}
	// Those who share an operation share its failure.
	errLost := errors.New("lost")
	for _, end := range open(t, nil, nil).DoAll(context.Background(), []idem.Item{item("a"), item("a")}, func(context.Context, []*idem.Task) error { return errLost }) {
		if end.Err != errLost || end.Replayed {
			t.Errorf("%+v", end)
		}
	}
}

// Two batches that each need a key of the other's do not wait for each other:
// nobody holds claims while he waits.
func TestDoAllHoldsNothingWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		var runs [3]atomic.Int64
		do := func(ends chan<- []idem.Ending, keys ...string) {
			var items []idem.Item
			for _, k := range keys {
				items = append(items, item(k))
			}
			ends <- open(t, b, nil).DoAll(context.Background(), items, func(ctx context.Context, tasks []*idem.Task) error {
				time.Sleep(time.Minute)
				for _, task := range tasks {
					runs[task.Claim.Key[0]-'a'].Add(1)
				}
				return endAll(ctx, tasks)
			})
		}
		ends := make(chan []idem.Ending)
		start := time.Now()
		go do(ends, "a", "b")
		synctest.Wait()
		go do(ends, "c", "b") // gets c, has to wait for b
		synctest.Wait()
		go do(ends, "c", "a") // gets nothing
		for range 3 {
			for _, end := range <-ends {
				if end.Err != nil || end.Result.Code != 200 {
					t.Errorf("%+v", end)
				}
			}
		}
		if took := time.Since(start); took > time.Minute+time.Second {
			t.Errorf("it took %v, want hardly more than a minute", took)
		}
		for k := range runs {
			if n := runs[k].Load(); n != 1 {
				t.Errorf("operation %d ran %d times", k, n)
			}
		}
	})
}

// What others release, or let lapse, is run in another round; what they keep is
// in progress when the caller gives up.
func TestDoAllRunsWhatOthersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, nil, &idem.Options{Lease: time.Minute})
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		released, kept := begin(t, s, "released", payloadA), begin(t, s, "kept", payloadA)
		begin(t, s, "lapses", payloadA)
		var others sync.WaitGroup
		defer others.Wait()
		others.Go(func() {
			time.Sleep(10 * time.Second)
			if err := s.Release(context.Background(), released); err != nil {
				t.Error(err)
			}
			for ctx.Err() == nil {
				if err := s.Extend(context.Background(), kept); err != nil {
					t.Error(err)
				}
				time.Sleep(20 * time.Second)
			}
		})
		var rounds [][]string
		var takeovers []string
		ends := s.DoAll(ctx, []idem.Item{item("free"), item("released"), item("lapses"), item("kept")}, func(ctx context.Context, tasks []*idem.Task) error {
			var keys []string
			for _, task := range tasks {
				keys = append(keys, task.Claim.Key)
				if task.Claim.Takeover {
					takeovers = append(takeovers, task.Claim.Key)
				}
			}
			rounds = append(rounds, keys)
			return endAll(ctx, tasks)
		})
		if got := fmt.Sprint(rounds, takeovers); got != "[[free] [released] [lapses]] [lapses]" {
			t.Errorf("it ran in the rounds %s", got)
		}
		for i, end := range ends {
			if i == 3 {
				if !errors.Is(end.Err, idem.ErrInProgress) || !errors.Is(end.Err, context.DeadlineExceeded) {
					t.Errorf("the one that is kept: %+v", end)
				}
			} else if end.Err != nil {
				t.Errorf("%+v", end)
			}
		}
	})
}

func TestDoAllNoWait(t *testing.T) {
	s := open(t, nil, &idem.Options{NoWait: true})
	begin(t, s, "running", payloadA)
	ends := s.DoAll(context.Background(), []idem.Item{item("running"), item("free")}, endAll)
	refused, ok := errors.AsType[*idem.Error](ends[0].Err)
	if !ok || !errors.Is(refused, idem.ErrInProgress) || refused.RetryAfter() == 0 || ends[1].Err != nil {
		t.Errorf("%+v", ends)
	}
}

// All claims are extended in one call, every third of the lease, and all that can
// be done is recorded when one is lost.
func TestDoAllExtendsInOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatcher()
		s := open(t, b, &idem.Options{Lease: 30 * time.Second})
		items := itemsOf(50)
		ends := s.DoAll(context.Background(), items, func(ctx context.Context, tasks []*idem.Task) error {
			b.swapsOf()
			time.Sleep(65 * time.Second)
			if many, alone := b.swapsOf(); !slices.Equal(many, []int{50, 50, 50, 50, 50, 50}) || alone != 0 {
				t.Errorf("in 65 s with a lease of 30 s: batches of %v and %d swaps", many, alone)
			}
			return endAll(ctx, tasks)
		})
		for _, end := range ends {
			if end.Err != nil {
				t.Error(end.Err)
			}
		}
		if many, _ := b.swapsOf(); !slices.Equal(many, []int{50}) {
			t.Errorf("the results were recorded in batches of %v", many)
		}
	})
}

func TestDoAllLosesAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatcher()
		var down atomic.Bool
		b.answer = func(_ int, do func() []idem.Swapped) []idem.Swapped {
			if down.Load() {
				return nil
			}
			return do()
		}
		s := open(t, b, &idem.Options{Lease: 30 * time.Second})
		other := open(t, b.Backend, &idem.Options{Lease: time.Hour})
		ends := s.DoAll(context.Background(), []idem.Item{item("a"), item("b"), item("c")}, func(ctx context.Context, tasks []*idem.Task) error {
			start := time.Now()
			down.Store(true)
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, idem.ErrLost) || time.Since(start) != 30*time.Second {
				t.Errorf("cancelled after %v with the cause %v", time.Since(start), cause)
			}
			begin(t, other, "b", payloadA)
			down.Store(false)
			return endAll(ctx, tasks) // it was not told in time
		})
		for i, want := range []error{nil, idem.ErrNotRecorded, nil} {
			if !errors.Is(ends[i].Err, want) || !ends[i].Result.Equal(resultOf(string(rune('a'+i)))) {
				t.Errorf("%d: %+v, want its result and %v", i, ends[i], want)
			}
		}
		if !errors.Is(ends[1].Err, idem.ErrLost) {
			t.Errorf("the one that was taken over: %v", ends[1].Err)
		}
	})
}

// A function needs time to heed that one claim is lost. Nobody else runs the
// other items in that time.
func TestDoAllHoldsTheOthersWhenAClaimIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatcher()
		s := open(t, b, &idem.Options{Lease: 30 * time.Second})
		other := open(t, b.Backend, &idem.Options{Lease: time.Hour})
		var down atomic.Bool
		b.answer = func(_ int, do func() []idem.Swapped) []idem.Swapped {
			if down.Load() {
				return nil
			}
			return do()
		}
		ends := s.DoAll(context.Background(), []idem.Item{item("a"), item("b"), item("c")}, func(ctx context.Context, tasks []*idem.Task) error {
			down.Store(true)
			<-ctx.Done()
			begin(t, other, "b", payloadA)
			down.Store(false)
			time.Sleep(5 * time.Minute) // in a call that has no context
			for _, key := range []string{"a", "c"} {
				if c, _, err := other.Begin(context.Background(), key, payloadA); !errors.Is(err, idem.ErrInProgress) {
					t.Errorf("somebody else runs %q while its attempt does: %+v, %v", key, c, err)
				}
			}
			return endAll(ctx, tasks)
		})
		for i, want := range []error{nil, idem.ErrLost, nil} {
			if !errors.Is(ends[i].Err, want) {
				t.Errorf("%d: %v, want %v", i, ends[i].Err, want)
			}
		}
	})
}

// A caller who hangs up loses no result, and results that cannot be recorded are
// tried for as long as the lease lasts.
func TestDoAllRecordsWhateverItTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatcher()
		s := open(t, b, nil)
		ctx, hangUp := context.WithCancel(context.Background())
		failures := 0
		ends := s.DoAll(ctx, itemsOf(5), func(ctx context.Context, tasks []*idem.Task) error {
			hangUp()
			b.answer = func(_ int, do func() []idem.Swapped) []idem.Swapped {
				swapped := do()
				if failures++; failures <= 3 {
					swapped[0].Err, swapped[1].Err = errBroken, errBroken
				}
				return swapped
			}
			return endAll(ctx, tasks)
		})
		for i, end := range ends {
			if end.Err != nil || lookup(t, s, itemsOf(5)[i].Key).Status != idem.Completed {
				t.Errorf("%+v", end)
			}
		}
		if many, _ := b.swapsOf(); !slices.Equal(many, []int{5, 5, 2, 2, 2}) {
			t.Errorf("batches of %v, want those repeated whose answer was lost", many)
		}
		b.answer = nil
		start := time.Now()
		ends = s.DoAll(context.Background(), []idem.Item{item("x"), item("y")}, func(ctx context.Context, tasks []*idem.Task) error {
			b.answer = func(int, func() []idem.Swapped) []idem.Swapped { return nil }
			return endAll(ctx, tasks)
		})
		for _, end := range ends {
			if !errors.Is(end.Err, idem.ErrNotRecorded) || errors.Is(end.Err, idem.ErrLost) || end.Result.Code != 200 {
				t.Errorf("%+v", end)
			}
		}
		if took := time.Since(start); took < 25*time.Second || took > 35*time.Second {
			t.Errorf("it was tried for %v, want about the lease of 30s", took)
		}
		b.answer = nil
		if r := lookup(t, s, "x"); r.Status != idem.InProgress {
			t.Errorf("the claim is %v, want it kept", r.Status)
		}
	})
}

// fn may complete some of its claims itself, in the transaction of the change.
func TestDoAllWithClaimsThatFnCompletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatcher()
		s := open(t, b, nil)
		ends := s.DoAll(context.Background(), itemsOf(4), func(ctx context.Context, tasks []*idem.Task) error {
			if err := s.With(b).Complete(ctx, tasks[1].Claim, resultOf(tasks[1].Claim.Key)); err != nil {
				return err
			}
			time.Sleep(time.Hour / 2) // the others are extended
			if ctx.Err() != nil {
				t.Error(context.Cause(ctx))
			}
			return endAll(ctx, tasks)
		})
		for _, end := range ends {
			if end.Err != nil {
				t.Error(end.Err)
			}
		}
	})
}

// A claim that comes after the end of its lease is no claim.
func TestDoAllWithLateClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatcher()
		slow := 0
		b.answer = func(_ int, do func() []idem.Swapped) []idem.Swapped {
			swapped := do()
			if slow > 0 {
				slow--
				time.Sleep(2 * time.Second)
			}
			return swapped
		}
		s := open(t, b, &idem.Options{Lease: time.Second})
		slow = 1
		runs := 0
		count := func(ctx context.Context, tasks []*idem.Task) error {
			runs += len(tasks)
			return endAll(ctx, tasks)
		}
		for _, end := range s.DoAll(context.Background(), itemsOf(3), count) {
			if end.Err != nil {
				t.Error(end.Err)
			}
		}
		if runs != 3 {
			t.Errorf("%d runs, want 3", runs)
		}
		slow = 100
		for _, end := range s.DoAll(context.Background(), []idem.Item{item("x"), item("y")}, count) {
			if !errors.Is(end.Err, idem.ErrUnavailable) {
				t.Errorf("%+v", end)
			}
		}
		if runs != 3 {
			t.Error("an operation ran under a claim that was over")
		}
	})
}

func TestDoAllWithoutAFunction(t *testing.T) {
	for _, end := range open(t, nil, nil).DoAll(context.Background(), itemsOf(2), nil) {
		if !errors.Is(end.Err, idem.ErrOptions) {
			t.Errorf("%+v", end)
		}
	}
}
