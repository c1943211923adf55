package idem_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// A group of workers shares a context that the first error cancels, with that
// error as its cause: golang.org/x/sync/errgroup does just that. What became of
// one key must not be told as the answer of another.
func TestCauseOfTheContextIsNoAnswer(t *testing.T) {
	for _, first := range []error{idem.ErrMismatch, idem.ErrNotRecorded, idem.ErrCompleted, idem.ErrLost, idem.ErrUnresolved, idem.ErrCorrupt} {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(&idem.Error{Op: "do", Key: "first", Err: first})
		s := open(t, nil, nil)
		_, err := s.Do(ctx, "second", payloadA, returning(new(atomic.Int64), result1, nil))
		if errors.Is(err, first) {
			t.Errorf("Do of a key that was never asked for: %v; errors.Is %q", err, first)
		}
		if !errors.Is(err, idem.ErrUnavailable) {
			t.Errorf("Do = %v, want ErrUnavailable", err)
		}
		c := begin(t, s, "third", payloadA)
		if err := s.Complete(ctx, c, result1); errors.Is(err, first) {
			t.Errorf("Complete of a claim that is held: %v; errors.Is %q", err, first)
		}
	}
}

// The same with ErrInProgress: Do takes the cause for a running duplicate and
// never returns.
func TestDoEndsWhenTheCauseIsErrInProgress(t *testing.T) {
	b := newFaulty(memory.New(), nil)
	s := open(t, b, &idem.Options{NoWait: true})
	begin(t, s, "first", payloadA)
	_, inProgress := s.Do(context.Background(), "first", payloadA, returning(new(atomic.Int64), result1, nil))
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(inProgress)
	var events atomic.Int64
	s = open(t, b, &idem.Options{Observe: func(context.Context, idem.Event) {
		if events.Add(1) > 1000 {
			panic(stuck{})
		}
	}})
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(stuck); !ok {
				panic(r)
			}
			t.Errorf("Do asked again 1000 times and would never have ended: its context is done, with the cause %v", inProgress)
		}
	}()
	if _, err := s.Do(ctx, "second", payloadA, returning(new(atomic.Int64), result1, nil)); !errors.Is(err, context.Canceled) {
		t.Errorf("Do = %v", err)
	}
}

type stuck struct{}

// LS-4 (e): the lease counts from the first time that the claim was sent. Here
// its answer is lost for 2 s, and after the answer nothing reaches the storage.
func TestLeaseCountsFromTheFirstPacket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = 3 * time.Second
		mem := memory.New()
		start := time.Now()
		answered := false
		b := newFaulty(mem, func(method string, n int, rec idem.Record) fate {
			switch {
			case method == "Swap" && n == 0:
				return muted
			case method == "Swap" && !answered && time.Since(start) > 2*time.Second:
				answered = true
				return fine
			}
			return lost
		})
		var told atomic.Int64
		go func() {
			_, _ = open(t, b, &idem.Options{Lease: lease}).Do(context.Background(), "k", payloadA, func(ctx context.Context, _ *idem.Claim) (idem.Result, error) {
				<-ctx.Done()
				told.Store(int64(time.Since(start)))
				return idem.Result{}, ctx.Err()
			})
		}()
		synctest.Wait()
		// Another process.
		_, _ = open(t, mem, &idem.Options{Lease: lease}).Do(context.Background(), "k", payloadA, func(_ context.Context, c *idem.Claim) (idem.Result, error) {
			t.Logf("attempt %d (takeover %v) runs at %v", c.Attempt, c.Takeover, time.Since(start))
			return result1, nil
		})
		time.Sleep(time.Minute)
		if told := time.Duration(told.Load()); told > lease+10*time.Millisecond {
			t.Errorf("the claim was stored at 0s with a lease of %v, and its fn was told to stop at %v", lease, told)
		}
	})
}
