package idem_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// A Store in a transaction keeps to itself: no goroutine, no heartbeat, no
// waiting, no repetition, nothing given back.
func TestBoundStoreKeepsToItself(t *testing.T) {
	ctx := context.Background()
	t.Run("no heartbeat", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newFaulty(memory.New(), nil)
			s := open(t, nil, &idem.Options{Lease: lease}).With(b)
			before := runtime.NumGoroutine()
			out, err := s.Do(ctx, "k", payloadA, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
				if n := runtime.NumGoroutine(); n > before {
					t.Errorf("%d goroutines more", n-before)
				}
				time.Sleep(3 * lease)
				return result1, ctx.Err()
			})
			if err != nil || !out.Result.Equal(result1) || b.count("Swap") != 2 {
				t.Errorf("%+v, %v with %d Swaps, want a claim and a completion", out, err, b.count("Swap"))
			}
		})
	})
	t.Run("no waiting", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newFaulty(memory.New(), nil)
			s := open(t, b, nil)
			begin(t, s, "k", payloadA)
			tx := s.With(b)
			if _, err := tx.Do(ctx, "k", payloadA, returning(new(atomic.Int64), result1, nil)); !errors.Is(err, idem.ErrInProgress) {
				t.Errorf("Do = %v", err)
			}
			if err := tx.Wait(ctx, "k"); !errors.Is(err, idem.ErrInProgress) {
				t.Errorf("Wait = %v", err)
			}
		})
	})
	t.Run("no repetition", func(t *testing.T) {
		for _, f := range []fate{lost, muted} {
			b := newFaulty(memory.New(), func(string, int, idem.Record) fate { return f })
			if _, _, err := open(t, nil, nil).With(b).Begin(ctx, "k", payloadA); !errors.Is(err, idem.ErrUnavailable) || b.count("Swap") != 1 {
				t.Errorf("Begin = %v after %d Swaps", err, b.count("Swap"))
			}
			b = newFaulty(memory.New(), during(idem.Completed, 0, f))
			out, err := open(t, nil, nil).With(b).Do(ctx, "k", payloadA, returning(new(atomic.Int64), result1, nil))
			// Nothing is done before the commit, so this is no ErrNotRecorded.
			if !errors.Is(err, idem.ErrUnavailable) || errors.Is(err, idem.ErrNotRecorded) || b.count("Swap") != 2 {
				t.Errorf("Do = %+v, %v after %d Swaps", out, err, b.count("Swap"))
			}
		}
	})
	t.Run("nothing given back", func(t *testing.T) {
		for _, err := range []error{errBroken, idem.NoEffect(errBroken)} {
			b := newFaulty(memory.New(), nil)
			if _, got := open(t, nil, nil).With(b).Do(ctx, "k", payloadA, returning(new(atomic.Int64), result1, err)); got != errBroken {
				t.Errorf("Do = %v", got)
			}
			if b.count("Swap") != 1 {
				t.Errorf("%d Swaps", b.count("Swap"))
			}
		}
	})
}

// A completion in a transaction that is rolled back leaves the claim in memory
// as it was: it can be run again with the same claim.
func TestBoundStoreDoesNotChangeTheClaim(t *testing.T) {
	ctx := context.Background()
	s := open(t, nil, nil)
	c := begin(t, s, "k", payloadA)
	for range 2 { // rolled back: what was written in it is gone
		tx := memory.New()
		present := lookup(t, s, "k")
		if _, err := tx.Swap(ctx, "k", "", present); err != nil {
			t.Fatal(err)
		}
		bound := s.With(tx)
		if err := bound.Extend(ctx, c); err != nil {
			t.Fatal(err)
		}
		if err := bound.Complete(ctx, c, result1); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Release(ctx, c); err != nil {
		t.Error(err)
	}
	if r := lookup(t, s, "k"); r.Status != idem.Released {
		t.Errorf("Release after the rollbacks left %v: the claim took itself for completed", r.Status)
	}
}

// ErrRetryTx, ErrCorrupt, ErrStoreLost and ErrLocked keep their class, and are
// not repeated.
func TestClassesOfStorageErrors(t *testing.T) {
	ctx := context.Background()
	for _, class := range []error{idem.ErrRetryTx, idem.ErrCorrupt, idem.ErrStoreLost, idem.ErrLocked} {
		b := classed{memory.New(), class}
		s := open(t, b, nil)
		_, _, err := s.Begin(ctx, "k", payloadA)
		if !errors.Is(err, class) || errors.Is(err, idem.ErrUnavailable) {
			t.Errorf("Begin = %v, want %v", err, class)
		}
		if _, err := s.Lookup(ctx, "k"); !errors.Is(err, class) {
			t.Errorf("Lookup = %v, want %v", err, class)
		}
	}
	s := open(t, classed{memory.New(), errBroken}, nil)
	if _, err := s.Lookup(ctx, "k"); !errors.Is(err, idem.ErrUnavailable) || !errors.Is(err, errBroken) {
		t.Errorf("Lookup = %v", err)
	}
}

type classed struct {
	*memory.Backend
	err error
}

func (b classed) Get(context.Context, string) (idem.Record, error) {
	return idem.Record{}, errors.Join(b.err, errBroken)
}

func (b classed) Swap(context.Context, string, string, idem.Record) (idem.Record, error) {
	return idem.Record{}, errors.Join(b.err, errBroken)
}

// What is observed: every operation, with its outcome.
func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		var events []idem.Event
		s := open(t, nil, &idem.Options{Lease: lease, Scope: "shop", NoWait: true, Observe: func(_ context.Context, e idem.Event) { events = append(events, e) }})
		s = s.Scoped("tenant")
		expect := func(want ...idem.Event) {
			t.Helper()
			if len(events) != len(want) {
				t.Fatalf("events %+v, want %d", events, len(want))
			}
			for i, w := range want {
				e := events[i]
				if e.Key != "k" || e.Scope != "shop\x1ftenant" || e.Op != w.Op || e.Attempt != w.Attempt || e.Takeover != w.Takeover || e.Replayed != w.Replayed || !errors.Is(e.Err, w.Err) || e.Elapsed != w.Elapsed {
					t.Errorf("event %d is %+v, want %+v", i, e, w)
				}
			}
			events = nil
		}
		c := begin(t, s, "k", payloadA)
		_ = s.Abandon(ctx, c)
		expect(idem.Event{Op: "begin", Attempt: 1}, idem.Event{Op: "abandon", Attempt: 1})
		_, _ = s.Do(ctx, "k", payloadA, func(context.Context, *idem.Claim) (idem.Result, error) {
			time.Sleep(lease / 2)
			return result1, nil
		})
		expect(idem.Event{Op: "begin", Attempt: 2, Takeover: true}, idem.Event{Op: "extend", Attempt: 2, Takeover: true},
			idem.Event{Op: "complete", Attempt: 2, Takeover: true}, idem.Event{Op: "do", Attempt: 2, Elapsed: lease / 2})
		_, _ = s.Do(ctx, "k", payloadA, succeed)
		expect(idem.Event{Op: "begin", Attempt: 2, Replayed: true}, idem.Event{Op: "do", Attempt: 2, Replayed: true})
		_, _ = s.Do(ctx, "k", payloadB, succeed)
		expect(idem.Event{Op: "begin", Attempt: 2, Err: idem.ErrMismatch}, idem.Event{Op: "do", Err: idem.ErrMismatch})
		_ = s.Forget(ctx, "k", 2)
		_, _ = s.Reclaim(ctx, "k", 3)
		_, _ = s.Lookup(ctx, "k")
		_ = s.Wait(ctx, "k")
		expect(idem.Event{Op: "forget", Attempt: 2, Err: idem.ErrCompleted}, idem.Event{Op: "reclaim", Attempt: 3, Err: idem.ErrLost},
			idem.Event{Op: "lookup", Attempt: 2}, idem.Event{Op: "wait", Attempt: 2})
	})
}
