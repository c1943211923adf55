package idem_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// sent returns the copy of a claim that arrives elsewhere.
func sent(t testing.TB, c *idem.Claim) *idem.Claim {
	t.Helper()
	text, err := c.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	got := new(idem.Claim)
	if err := got.UnmarshalText(text); err != nil {
		t.Fatal(err)
	}
	return got
}

// How the function ends decides what becomes of a claim that was reclaimed, and
// of one that travelled.
func TestRunEndsTheClaim(t *testing.T) {
	errBoom := errors.New("boom")
	type fn = func() (idem.Result, error)
	for _, tt := range []struct {
		name      string
		fn        fn
		err       error
		reclaimed idem.Status // what becomes of a claim from Reclaim
		travelled idem.Status // what becomes of a first claim
	}{
		{"result", func() (idem.Result, error) { return result1, nil }, nil, idem.Completed, idem.Completed},
		{"no effect", func() (idem.Result, error) { return idem.Result{}, idem.NoEffect(errBoom) }, errBoom, idem.Released, idem.Released},
		{"error", func() (idem.Result, error) { return idem.Result{}, errBoom }, errBoom, idem.InProgress, idem.InProgress},
		{"panic", func() (idem.Result, error) { panic(errBoom) }, nil, idem.InProgress, idem.InProgress},
		{"goexit", func() (idem.Result, error) { runtime.Goexit(); return result1, nil }, nil, idem.InProgress, idem.InProgress},
	} {
		run := func(t *testing.T, s *idem.Store, c *idem.Claim, want idem.Status) {
			var err error
			var panicked any
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				defer func() { panicked = recover() }()
				_, err = s.Run(context.Background(), c, func(_ context.Context, got *idem.Claim) (idem.Result, error) {
					if got != c {
						t.Error("the function was given another claim")
					}
					return tt.fn()
				})
			}()
			<-ended
			if err != tt.err || (panicked == errBoom) != (tt.name == "panic") {
				t.Errorf("Run returned %v, want %v as it is; panicked with %v", err, tt.err, panicked)
			}
			if r := lookup(t, s, "k"); r.Status != want || r.Status == idem.InProgress && !r.Lapsed() {
				t.Errorf("stored: %v, lapsed %v; want %v", r.Status, r.Lapsed(), want)
			}
		}
		for _, policy := range []idem.LapsePolicy{idem.Takeover, idem.Hold} {
			t.Run(fmt.Sprintf("%s/%v", tt.name, policy), func(t *testing.T) {
				s := open(t, nil, &idem.Options{OnLapse: policy})
				run(t, s, sent(t, begin(t, s, "k", payloadA)), tt.travelled)

				s = open(t, nil, &idem.Options{OnLapse: policy})
				if err := s.Abandon(context.Background(), begin(t, s, "k", payloadA)); err != nil {
					t.Fatal(err)
				}
				c, err := s.Reclaim(context.Background(), "k", 1)
				if err != nil {
					t.Fatal(err)
				}
				run(t, s, c, tt.reclaimed)
			})
		}
	}
}

// A claim under which nothing may run is an error, and never a panic.
func TestRunRefusesWhatIsNoClaim(t *testing.T) {
	ctx := context.Background()
	s := open(t, nil, &idem.Options{Lease: lease})
	other := open(t, nil, nil)
	claim := func(key string, end func(context.Context, *idem.Claim) error) *idem.Claim {
		c := begin(t, s, key, payloadA)
		if end != nil {
			if err := end(ctx, c); err != nil {
				t.Fatal(err)
			}
		}
		return c
	}
	forged := claim("forged", nil)
	forged.Key = "another"
	taken := claim("taken", s.Abandon)
	begin(t, s, "taken", payloadA)
	for name, c := range map[string]*idem.Claim{
		"nil":             nil,
		"zero":            {},
		"made by hand":    {Key: "hand", Attempt: 1},
		"key changed":     forged,
		"other scope":     begin(t, open(t, nil, &idem.Options{Scope: "s"}), "k", payloadA),
		"other storage":   begin(t, other, "k", payloadA),
		"released":        claim("released", s.Release),
		"abandoned":       claim("abandoned", s.Abandon),
		"abandoned, sent": sent(t, claim("abandoned, sent", s.Abandon)),
		"taken over":      taken,
	} {
		ran := false
		_, err := s.Run(ctx, c, func(context.Context, *idem.Claim) (idem.Result, error) {
			ran = true
			return result1, nil
		})
		refused, ok := errors.AsType[*idem.Error](err)
		if ran || !errors.Is(err, idem.ErrLost) || !ok || refused.Op != "run" {
			t.Errorf("%s: %v, ran %v; want ErrLost of run", name, err, ran)
		}
	}
	if _, err := s.Run(ctx, claim("no function", nil), nil); !errors.Is(err, idem.ErrOptions) {
		t.Errorf("no function: %v", err)
	}
	if _, err := open(t, nil, nil).Scoped("").Run(ctx, nil, returning(new(atomic.Int64), result1, nil)); !errors.Is(err, idem.ErrKey) {
		t.Errorf("bad scope: %v", err)
	}
}

// What another copy of the claim has completed is not done again.
func TestRunReplaysWhatACopyHasCompleted(t *testing.T) {
	ctx := context.Background()
	s := open(t, nil, nil)
	c := begin(t, s, "k", payloadA)
	var runs atomic.Int64
	for i, copy := range []*idem.Claim{sent(t, c), sent(t, c), c} {
		out, err := s.Run(ctx, copy, returning(&runs, result1, nil))
		if err != nil || !out.Result.Equal(result1) || out.Replayed != (i > 0) || out.Attempt != 1 {
			t.Errorf("copy %d: %+v, %v", i, out, err)
		}
	}
	if runs.Load() != 1 {
		t.Errorf("%d runs, want 1", runs.Load())
	}
}

// A claim that was under way for longer than its lease runs if nobody has taken
// over, and is extended while it does.
func TestRunKeepsALateClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		s := open(t, nil, &idem.Options{Lease: lease, NoWait: true})
		c := sent(t, begin(t, s, "k", payloadA))
		time.Sleep(5 * lease)
		out, err := s.Run(ctx, c, func(ctx context.Context, _ *idem.Claim) (idem.Result, error) {
			for range 5 {
				time.Sleep(lease)
				if _, _, err := s.Begin(ctx, "k", payloadA); !errors.Is(err, idem.ErrInProgress) {
					t.Errorf("beside it: %v", err)
				}
			}
			return result1, context.Cause(ctx)
		})
		if err != nil || !out.Result.Equal(result1) {
			t.Errorf("%+v, %v", out, err)
		}
	})
}

// With a storage that fails, or is too slow for the lease, nothing runs, and the
// claim is kept.
func TestRunFailsClosed(t *testing.T) {
	for _, f := range []fate{lost, muted, hung, never} {
		synctest.Test(t, func(t *testing.T) {
			b := newFaulty(memory.New(), during(idem.InProgress, 1, f))
			s := open(t, b, &idem.Options{Lease: lease})
			c := begin(t, s, "k", payloadA)
			var runs atomic.Int64
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if _, err := s.Run(ctx, c, returning(&runs, result1, nil)); !errors.Is(err, idem.ErrUnavailable) || runs.Load() != 0 {
				t.Errorf("fate %d: %v after %d runs", f, err, runs.Load())
			}
			if r := lookup(t, s, "k"); r.Status != idem.InProgress || r.Lapsed() {
				t.Errorf("fate %d: the claim is not kept: %+v", f, r)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		c := begin(t, open(t, b, nil), "k", payloadA)
		s := open(t, &slowReply{Backend: b, delay: 2 * lease}, &idem.Options{Lease: lease})
		var runs atomic.Int64
		if _, err := s.Run(context.Background(), c, returning(&runs, result1, nil)); !errors.Is(err, idem.ErrUnavailable) || runs.Load() != 0 {
			t.Errorf("%v after %d runs", err, runs.Load())
		}
	})
}

func TestRunIsObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		var ops []string
		s := open(t, nil, &idem.Options{Lease: lease, Observe: func(_ context.Context, e idem.Event) {
			ops = append(ops, fmt.Sprint(e.Op, " ", e.Key, " ", e.Attempt, " ", e.Replayed, " ", errors.Is(e.Err, idem.ErrLost)))
		}})
		c := begin(t, s, "k", payloadA)
		run := func(c *idem.Claim) {
			_, _ = s.Run(ctx, c, func(context.Context, *idem.Claim) (idem.Result, error) { return result1, nil })
		}
		run(c)
		run(c)
		run(nil)
		want := []string{
			"begin k 1 false false",
			"extend k 1 false false", "complete k 1 false false", "run k 1 false false",
			"extend k 1 false true", "run k 1 true false",
			"extend  0 false true", "run  0 false true",
		}
		if !slices.Equal(ops, want) {
			t.Errorf("%q\nwant %q", ops, want)
		}
	})
}

// Whoever looks after a claim with other options does not make its record expire
// that was to be kept for ever.
func TestHoldSurvivesAStoreWithTakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		b := memory.New()
		hold := open(t, b, &idem.Options{Lease: lease, OnLapse: idem.Hold})
		takeover := open(t, b, &idem.Options{Lease: lease})
		steps := map[string]func(c *idem.Claim) error{
			"extend":     func(c *idem.Claim) error { return takeover.Extend(ctx, c) },
			"checkpoint": func(c *idem.Claim) error { return takeover.Checkpoint(ctx, c, []byte("n")) },
			"abandon":    func(c *idem.Claim) error { return takeover.Abandon(ctx, c) },
			"reclaim": func(c *idem.Claim) error {
				if err := hold.Abandon(ctx, c); err != nil {
					return err
				}
				_, err := takeover.Reclaim(ctx, c.Key, 1)
				return err
			},
			"recovery": func(c *idem.Claim) error {
				if err := hold.Abandon(ctx, c); err != nil {
					return err
				}
				found, err := takeover.Reclaim(ctx, c.Key, 1)
				if err != nil {
					return err
				}
				if _, err = takeover.Run(ctx, found, returning(new(atomic.Int64), result1, errBroken)); err != errBroken {
					return fmt.Errorf("Run: %w", err)
				}
				return nil
			},
		}
		for name, step := range steps {
			if err := step(begin(t, hold, name, payloadA)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		time.Sleep(365 * 24 * time.Hour)
		for name := range steps {
			if _, _, err := hold.Begin(ctx, name, payloadA); !errors.Is(err, idem.ErrUnresolved) {
				t.Errorf("%s, a year later: %v; want ErrUnresolved", name, err)
			}
		}
	})
}

func TestClaimKnowsItsScope(t *testing.T) {
	s := open(t, nil, nil)
	for _, want := range [][]string{nil, {"shop"}, {"shop", "tenant"}} {
		scoped := s
		for _, level := range want {
			scoped = scoped.Scoped(level)
		}
		c := begin(t, scoped, "k", payloadA)
		if got := c.Scope(); !slices.Equal(got, want) || !slices.Equal(sent(t, c).Scope(), want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := new(idem.Claim).Scope(); len(got) != 0 {
		t.Errorf("the zero Claim has the scope %q", got)
	}
}
