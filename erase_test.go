package idem_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

func completeKey(t *testing.T, s *idem.Store) {
	t.Helper()
	if err := s.Complete(context.Background(), begin(t, s, "k", payloadA), result1); err != nil {
		t.Fatal(err)
	}
}

// An erased answer still keeps duplicates away, and does not live a moment longer.
func TestEraseDoesNotMoveTheExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		var events []idem.Event
		mem := memory.New()
		s := open(t, mem, &idem.Options{Retention: retention, Scope: "tenant", Observe: func(_ context.Context, e idem.Event) { events = append(events, e) }})
		completeKey(t, s)
		before := lookup(t, s, "k")
		for range 3 {
			time.Sleep(retention / 4)
			if err := s.Erase(ctx, "k"); err != nil {
				t.Fatal(err)
			}
			if e := events[len(events)-1]; e.Op != "erase" || e.Key != "k" || e.Attempt != 1 || e.Err != nil {
				t.Errorf("event %+v", e)
			}
			c, done, err := s.Begin(ctx, "k", payloadA)
			if c != nil || err != nil || !done.Result.Equal(idem.Result{Code: result1.Code, Omitted: true}) {
				t.Fatalf("Begin = %v, %v, %v", c, done, err)
			}
			if done.Attempt != before.Attempt || done.Fence != before.Fence || done.Fingerprint != before.Fingerprint {
				t.Errorf("the record is %+v, and was %+v", done, before)
			}
		}
		time.Sleep(retention/4 - 1)
		if r := lookup(t, s, "k"); r.Status != idem.Completed {
			t.Errorf("1 ns before its expiry the record is %+v", r)
		}
		time.Sleep(time.Nanosecond)
		if r := lookup(t, s, "k"); r.Status != 0 {
			t.Errorf("the record is %+v, want it to have expired", r)
		}
	})
}

// An answer that has nothing but its code is what it was.
func TestEraseOfNothing(t *testing.T) {
	ctx := context.Background()
	s := open(t, memory.New(), nil)
	if err := s.Complete(ctx, begin(t, s, "k", payloadA), idem.Result{Code: 204}); err != nil {
		t.Fatal(err)
	}
	before := lookup(t, s, "k")
	if err := s.Erase(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	if r := lookup(t, s, "k"); r.Token != before.Token || r.Result.Omitted {
		t.Errorf("the record is %+v", r)
	}
}

// A Swap whose reply is lost may be repeated by calling Erase again.
func TestEraseAfterALostReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		mem := memory.New()
		completeKey(t, open(t, mem, nil))
		broken := true
		s := open(t, newFaulty(mem, func(string, int, idem.Record) fate {
			if broken {
				return muted
			}
			return fine
		}), nil)
		if err := s.Erase(ctx, "k"); !errors.Is(err, idem.ErrUnavailable) {
			t.Errorf("Erase = %v", err)
		}
		broken = false
		if err := s.Erase(ctx, "k"); err != nil {
			t.Error(err)
		}
		if r := lookup(t, s, "k"); !r.Result.Equal(idem.Result{Code: result1.Code, Omitted: true}) {
			t.Errorf("the result is %+v", r.Result)
		}
		if err := s.Erase(ctx, ""); !errors.Is(err, idem.ErrKey) {
			t.Errorf("Erase of no key = %v", err)
		}
	})
}

func TestRest(t *testing.T) {
	const never = 100 * 365 * 24 * time.Hour
	for _, tc := range []struct {
		name          string
		in            idem.Record
		ago           time.Duration
		lease, ttl    time.Duration
		lapsed, isOut bool
	}{
		{"completed", idem.Record{Status: idem.Completed, TTL: 24 * time.Hour, Age: time.Hour}, time.Hour, 0, 22 * time.Hour, false, false},
		{"expired on the way", idem.Record{Status: idem.Completed, TTL: 24 * time.Hour, Age: 23 * time.Hour}, 2 * time.Hour, 0, 0, false, true},
		{"released", idem.Record{Status: idem.Released, TTL: time.Hour, Age: time.Minute}, 0, 0, 59 * time.Minute, false, false},
		{"running", idem.Record{Status: idem.InProgress, Lease: 30, TTL: 100, Age: 10}, 5, 15, 85, false, false},
		{"lapsed", idem.Record{Status: idem.InProgress, Lease: 30, TTL: 100, Age: 50}, 5, 1, 45, false, false},
		{"abandoned", idem.Record{Status: idem.InProgress, Lease: 0, TTL: 100, Age: 50}, 5, 0, 45, true, false},
		{"held", idem.Record{Status: idem.InProgress, Lease: 30, TTL: never, Age: 48 * time.Hour}, 5, 1, never, false, false},
		{"a clock set back", idem.Record{Status: idem.InProgress, Lease: 30, TTL: 100, Age: -50}, -5, 30, 100, false, false},
	} {
		got := tc.in.Rest(tc.ago)
		if got.Lease != tc.lease || got.TTL != tc.ttl || got.Age != 0 || got.Lapsed() != tc.lapsed || got.Expired() != tc.isOut {
			t.Errorf("%s: lease %d, TTL %v, age %v, lapsed %v, expired %v", tc.name, got.Lease, got.TTL, got.Age, got.Lapsed(), got.Expired())
		}
	}
}
