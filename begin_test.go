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

// PE-5, RD-1, PG-6: the reply to the claim is lost. The caller is not locked
// out by his own claim.
func TestPE5_LostReplyOfAClaim(t *testing.T) {
	for _, taken := range []idem.Status{0, idem.Released, idem.InProgress} {
		synctest.Test(t, func(t *testing.T) {
			ctx := context.Background()
			mem := memory.New()
			s := open(t, mem, &idem.Options{Lease: lease})
			switch taken {
			case idem.Released:
				if err := s.Release(ctx, begin(t, s, "k", payloadA)); err != nil {
					t.Fatal(err)
				}
			case idem.InProgress:
				if err := s.Abandon(ctx, begin(t, s, "k", payloadA)); err != nil {
					t.Fatal(err)
				}
			}
			n := 0
			flaky := newFaulty(mem, func(string, int, idem.Record) fate {
				if n++; n <= 4 {
					return muted
				}
				return fine
			})
			s = open(t, flaky, &idem.Options{Lease: lease})
			c := begin(t, s, "k", payloadA)
			if r := lookup(t, s, "k"); r.Attempt != c.Attempt || r.Fence != c.Fence || c.Takeover != (taken == idem.InProgress) {
				t.Errorf("%v: claim %+v, stored %+v", taken, c, r)
			}
			if err := s.Complete(ctx, c, result1); err != nil {
				t.Error(err)
			}
		})
	}
}

// Nobody is locked out by a claim whose answer never came.
func TestBeginGivesALostClaimBack(t *testing.T) {
	broken := true
	script := func(status func() fate) script {
		return func(_ string, _ int, rec idem.Record) fate {
			if broken && rec.Status == idem.InProgress && rec.Lease > 0 {
				return status()
			}
			return fine
		}
	}
	t.Run("after 3 s", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			broken = true
			s := open(t, newFaulty(memory.New(), script(func() fate { return muted })), &idem.Options{Lease: time.Hour, OnLapse: idem.Hold})
			start := time.Now()
			_, _, err := s.Begin(context.Background(), "k", payloadA)
			if d := time.Since(start); !errors.Is(err, idem.ErrUnavailable) || !errors.Is(err, errBroken) || d > 3*time.Second || d < 2*time.Second {
				t.Errorf("Begin = %v after %v", err, d)
			}
			broken = false
			if c := begin(t, s, "k", payloadB); c.Takeover {
				t.Error("the claim that was given back left something to take over")
			}
		})
	})
	t.Run("when the context ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			broken = true
			s := open(t, newFaulty(memory.New(), script(func() fate { return muted })), &idem.Options{Lease: time.Hour})
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			start := time.Now()
			if _, _, err := s.Begin(ctx, "k", payloadA); !errors.Is(err, idem.ErrUnavailable) || time.Since(start) > 50*time.Millisecond {
				t.Errorf("Begin = %v after %v", err, time.Since(start))
			}
			synctest.Wait()
			broken = false
			begin(t, s, "k", payloadB)
		})
	})
	t.Run("a takeover stays one", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			broken = false
			ctx := context.Background()
			s := open(t, newFaulty(memory.New(), script(func() fate { return muted })), &idem.Options{Lease: lease})
			c := begin(t, s, "k", payloadA)
			if err := s.Checkpoint(ctx, c, []byte("note")); err != nil {
				t.Fatal(err)
			}
			if err := s.Abandon(ctx, c); err != nil {
				t.Fatal(err)
			}
			for _, try := range []func() error{
				func() error { _, _, err := s.Begin(ctx, "k", payloadA); return err },
				func() error { _, err := s.Reclaim(ctx, "k", lookup(t, s, "k").Attempt); return err },
			} {
				broken = true
				if err := try(); !errors.Is(err, idem.ErrUnavailable) {
					t.Errorf("%v", err)
				}
				broken = false
				if r := lookup(t, s, "k"); !r.Lapsed() || r.Fingerprint != payloadA || string(r.Checkpoint) != "note" {
					t.Errorf("left %+v; the first attempt may have had its effect", r)
				}
			}
			if c := begin(t, s, "k", payloadA); !c.Takeover {
				t.Error("a silent takeover")
			}
		})
	})
	t.Run("a late packet plants no ghost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			// The claim is on its way for a long time: its Swap is executed
			// after everything else.
			mem := memory.New()
			late := make(chan func(), 1)
			b := lateBackend{mem, late}
			s := open(t, b, &idem.Options{Lease: time.Hour, OnLapse: idem.Hold})
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if _, _, err := s.Begin(ctx, "k", payloadA); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Begin = %v", err)
			}
			synctest.Wait()
			(<-late)()
			if r := lookup(t, open(t, mem, nil), "k"); r.Status == idem.InProgress {
				t.Errorf("the late packet claimed the key for nobody: %+v", r)
			}
		})
	})
}

// The late packet arrives just while the claim is given back: after the storage has
// said that it has no such claim, and before what takes its place.
func TestClaimThatArrivesWhileItIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory.New()
		swaps := 0
		var late func()
		s := open(t, swapper{mem, func(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
			switch swaps++; swaps {
			case 1:
				late = func() { _, _ = mem.Swap(context.Background(), key, old, new) }
				<-ctx.Done()
				return idem.Record{}, ctx.Err()
			case 3:
				late()
			}
			return mem.Swap(ctx, key, old, new)
		}}, &idem.Options{Lease: time.Hour})
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, _, err := s.Begin(ctx, "k", payloadA); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Begin = %v", err)
		}
		synctest.Wait()
		if r := lookup(t, open(t, mem, nil), "k"); r.Status != idem.Released {
			t.Errorf("after %d swaps the key is %v, want it free", swaps, r.Status)
		}
	})
}

// A swapper is a backend whose Swap is a function. It is no Batcher.
type swapper struct {
	idem.Backend
	swap func(ctx context.Context, key, old string, new idem.Record) (idem.Record, error)
}

func (b swapper) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	return b.swap(ctx, key, old, new)
}

// lateBackend delays the first Swap: it answers when its context is done, and is
// executed when the test says so.
type lateBackend struct {
	idem.Backend
	late chan func()
}

func (b lateBackend) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	if new.Status != idem.InProgress {
		return b.Backend.Swap(ctx, key, old, new)
	}
	<-ctx.Done()
	b.late <- func() { _, _ = b.Backend.Swap(context.WithoutCancel(ctx), key, old, new) }
	return idem.Record{}, ctx.Err()
}

// A context that is done before writes nothing, whatever is called.
func TestDoneContextWritesNothing(t *testing.T) {
	b := newFaulty(memory.New(), nil)
	s := open(t, b, nil)
	c := begin(t, s, "k", payloadA)
	why := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(why)
	before := b.count("Swap")
	calls := map[string]func() error{
		"begin":      func() error { _, _, err := s.Begin(ctx, "k2", payloadA); return err },
		"complete":   func() error { return s.Complete(ctx, c, result1) },
		"release":    func() error { return s.Release(ctx, c) },
		"abandon":    func() error { return s.Abandon(ctx, c) },
		"extend":     func() error { return s.Extend(ctx, c) },
		"checkpoint": func() error { return s.Checkpoint(ctx, c, nil) },
		"lookup":     func() error { _, err := s.Lookup(ctx, "k"); return err },
		"resolve":    func() error { return s.Resolve(ctx, "k", 1, result1) },
		"forget":     func() error { return s.Forget(ctx, "k", 1) },
		"reclaim":    func() error { _, err := s.Reclaim(ctx, "k", 1); return err },
		"wait":       func() error { return s.Wait(ctx, "k") },
	}
	for name, call := range calls {
		err := call()
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), why.Error()) {
			t.Errorf("%s: %v, want the context's error and its cause", name, err)
		}
		if e, ok := errors.AsType[*idem.Error](err); !ok || e.Op != name {
			t.Errorf("%s: %#v", name, err)
		}
	}
	if n := b.count("Swap") - before; n != 0 {
		t.Errorf("%d Swaps", n)
	}
}

// OP-4: the shortest wrong use is harmless.
func TestOP4_ZeroClaims(t *testing.T) {
	ctx := context.Background()
	b := newFaulty(memory.New(), nil)
	s := open(t, b, nil)
	foreign := begin(t, s.Scoped("tenant"), "k", payloadA)
	renamed := begin(t, s, "k1", payloadA)
	renamed.Key = "1"
	before := b.count("Swap")
	for name, c := range map[string]*idem.Claim{"nil": nil, "zero": {}, "made up": {Key: "k", Attempt: 1}, "another scope": foreign, "another key": renamed} {
		for op, err := range map[string]error{
			"complete": s.Complete(ctx, c, result1), "release": s.Release(ctx, c), "abandon": s.Abandon(ctx, c),
			"extend": s.Extend(ctx, c), "checkpoint": s.Checkpoint(ctx, c, nil),
		} {
			if !errors.Is(err, idem.ErrLost) {
				t.Errorf("%s of a claim that is %s: %v", op, name, err)
			}
		}
	}
	if n := b.count("Swap") - before; n != 0 {
		t.Errorf("%d Swaps", n)
	}
	var none *idem.Claim
	if _, err := none.MarshalText(); !errors.Is(err, idem.ErrLost) {
		t.Errorf("MarshalText of nil: %v", err)
	}
	if out := (idem.Outcome{}); out.Replayed || out.Attempt != 0 {
		t.Error("the zero Outcome claims something")
	}
}

// LS-1: every record in progress has a lease that ends, and a request after that
// is told that it takes over.
func TestLS1_CrashAndTakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, nil, &idem.Options{Lease: lease})
		begin(t, s, "k", payloadA)
		time.Sleep(lease - 1)
		_, _, err := s.Begin(context.Background(), "k", payloadA)
		if e, ok := errors.AsType[*idem.Error](err); !ok || !errors.Is(err, idem.ErrInProgress) || e.RetryAfter() != 1 {
			t.Errorf("before the lease is over: %v", err)
		}
		time.Sleep(time.Nanosecond)
		if c := begin(t, s, "k", payloadA); !c.Takeover || c.Attempt != 2 {
			t.Errorf("after it: %+v", c)
		}
	})
}

// LS-3: two claims never share a token, also of one worker.
func TestLS3_TokensAreUnique(t *testing.T) {
	n := 1_000_000
	if testing.Short() {
		n = 10_000
	}
	s := open(t, sink{}, nil)
	seen := make(map[string]bool, n)
	for range n {
		text := begin(t, s, "k", payloadA).ID()
		if seen[text] {
			t.Fatalf("attempt id %q twice in %d", text, len(seen))
		}
		seen[text] = true
	}
}

// sink grants every claim.
type sink struct{}

func (sink) Get(context.Context, string) (idem.Record, error) { return idem.Record{}, nil }
func (sink) Sweep(context.Context, int) (int, error)          { return 0, nil }
func (sink) Swap(_ context.Context, _, _ string, r idem.Record) (idem.Record, error) {
	return r, nil
}

// A backend that is out of its mind ends in an error, not in a loop.
func TestMadBackendEndsInAnError(t *testing.T) {
	s := open(t, mad{}, nil)
	if _, _, err := s.Begin(context.Background(), "k", payloadA); !errors.Is(err, idem.ErrUnavailable) {
		t.Errorf("Begin: %v", err)
	}
	s = open(t, odd{}, nil)
	if _, _, err := s.Begin(context.Background(), "k", payloadA); !errors.Is(err, idem.ErrCorrupt) {
		t.Errorf("unknown status: %v", err)
	}
}

type mad struct{ sink }

func (mad) Swap(context.Context, string, string, idem.Record) (idem.Record, error) {
	return idem.Record{}, nil
}

type odd struct{ sink }

func (odd) Swap(context.Context, string, string, idem.Record) (idem.Record, error) {
	return idem.Record{Token: "a.1", Status: 9}, nil
}

// PE-13: the fence of a key does not go down with release, completion and
// expiry.
func TestPE13_FenceNeverGoesDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		s := open(t, nil, &idem.Options{Lease: lease})
		last := int64(0)
		for i := range 20 {
			c := begin(t, s, "k", payloadA)
			if c.Fence <= last {
				t.Fatalf("claim %d has fence %d after %d", i, c.Fence, last)
			}
			last = c.Fence
			switch i % 3 {
			case 0:
				_ = s.Release(ctx, c)
			case 1:
				time.Sleep(lease)
			case 2:
				_ = s.Complete(ctx, c, result1)
				time.Sleep(idem.MinRetention)
			}
		}
	})
}
