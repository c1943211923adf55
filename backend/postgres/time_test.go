package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

// age makes everything that is stored older by d, or younger.
func (f *fixture) age(t testing.TB, d time.Duration) {
	t.Helper()
	f.exec(t, `UPDATE `+f.schema+`.idem_records SET written_at = written_at - $1::float8 * interval '1 microsecond', sweep_at = sweep_at - $1::float8 * interval '1 microsecond'`, float64(d.Microseconds()))
}

// TM-1 and PE-7: the program's clock and zones have no say. A session in India
// writes, one in New York reads, and the program is in yet another zone.
func TestTM1_PE7_ClocksAndZonesOfClients(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4, "timezone", "Asia/Kolkata", "datestyle", "German")
	west := open(t, f.url, 4)
	for _, zone := range []string{"Asia/Tokyo", "America/New_York", "UTC"} {
		if _, err := west.Exec(ctx, `SET TIME ZONE '`+zone+`'`); err != nil {
			t.Fatal(err)
		}
		s := newStore(t, f, &idem.Options{Lease: 2 * time.Second})
		c, _, err := s.Begin(ctx, zone, payloadA)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = s.Begin(ctx, zone, payloadA)
		e, ok := errors.AsType[*idem.Error](err)
		if !ok || !errors.Is(err, idem.ErrInProgress) || e.RetryAfter() <= 0 || e.RetryAfter() > 2*time.Second {
			t.Errorf("Begin = %v", err)
		}
		f.age(t, 2*time.Second)
		took, _, err := s.Begin(ctx, zone, payloadA)
		if took == nil || !took.Takeover {
			t.Fatalf("after the lease: %+v, %v", took, err)
		}
		if err := s.Complete(ctx, c, idem.Result{}); !errors.Is(err, idem.ErrLost) {
			t.Errorf("the first holder: %v", err)
		}
		if err := s.Complete(ctx, took, idem.Result{Code: 7}); err != nil {
			t.Error(err)
		}
		f.age(t, 24*time.Hour-5*time.Second)
		if _, done, err := s.Begin(ctx, zone, payloadA); done == nil || done.Age < 24*time.Hour-5*time.Second {
			t.Errorf("before the end of the retention: %+v, %v", done, err)
		}
		f.age(t, 5*time.Second)
		if again, _, err := s.Begin(ctx, zone, payloadA); again == nil || again.Attempt != 1 {
			t.Errorf("after the retention: %+v, %v", again, err)
		}
	}
}

// TM-3: durations come back to the nanosecond, and none is so short or so long
// that it turns into another.
func TestTM3_Durations(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4)
	for i, d := range []time.Duration{1, 500 * time.Microsecond, 999 * time.Microsecond, 1500 * time.Millisecond, 100 * 365 * 24 * time.Hour, math.MaxInt64} {
		key := fmt.Sprintf("k%d", i)
		r := idem.Record{Token: key + ".1", Status: idem.InProgress, Attempt: 1, Lease: d, TTL: math.MaxInt64}
		if got, err := f.Swap(ctx, key, "", r); err != nil || got.Lease != d {
			t.Errorf("Swap with a lease of %v: %+v, %v", d, got, err)
		}
		if got, err := f.Get(ctx, key); err != nil || got.Lease != d || got.TTL != math.MaxInt64 || got.Age < 0 {
			t.Errorf("Get with a lease of %v: %+v, %v", d, got, err)
		}
		r = idem.Record{Token: key + ".2", Status: idem.Completed, Attempt: 1, TTL: d}
		if _, err := f.Swap(ctx, "ttl"+key, "", r); err != nil {
			t.Errorf("Swap with a TTL of %v: %v", d, err)
		}
	}
	f.age(t, 1499*time.Millisecond)
	if got, err := f.Get(ctx, "k3"); err != nil || got.LeaseLeft() > 2*time.Millisecond {
		t.Errorf("%v left of a lease of 1.5s after 1.499s, %v", got.LeaseLeft(), err)
	}
	if n, err := f.Sweep(ctx, 100); err != nil || n < 3 || n > 4 {
		t.Errorf("Sweep = %d, %v; three records have lived for less than 1.499s, and one is about to end", n, err)
	}
	if got, err := f.Get(ctx, "ttlk5"); err != nil || got.Token == "" {
		t.Errorf("the longest TTL there is: %+v, %v", got, err)
	}
}

// Reliability row 25: the server's clock goes forward, and back.
func TestRow25_ServerClock(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4)
	s := newStore(t, f, &idem.Options{Lease: 30 * time.Second})
	t.Run("forward", func(t *testing.T) {
		c, _, err := s.Begin(ctx, "forward", payloadA)
		if err != nil {
			t.Fatal(err)
		}
		f.age(t, 5*time.Minute) // as if the clock had gone forward
		early, _, err := s.Begin(ctx, "forward", payloadA)
		if early == nil {
			t.Fatalf("Begin = %v", err)
		}
		if err := s.Complete(ctx, c, idem.Result{}); !errors.Is(err, idem.ErrLost) {
			t.Errorf("the first holder: %v", err)
		}
		if err := s.Complete(ctx, early, idem.Result{}); err != nil {
			t.Error(err)
		}
	})
	for what, look := range map[string]func(key string) error{
		"Begin":  func(key string) error { _, _, err := s.Begin(ctx, key, payloadA); return err },
		"Lookup": func(key string) error { _, err := s.Lookup(ctx, key); return err },
		"many": func(key string) error {
			var all sync.WaitGroup
			for range 64 {
				all.Go(func() { _, _, _ = s.Begin(ctx, key, payloadA) })
			}
			all.Wait()
			return nil
		},
	} {
		t.Run("back, seen by "+what, func(t *testing.T) {
			key := "back" + what
			c, _, err := s.Begin(ctx, key, payloadA)
			if err != nil {
				t.Fatal(err)
			}
			f.age(t, -5*time.Minute)
			if err := look(key); err != nil && !errors.Is(err, idem.ErrInProgress) {
				t.Fatal(err)
			}
			// From that look on the lease lasts no longer than a lease.
			f.age(t, 30*time.Second)
			took, _, err := s.Begin(ctx, key, payloadA)
			if took == nil || !took.Takeover {
				t.Fatalf("a lease after the look: %+v, %v", took, err)
			}
			if err := s.Complete(ctx, c, idem.Result{}); !errors.Is(err, idem.ErrLost) {
				t.Errorf("the first holder: %v", err)
			}
			if err := s.Complete(ctx, took, idem.Result{}); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("back, and the holder completes", func(t *testing.T) {
		c, _, err := s.Begin(ctx, "holder", payloadA)
		if err != nil {
			t.Fatal(err)
		}
		f.age(t, -5*time.Minute)
		if _, err := s.Lookup(ctx, "holder"); err != nil {
			t.Fatal(err)
		}
		if err := s.Complete(ctx, c, idem.Result{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("back, and records are swept", func(t *testing.T) {
		c, _, err := s.Begin(ctx, "swept", payloadA)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Complete(ctx, c, idem.Result{}); err != nil {
			t.Fatal(err)
		}
		f.age(t, -time.Hour)
		if n, err := f.Sweep(ctx, 100); n != 0 || err != nil {
			t.Errorf("Sweep = %d, %v", n, err)
		}
	})
}

// RT-1: a sweep deletes what is expired and nothing else, however often it runs.
func TestRT1_SweepLeavesLiveClaims(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 8)
	s := newStore(t, f, &idem.Options{Lease: time.Minute})
	const each = 200
	claims := map[string][]*idem.Claim{}
	begin := func(kind string) {
		for i := range each {
			c, _, err := s.Begin(ctx, fmt.Sprintf("%s%d", kind, i), payloadA)
			if err != nil {
				t.Fatal(err)
			}
			claims[kind] = append(claims[kind], c)
		}
	}
	complete := func(kind string) {
		for _, c := range claims[kind] {
			if err := s.Complete(ctx, c, idem.Result{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	begin("expired")
	complete("expired")
	f.age(t, 24*time.Hour)
	begin("lapsed")
	f.age(t, 2*time.Minute)
	begin("extended")
	f.age(t, 50*time.Second)
	for _, c := range claims["extended"] {
		if err := s.Extend(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	f.age(t, 40*time.Second)
	begin("live")
	begin("fresh")
	complete("fresh")
	stop := make(chan struct{})
	var sweeping sync.WaitGroup
	var swept [4]int
	for i := range swept {
		sweeping.Go(func() {
			for {
				n, err := f.Sweep(ctx, 50)
				if err != nil {
					t.Errorf("Sweep = %v", err)
				}
				swept[i] += n
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for range 3 {
		for _, kind := range []string{"live", "extended"} {
			for _, c := range claims[kind] {
				if err := s.Extend(ctx, c); err != nil {
					t.Errorf("Extend = %v", err)
				}
			}
		}
	}
	close(stop)
	sweeping.Wait()
	if n := swept[0] + swept[1] + swept[2] + swept[3]; n != each {
		t.Errorf("%d records were swept, want %d", n, each)
	}
	for _, kind := range []string{"lapsed", "extended", "live"} {
		for _, c := range claims[kind] {
			if err := s.Complete(ctx, c, idem.Result{}); err != nil {
				t.Errorf("Complete of a claim that is %s: %v", kind, err)
			}
		}
	}
	for i := range each {
		if _, done, err := s.Begin(ctx, fmt.Sprintf("fresh%d", i), payloadA); done == nil {
			t.Errorf("a fresh result is gone: %v", err)
		}
	}
}

// RT-4: the retention counts from the completion, and is over whether or not
// somebody sweeps.
func TestRT4_RetentionCountsFromCompletion(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4)
	s := newStore(t, f, nil)
	c, _, err := s.Begin(ctx, "k", payloadA)
	if err != nil {
		t.Fatal(err)
	}
	f.age(t, 20*time.Hour)
	if err := s.Complete(ctx, c, idem.Result{Code: 1}); err != nil {
		t.Fatal(err)
	}
	f.age(t, 24*time.Hour-time.Minute)
	if _, done, err := s.Begin(ctx, "k", payloadA); done == nil {
		t.Errorf("before the end: %v", err)
	}
	if n, err := f.Sweep(ctx, 10); n != 0 || err != nil {
		t.Errorf("Sweep = %d, %v", n, err)
	}
	f.age(t, time.Minute)
	if r, err := s.Lookup(ctx, "k"); err != nil || r.Status != 0 {
		t.Errorf("at the end: %+v, %v", r, err)
	}
	if c, _, err := s.Begin(ctx, "k", payloadB); c == nil || c.Attempt != 1 {
		t.Errorf("at the end: %+v, %v", c, err)
	}
}

// Under Hold a claim does not expire, although sweeps look at it after a day, and
// its completion counts from then.
func TestHeldClaimsAreNotSwept(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4)
	s := newStore(t, f, &idem.Options{OnLapse: idem.Hold})
	c, _, err := s.Begin(ctx, "k", payloadA)
	if err != nil {
		t.Fatal(err)
	}
	f.age(t, 1000*24*time.Hour)
	if n, err := f.Sweep(ctx, 10); n != 0 || err != nil {
		t.Errorf("Sweep = %d, %v", n, err)
	}
	if _, _, err := s.Begin(ctx, "k", payloadA); !errors.Is(err, idem.ErrUnresolved) {
		t.Errorf("Begin = %v", err)
	}
	if err := s.Complete(ctx, c, idem.Result{}); err != nil {
		t.Fatal(err)
	}
	f.age(t, 24*time.Hour)
	if n, err := f.Sweep(ctx, 10); n != 1 || err != nil {
		t.Errorf("Sweep of the completed record = %d, %v", n, err)
	}
}
