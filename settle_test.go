package idem_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// Every sentinel, wrapped as a Store wraps it and bare, has its settlement.
func TestSettleEverySentinel(t *testing.T) {
	const (
		backOff = "back-off"
		minute  = "minute"
		none    = "none"
	)
	for _, c := range []struct {
		err    error
		action idem.Action
		after  string
	}{
		{nil, idem.Ack, none},
		{idem.ErrMismatch, idem.DeadLetter, none},
		{idem.ErrKey, idem.DeadLetter, none},
		{idem.ErrOptions, idem.DeadLetter, none},
		{idem.ErrUnresolved, idem.Retry, minute},
		{idem.ErrCorrupt, idem.Retry, minute},
		{idem.ErrStoreLost, idem.Retry, minute},
		{idem.ErrInProgress, idem.Retry, backOff}, // bare it tells no time; see below
		{idem.ErrNotRecorded, idem.Retry, backOff},
		{idem.ErrLost, idem.Retry, backOff},
		{idem.ErrCompleted, idem.Retry, backOff},
		{idem.ErrRetryTx, idem.Retry, backOff},
		{idem.ErrUnavailable, idem.Retry, backOff},
		{idem.ErrLocked, idem.Retry, backOff},
		{context.Canceled, idem.Retry, "at once"},
		{context.DeadlineExceeded, idem.Retry, backOff},
		{errBroken, idem.Retry, backOff},
		{idem.NoEffect(errBroken), idem.Retry, backOff},

		// What comes together: the first cause counts.
		{fmt.Errorf("%w: %w", idem.ErrNotRecorded, idem.ErrLost), idem.Retry, backOff},
		{fmt.Errorf("%w: %w", idem.ErrNotRecorded, idem.ErrCompleted), idem.Retry, backOff},
		{fmt.Errorf("%w: %w", idem.ErrNotRecorded, idem.ErrCorrupt), idem.Retry, backOff},
		{fmt.Errorf("%w: %w", idem.ErrNotRecorded, idem.ErrKey), idem.Retry, backOff},
		{fmt.Errorf("%w: %w", idem.ErrUnavailable, context.Canceled), idem.Retry, "at once"},
		{fmt.Errorf("%w: %w", idem.ErrUnavailable, context.DeadlineExceeded), idem.Retry, backOff},
	} {
		for _, err := range []error{c.err, wrapped(c.err), &idem.Error{Op: "do", Key: "k", Err: c.err}} {
			if c.err == nil {
				err = nil
			}
			for delivery, base := range map[int]time.Duration{-1: 1, 0: 1, 1: 1, 2: 2, 3: 4, 6: 32, 7: 60, 1000: 60} {
				got := idem.Settle(err, delivery)
				base *= time.Second
				var low, high time.Duration
				switch {
				case c.after == minute:
					low, high = 30*time.Second, time.Minute
				case c.after == backOff, c.after == "at once" && delivery > 1:
					low, high = base/2, base
				}
				if e, ok := err.(*idem.Error); ok && e.RetryAfter() > 0 {
					low, high = e.RetryAfter(), e.RetryAfter()
				}
				if got.Action != c.action || got.After < low || got.After > high {
					t.Errorf("delivery %d, %v: %v after %v, want %v after %v to %v", delivery, err, got.Action, got.After, c.action, low, high)
				}
			}
		}
	}
}

func wrapped(err error) error { return fmt.Errorf("handling the message: %w", err) }

// Messages that failed together do not come back together.
func TestSettleSpreadsRetries(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 100 {
		seen[idem.Settle(errBroken, 3).After] = true
	}
	if len(seen) < 50 {
		t.Errorf("100 messages come back at %d different times", len(seen))
	}
}

// A delivery that meets a running attempt comes back when its lease is over, and
// not before, whether Do has waited for it or not.
func TestSettleInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, nil, &idem.Options{Lease: lease, NoWait: true})
		begin(t, s, "k", payloadA)
		time.Sleep(lease / 4)
		_, err := s.Do(context.Background(), "k", payloadA, returning(new(atomic.Int64), result1, nil))
		want := idem.Settlement{Action: idem.Retry, After: lease - lease/4}
		if got := idem.Settle(wrapped(err), 9); got != want {
			t.Errorf("%v: %+v, want %+v", err, got, want)
		}
		waiting := open(t, nil, &idem.Options{Lease: lease})
		begin(t, waiting, "k", payloadA)
		ctx, cancel := context.WithTimeout(context.Background(), lease/2)
		defer cancel()
		_, err = waiting.Do(ctx, "k", payloadA, returning(new(atomic.Int64), result1, nil))
		if got := idem.Settle(err, 1); got.Action != idem.Retry || got.After < lease/2 || got.After > lease {
			t.Errorf("a consumer that stops while it waits: %v: %+v", err, got)
		}
	})
}

// A response that is too large to be stored is never there for a duplicate: its
// deliveries must not go round for ever.
func TestSettleOmittedResponse(t *testing.T) {
	s := open(t, nil, &idem.Options{MaxResult: 8})
	answer := func(context.Context, string) (string, error) { return "more than eight bytes", nil }
	_, err := idem.Call(context.Background(), s, "k", "request", answer)
	if got := idem.Settle(err, 1); got.Action != idem.Ack {
		t.Errorf("the first delivery: %v: %+v", err, got)
	}
	_, err = idem.Call(context.Background(), s, "k", "request", answer)
	if got := idem.Settle(err, 1); !errors.Is(err, idem.ErrNotRecorded) || got.Action != idem.DeadLetter {
		t.Errorf("a duplicate: %v: %+v", err, got)
	}
}

// An effect that could not be recorded is not forgotten by acknowledging it: the
// redelivery is told, and its record is written.
func TestSettleNotRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := true
		b := newFaulty(memory.New(), func(method string, n int, r idem.Record) fate {
			if down && r.Status == idem.Completed {
				return never
			}
			return fine
		})
		s := open(t, b, &idem.Options{Lease: lease, NoWait: true})
		takeovers := 0
		handle := func(_ context.Context, c *idem.Claim) (idem.Result, error) {
			if c.Takeover {
				takeovers++
			}
			return result1, nil
		}
		_, err := s.Do(context.Background(), "k", payloadA, handle)
		got := idem.Settle(err, 1)
		if !errors.Is(err, idem.ErrNotRecorded) || got.Action != idem.Retry {
			t.Fatalf("%v: %+v", err, got)
		}
		down = false
		for delivery := 2; got.Action == idem.Retry && delivery < 10; delivery++ {
			time.Sleep(got.After)
			_, err = s.Do(context.Background(), "k", payloadA, handle)
			got = idem.Settle(err, delivery)
		}
		if got.Action != idem.Ack || takeovers != 1 || lookup(t, s, "k").Status != idem.Completed {
			t.Errorf("in the end %v: %+v, with %d takeovers", err, got, takeovers)
		}
	})
}

func TestActionString(t *testing.T) {
	for a, want := range map[idem.Action]string{idem.Ack: "ack", idem.Retry: "retry", idem.DeadLetter: "dead-letter", 0: "action-0"} {
		if a.String() != want {
			t.Errorf("%q, want %q", a.String(), want)
		}
	}
}
