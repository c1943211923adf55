package idem_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// TM-3: durations are checked once, before anything is written.
func TestTM3_Options(t *testing.T) {
	century := 100 * 365 * 24 * time.Hour
	tests := []struct {
		name string
		opts idem.Options
		want string // in the error; "" = accepted
	}{
		{"defaults", idem.Options{}, ""},
		{"shortest retention", idem.Options{Retention: 24 * time.Hour}, ""},
		{"longest retention", idem.Options{Retention: 7 * 24 * time.Hour}, ""},
		{"retention a second too short", idem.Options{Retention: 24*time.Hour - time.Second}, "retention 23h59m59s is below 24h0m0s; a retry that comes later would run the operation a second time"},
		{"retention a second too long", idem.Options{Retention: 7*24*time.Hour + time.Second}, "retention 168h0m1s is above 168h0m0s"},
		{"negative retention", idem.Options{Retention: -1}, "retention -1ns is below"},
		{"retention of a century", idem.Options{Retention: century}, "above"},
		{"endless retention", idem.Options{Retention: math.MaxInt64}, "above"},
		{"negative lease", idem.Options{Lease: -1}, "lease -1ns"},
		{"lease of a negative second", idem.Options{Lease: -time.Second}, "lease -1s"},
		{"tiny lease", idem.Options{Lease: 1}, ""},
		{"lease of a century", idem.Options{Lease: century}, "lease"},
		{"endless lease", idem.Options{Lease: math.MaxInt64}, "lease"},
		{"negative MaxHold", idem.Options{MaxHold: -1}, "MaxHold"},
		{"endless MaxHold", idem.Options{MaxHold: math.MaxInt64}, ""},
		{"negative MaxResult", idem.Options{MaxResult: -1}, "MaxResult"},
		{"huge MaxResult", idem.Options{MaxResult: 1 << 40}, "MaxResult"},
		{"unknown policy", idem.Options{OnLapse: 7}, "policy"},
		{"bad scope", idem.Options{Scope: "a\x00b"}, "control character U+0000 at byte 1"},
		{"long scope", idem.Options{Scope: strings.Repeat("s", 256)}, "256 bytes"},
		{"longest scope", idem.Options{Scope: strings.Repeat("s", 255)}, ""},
	}
	for _, tt := range tests {
		s, err := idem.New(memory.New(), &tt.opts)
		if tt.want == "" {
			if err != nil || s == nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		if !errors.Is(err, idem.ErrOptions) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want ErrOptions with %q", tt.name, err, tt.want)
		}
	}
	if _, err := idem.New(nil, nil); !errors.Is(err, idem.ErrOptions) {
		t.Errorf("no backend: %v", err)
	}
	s := open(t, nil, nil).With(nil)
	if _, _, err := s.Begin(context.Background(), "k", payloadA); !errors.Is(err, idem.ErrOptions) {
		t.Errorf("With(nil): %v", err)
	}
}

// TM-3: a lease is rounded up, never to none.
func TestTM3_LeasesAreRoundedUp(t *testing.T) {
	for _, tt := range []struct{ given, stored time.Duration }{
		{0, 30 * time.Second},
		{1, time.Millisecond},
		{500 * time.Microsecond, time.Millisecond},
		{999 * time.Microsecond, time.Millisecond},
		{time.Millisecond, time.Millisecond},
		{time.Millisecond + 1, 2 * time.Millisecond},
		{1500 * time.Millisecond, 1500 * time.Millisecond},
	} {
		s := open(t, nil, &idem.Options{Lease: tt.given})
		begin(t, s, "k", payloadA)
		if r := lookup(t, s, "k"); r.Lease != tt.stored || r.TTL != tt.stored+idem.MinRetention {
			t.Errorf("lease %v is stored as %v with TTL %v", tt.given, r.Lease, r.TTL)
		}
	}
}

// RT-4: retention counts from completion and is judged on reading.
func TestRT4_RetentionCountsFromCompletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		s := open(t, nil, &idem.Options{Retention: retention})
		_, err := s.Do(ctx, "k", payloadA, func(context.Context, *idem.Claim) (idem.Result, error) {
			time.Sleep(50 * time.Minute)
			return result1, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, age := range []time.Duration{0, retention / 2, retention - 1} {
			time.Sleep(age - lookup(t, s, "k").Age)
			if _, done, err := s.Begin(ctx, "k", payloadA); done == nil || done.Age != age {
				t.Errorf("%v after completion: %v, %v", age, done, err)
			}
		}
		time.Sleep(time.Nanosecond)
		if r := lookup(t, s, "k"); r.Status != 0 {
			t.Errorf("at the instant of expiry: %+v", r)
		}
		if c := begin(t, s, "k", payloadB); c.Attempt != 1 || c.Takeover {
			t.Errorf("after expiry: %+v", c)
		}
	})
}

// RS-2: what is too large to keep is remembered as done.
func TestRS2_LargeResults(t *testing.T) {
	ctx := context.Background()
	s := open(t, nil, &idem.Options{MaxResult: 1024})
	big := map[string]string{"x": strings.Repeat("y", 1024)}
	for _, tt := range []struct {
		name    string
		r       idem.Result
		omitted bool
		stored  idem.Result
	}{
		{"below", idem.Result{Code: 1, Body: make([]byte, 1023)}, false, idem.Result{Code: 1, Body: make([]byte, 1023)}},
		{"at", idem.Result{Code: 1, Body: make([]byte, 1024)}, false, idem.Result{Code: 1, Body: make([]byte, 1024)}},
		{"above", idem.Result{Code: 1, Meta: map[string]string{"a": "b"}, Body: make([]byte, 1025)}, true, idem.Result{Code: 1, Meta: map[string]string{"a": "b"}, Omitted: true}},
		{"meta above", idem.Result{Code: 1, Meta: big, Body: []byte("b")}, true, idem.Result{Code: 1, Omitted: true}},
	} {
		runs := 0
		fn := func(context.Context, *idem.Claim) (idem.Result, error) { runs++; return tt.r, nil }
		out, err := s.Do(ctx, tt.name, payloadA, fn)
		if err != nil || !out.Result.Equal(tt.r) {
			t.Errorf("%s: the first caller got %d bytes, %v", tt.name, len(out.Result.Body), err)
		}
		out, err = s.Do(ctx, tt.name, payloadA, fn)
		if err != nil || !out.Replayed || out.Result.Omitted != tt.omitted || !out.Result.Equal(tt.stored) || runs != 1 {
			t.Errorf("%s: replay %+v, %v after %d runs", tt.name, out, err, runs)
		}
	}
	c := begin(t, s, "c", payloadA)
	if err := s.Checkpoint(ctx, c, make([]byte, 1025)); !errors.Is(err, idem.ErrOptions) {
		t.Errorf("a checkpoint above the limit: %v", err)
	}
	if err := s.Checkpoint(ctx, c, make([]byte, 1024)); err != nil {
		t.Errorf("a checkpoint at the limit: %v", err)
	}
}

// What a person or a recovery finds out is limited like any result.
func TestRS2_LargeResolutions(t *testing.T) {
	ctx := context.Background()
	s := open(t, nil, &idem.Options{MaxResult: 10})
	if err := s.Abandon(ctx, begin(t, s, "k", payloadA)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second is a repetition after a lost reply
		if err := s.Resolve(ctx, "k", 1, idem.Result{Code: 5, Body: make([]byte, 11)}); err != nil {
			t.Fatal(err)
		}
	}
	if r := lookup(t, s, "k"); !r.Result.Omitted || r.Result.Body != nil || r.Result.Code != 5 {
		t.Errorf("stored %+v", r.Result)
	}
}

// A late packet of a released attempt finds the key used, for an hour or for as
// long as the attempt could have lasted.
func TestReleasedRecordsOutliveTheirLease(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{time.Minute: time.Hour, 3 * time.Hour: 3 * time.Hour} {
		s := open(t, nil, &idem.Options{Lease: given})
		if err := s.Release(context.Background(), begin(t, s, "k", payloadA)); err != nil {
			t.Fatal(err)
		}
		if r := lookup(t, s, "k"); r.TTL != want {
			t.Errorf("with a lease of %v a released record is kept for %v, want %v", given, r.TTL, want)
		}
	}
}

// FL-1: only Complete finishes a key.
func TestFL1_ReleaseFreesAtOnce(t *testing.T) {
	ctx := context.Background()
	s := open(t, nil, nil)
	if err := s.Release(ctx, begin(t, s, "k", payloadA)); err != nil {
		t.Fatal(err)
	}
	c := begin(t, s, "k", payloadB) // a corrected request
	defer func() {
		if err := s.Release(ctx, c); err != nil {
			t.Errorf("deferred Release after Complete: %v", err)
		}
		if r := lookup(t, s, "k"); r.Status != idem.Completed {
			t.Errorf("deferred Release left %v", r.Status)
		}
	}()
	if err := s.Complete(ctx, c, result1); err != nil {
		t.Fatal(err)
	}
}

// LS-6: "do not take over for me".
func TestLS6_HoldWaitsForADecision(t *testing.T) {
	ctx := context.Background()
	for _, decision := range []string{"resolve", "forget", "reclaim and release", "reclaim and complete", "reclaim and abandon"} {
		synctest.Test(t, func(t *testing.T) {
			s := open(t, nil, &idem.Options{Lease: lease, OnLapse: idem.Hold})
			c := begin(t, s, "k", payloadA)
			if err := s.Checkpoint(ctx, c, []byte("note")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * 365 * 24 * time.Hour) // it is not forgotten by age
			_, err := s.Do(ctx, "k", payloadA, succeed)
			e, ok := errors.AsType[*idem.Error](err)
			if !errors.Is(err, idem.ErrUnresolved) || errors.Is(err, idem.ErrInProgress) || !ok || e.Record.Attempt != 1 || string(e.Record.Checkpoint) != "note" {
				t.Fatalf("%v", err)
			}
			want := idem.Completed
			switch decision {
			case "resolve":
				err = s.Resolve(ctx, "k", 1, result1)
			case "forget":
				err, want = s.Forget(ctx, "k", 1), idem.Released
			default:
				var rc *idem.Claim
				if rc, err = s.Reclaim(ctx, "k", 1); err != nil {
					t.Fatal(err)
				}
				if _, _, err := s.Begin(ctx, "k", payloadA); !errors.Is(err, idem.ErrInProgress) {
					t.Errorf("while somebody finds out: %v", err)
				}
				switch decision {
				case "reclaim and release":
					err, want = s.Release(ctx, rc), idem.Released
				case "reclaim and complete":
					err = s.Complete(ctx, rc, result1)
				case "reclaim and abandon":
					err, want = s.Abandon(ctx, rc), idem.InProgress
				}
			}
			if r := lookup(t, s, "k"); err != nil || r.Status != want {
				t.Errorf("%s: %v, stored %v", decision, err, r.Status)
			}
			// The attempt comes back to life.
			err = s.Complete(ctx, c, result1)
			if decision == "resolve" && err != nil || decision != "resolve" && !errors.Is(err, idem.ErrLost) {
				t.Errorf("%s: the late Complete: %v", decision, err)
			}
			if err := s.Complete(ctx, c, result2); decision == "resolve" && !errors.Is(err, idem.ErrCompleted) {
				t.Errorf("%s: the late Complete with another result: %v", decision, err)
			}
		})
	}
}

// A Store tells what it was given, and what stands for what was not.
func TestStoreOptions(t *testing.T) {
	s, err := idem.New(memory.New(), &idem.Options{Scope: "shop", Retention: 48 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	got := s.Options()
	if got.Scope != "shop" || got.Retention != 48*time.Hour || got.Lease != 30*time.Second || got.MaxResult != 1<<20 || got.NoWait {
		t.Errorf("options %+v", got)
	}
	if !s.NoWait().Options().NoWait || s.Options().NoWait {
		t.Error("NoWait changed the wrong Store")
	}
}
