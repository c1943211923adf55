package idem_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// The texts, as somebody reads them at night.
func TestErrorTexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		b := memory.New()
		s := open(t, b, &idem.Options{Lease: lease})
		hold := open(t, b, &idem.Options{Lease: lease, OnLapse: idem.Hold})
		down := open(t, newFaulty(b, func(string, int, idem.Record) fate { return never }), nil)
		c := begin(t, s, "order-1", payloadA)
		time.Sleep(1234 * time.Millisecond)
		lapsed := begin(t, s, "order-2", payloadA)
		_ = s.Abandon(ctx, lapsed)
		done := begin(t, s, "order-3", payloadA)
		_ = s.Complete(ctx, done, result1)
		texts := map[string]func() error{
			`idem: begin "order-1": another attempt is in progress (attempt 1 has 8.8s of its lease left; retry after that)`: func() error {
				_, _, err := s.Begin(ctx, "order-1", payloadA)
				return err
			},
			`idem: begin "order-1": key was used with another payload (attempt 1 with the first payload is in-progress; use a new key for another operation)`: func() error {
				_, _, err := s.Begin(ctx, "order-1", payloadB)
				return err
			},
			`idem: begin "order-2": outcome of an earlier attempt is unresolved (attempt 1 ended without a known outcome; find out whether it had its effect, then Resolve or Forget it)`: func() error {
				_, _, err := hold.Begin(ctx, "order-2", payloadA)
				return err
			},
			`idem: complete "order-3": already completed with another result (attempt 1 completed 0s ago; its result stands)`: func() error {
				return s.Complete(ctx, done, result2)
			},
			`idem: extend "order-3": claim is lost (attempt 1 is completed)`: func() error {
				return s.Extend(ctx, done)
			},
			`idem: resolve "order-2": claim is lost: attempt 7 is not the present one (attempt 1 is in-progress)`: func() error {
				return s.Resolve(ctx, "order-2", 7, result1)
			},
			`idem: forget "none": claim is lost: no attempt of this key is open`: func() error {
				return s.Forget(ctx, "none", 1)
			},
			`idem: extend: claim is lost: there is no claim; Begin did not grant one`: func() error {
				return s.Extend(ctx, nil)
			},
			`idem: complete "order-1": claim is lost: the claim is for another key or scope than this Store's`: func() error {
				return s.Scoped("tenant").Complete(ctx, c, result1)
			},
			`idem: complete "order-1": claim is lost (there is no record of it; it expired, or never was)`: func() error {
				return open(t, nil, nil).Complete(ctx, c, result1)
			},
			`idem: begin "order-1": storage unavailable: wire broke`: func() error {
				_, _, err := down.Begin(ctx, "order-1", payloadA)
				return err
			},
			`idem: begin: bad key: the key is empty; the caller has to name the operation, and name it the same in every retry`: func() error {
				_, _, err := s.Begin(ctx, "", payloadA)
				return err
			},
		}
		for want, ask := range texts {
			if err := ask(); err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		}
	})
}

func TestRetryAfter(t *testing.T) {
	for _, tt := range []struct {
		err  error
		rec  idem.Record
		want time.Duration
	}{
		{idem.ErrInProgress, idem.Record{Status: idem.InProgress, Lease: lease, Age: time.Second}, lease - time.Second},
		{idem.ErrInProgress, idem.Record{Status: idem.InProgress, Lease: lease, Age: 2 * lease}, 1},
		{idem.ErrInProgress, idem.Record{Status: idem.InProgress, Lease: lease, Age: -time.Hour}, lease}, // a clock that was set back
		{idem.ErrMismatch, idem.Record{Status: idem.InProgress, Lease: lease}, 0},
		{idem.ErrUnavailable, idem.Record{}, 0},
	} {
		if got := (&idem.Error{Err: tt.err, Record: tt.rec}).RetryAfter(); got != tt.want {
			t.Errorf("%v, %+v: RetryAfter = %v, want %v", tt.err, tt.rec, got, tt.want)
		}
	}
}

func TestNoEffectKeepsTheError(t *testing.T) {
	err := idem.NoEffect(errBroken)
	if !errors.Is(err, errBroken) || err.Error() != errBroken.Error() {
		t.Errorf("NoEffect(%v) = %v", errBroken, err)
	}
}

func TestStatusAndPolicyStrings(t *testing.T) {
	for got, want := range map[string]string{
		idem.Status(0).String(): "absent", idem.InProgress.String(): "in-progress", idem.Completed.String(): "completed", idem.Released.String(): "released", idem.Status(9).String(): "status-9",
		idem.Takeover.String(): "takeover", idem.Hold.String(): "hold", idem.LapsePolicy(9).String(): "policy-9",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Error.Record has the result that stands, also in the error of Do, which is the
// one that a program sees.
func TestErrorOfDoTellsWhatIsStored(t *testing.T) {
	s := open(t, nil, nil)
	_, err := s.Do(context.Background(), "k", payloadA, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
		if err := s.Complete(ctx, c, result2); err != nil {
			t.Error(err)
		}
		return result1, nil
	})
	if !errors.Is(err, idem.ErrCompleted) || !errors.Is(err, idem.ErrNotRecorded) {
		t.Fatal(err)
	}
	if strings.Contains(err.Error(), "attempt 0") {
		t.Errorf("there is no attempt 0: %v", err)
	}
	if e, ok := errors.AsType[*idem.Error](err); !ok || !e.Record.Result.Equal(result2) {
		t.Errorf("Error.Record has %+v", e.Record)
	}
}
