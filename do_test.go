package idem_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// returning is an operation that counts its runs and returns r and err.
func returning(runs *atomic.Int64, r idem.Result, err error) func(context.Context, *idem.Claim) (idem.Result, error) {
	return func(context.Context, *idem.Claim) (idem.Result, error) {
		runs.Add(1)
		return r, err
	}
}

func TestDoReplaysTheResult(t *testing.T) {
	s := open(t, nil, nil)
	var runs atomic.Int64
	for i := range 3 {
		out, err := s.Do(context.Background(), "k", payloadA, returning(&runs, result1, nil))
		if err != nil || !out.Result.Equal(result1) || out.Replayed != (i > 0) || out.Attempt != 1 {
			t.Errorf("call %d: %+v, %v", i, out, err)
		}
	}
	if _, err := s.Do(context.Background(), "k", payloadB, returning(&runs, result2, nil)); !errors.Is(err, idem.ErrMismatch) {
		t.Errorf("another payload: %v", err)
	}
	if runs.Load() != 1 {
		t.Errorf("%d runs, want 1", runs.Load())
	}
}

// FL-2: how an operation ends decides what becomes of its key. The table of the
// documentation of Do.
func TestFL2_EndingsOfAnOperation(t *testing.T) {
	errCard := errors.New("receipt mail failed")
	ops := []struct {
		name   string
		fn     func() (idem.Result, error)
		err    error // returned by Do, as it is
		status idem.Status
		left   bool // the lease is over at once
		next   string
	}{
		{"result", func() (idem.Result, error) { return result1, nil }, nil, idem.Completed, false, "replay"},
		{"refusal as a result", func() (idem.Result, error) { return idem.Result{Code: 402}, nil }, nil, idem.Completed, false, "replay"},
		{"no effect", func() (idem.Result, error) { return result1, idem.NoEffect(errCard) }, errCard, idem.Released, false, "run"},
		{"error", func() (idem.Result, error) { return result1, errCard }, errCard, idem.InProgress, true, "takeover"},
		{"panic", func() (idem.Result, error) { panic("boom") }, nil, idem.InProgress, true, "takeover"},
		{"goexit", func() (idem.Result, error) { runtime.Goexit(); return result1, nil }, nil, idem.InProgress, true, "takeover"},
	}
	for _, op := range ops {
		for _, policy := range []idem.LapsePolicy{idem.Takeover, idem.Hold} {
			t.Run(fmt.Sprintf("%s/%v", op.name, policy), func(t *testing.T) {
				s := open(t, nil, &idem.Options{OnLapse: policy})
				var err error
				var panicked any
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					defer func() { panicked = recover() }()
					_, err = s.Do(context.Background(), "k", payloadA, func(context.Context, *idem.Claim) (idem.Result, error) { return op.fn() })
				}()
				<-ended
				if err != op.err {
					t.Errorf("Do returned %v, want %v as it is", err, op.err)
				}
				if (op.name == "panic") != (panicked == "boom") {
					t.Errorf("panicked with %v", panicked)
				}
				r := lookup(t, s, "k")
				if r.Status != op.status || r.Lapsed() != op.left {
					t.Errorf("stored: %v, lapsed %v; want %v, %v", r.Status, r.Lapsed(), op.status, op.left)
				}
				next := op.next
				if next == "takeover" && policy == idem.Hold {
					next = "unresolved"
				}
				got := "replay"
				out, err := s.Do(context.Background(), "k", payloadA, func(_ context.Context, c *idem.Claim) (idem.Result, error) {
					if got = "run"; c.Takeover {
						got = "takeover"
					}
					return result2, nil
				})
				if errors.Is(err, idem.ErrUnresolved) {
					got, err = "unresolved", nil
				}
				if got != next || err != nil || out.Replayed != (next == "replay") {
					t.Errorf("next call: %s, %+v, %v; want %s", got, out, err, next)
				}
			})
		}
	}
}

// What one operation says of itself must not be taken for a word about the
// operation around it.
func TestNoEffectDoesNotLeakIntoTheOperationAround(t *testing.T) {
	errInner := errors.New("rejected")
	tests := map[string]func(s *idem.Store) error{
		"inner Do": func(s *idem.Store) error {
			_, err := s.Do(context.Background(), "inner", payloadA, func(context.Context, *idem.Claim) (idem.Result, error) {
				return idem.Result{}, idem.NoEffect(errInner)
			})
			return err
		},
		"inner Do, wrapped": func(s *idem.Store) error {
			_, err := s.Do(context.Background(), "inner", payloadA, func(context.Context, *idem.Claim) (idem.Result, error) {
				return idem.Result{}, fmt.Errorf("checking: %w", errors.Join(idem.NoEffect(errInner)))
			})
			if rec := lookup(t, s, "inner"); rec.Status != idem.Released {
				t.Errorf("inner operation is %v, want released", rec.Status)
			}
			return fmt.Errorf("outer: %w", err)
		},
		"storage of an inner operation": func(*idem.Store) error {
			down := open(t, newFaulty(memory.New(), func(string, int, idem.Record) fate { return never }), nil)
			_, _, err := down.Begin(context.Background(), "inner", payloadA)
			return err
		},
	}
	for name, inner := range tests {
		t.Run(name, func(t *testing.T) {
			s := open(t, nil, nil)
			_, err := s.Do(context.Background(), "outer", payloadA, func(context.Context, *idem.Claim) (idem.Result, error) {
				return idem.Result{}, inner(s)
			})
			if !errors.Is(err, errInner) && !errors.Is(err, errBroken) {
				t.Errorf("Do returned %v", err)
			}
			if r := lookup(t, s, "outer"); r.Status != idem.InProgress || !r.Lapsed() {
				t.Errorf("outer operation is %v, want it abandoned: its effect may have happened", r.Status)
			}
		})
	}
	if err := idem.NoEffect(nil); err == nil {
		t.Error("NoEffect(nil) is nil: it would complete an operation that did not happen")
	}
}

// PE-1, RS-4: the client hangs up between the effect and its record.
func TestRS4_TheResultOutlivesTheCaller(t *testing.T) {
	s := open(t, nil, nil)
	var runs atomic.Int64
	ctx, hangUp := context.WithCancel(context.Background())
	out, err := s.Do(ctx, "k", payloadA, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
		runs.Add(1)
		hangUp()
		if ctx.Err() == nil {
			t.Error("the operation was not told that its caller is gone")
		}
		return result1, nil
	})
	if err != nil || !out.Result.Equal(result1) {
		t.Errorf("Do = %+v, %v", out, err)
	}
	out, err = s.Do(context.Background(), "k", payloadA, returning(&runs, result2, nil))
	if err != nil || !out.Replayed || !out.Result.Equal(result1) || runs.Load() != 1 {
		t.Errorf("retry = %+v, %v after %d runs", out, err, runs.Load())
	}

	// (b) an operation that gives up with the context's error may have had its
	// effect: it is not released.
	ctx, hangUp = context.WithCancel(context.Background())
	_, err = s.Do(ctx, "k2", payloadA, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
		hangUp()
		return idem.Result{}, ctx.Err()
	})
	if r := lookup(t, s, "k2"); err != context.Canceled || !r.Lapsed() {
		t.Errorf("Do returned %v and left %v", err, r.Status)
	}
}

// RS-4 (d): the record that is written for a caller who is gone has a limit of
// its own.
func TestRS4_TheDetachedWriteIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, newFaulty(memory.New(), during(idem.Completed, 0, hung)), &idem.Options{Lease: lease})
		start := time.Now()
		out, err := s.Do(context.Background(), "k", payloadA, returning(new(atomic.Int64), result1, nil))
		if !errors.Is(err, idem.ErrNotRecorded) || !errors.Is(err, idem.ErrUnavailable) || !out.Result.Equal(result1) {
			t.Errorf("Do = %+v, %v; want the result and ErrNotRecorded", out, err)
		}
		if d := time.Since(start); d > lease {
			t.Errorf("Do took %v, want no longer than the lease", d)
		}
		if r := lookup(t, s, "k"); r.Status != idem.InProgress || r.Lease == 0 {
			t.Errorf("the claim is %v with lease %v, want it kept", r.Status, r.Lease)
		}
	})
}

// PE-2, PE-6: completing fails after the effect, executed or not.
func TestPE2_CompletionIsRepeated(t *testing.T) {
	for _, f := range []fate{lost, muted} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			b := newFaulty(memory.New(), func(method string, _ int, rec idem.Record) fate {
				if rec.Status == idem.Completed {
					if n++; n <= 3 {
						return f
					}
				}
				return fine
			})
			s := open(t, b, nil)
			var runs atomic.Int64
			out, err := s.Do(context.Background(), "k", payloadA, returning(&runs, result1, nil))
			if err != nil || out.Replayed || !out.Result.Equal(result1) {
				t.Errorf("Do = %+v, %v", out, err)
			}
			out, err = s.Do(context.Background(), "k", payloadA, returning(&runs, result2, nil))
			if err != nil || !out.Replayed || !out.Result.Equal(result1) || runs.Load() != 1 {
				t.Errorf("retry = %+v, %v after %d runs", out, err, runs.Load())
			}
		})
	}
}

// PE-11: the operation takes longer than its lease; LS-1: it dies.
func TestPE11_LongWorkKeepsItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, nil, &idem.Options{Lease: lease, NoWait: true})
		go func() {
			time.Sleep(lease)
			for range 20 {
				if _, err := s.Do(context.Background(), "k", payloadA, returning(new(atomic.Int64), result2, nil)); !errors.Is(err, idem.ErrInProgress) {
					t.Errorf("a duplicate got %v", err)
				}
				time.Sleep(lease / 3)
			}
		}()
		_, err := s.Do(context.Background(), "k", payloadA, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
			time.Sleep(10 * lease)
			return result1, ctx.Err()
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestMaxHoldEndsTheHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, nil, &idem.Options{Lease: lease, MaxHold: 3 * lease})
		start := time.Now()
		_, err := s.Do(context.Background(), "k", payloadA, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
			<-ctx.Done()
			if d := time.Since(start); d < 3*lease || d > 4*lease {
				t.Errorf("cancelled after %v, want between MaxHold and one lease more", d)
			}
			return idem.Result{}, context.Cause(ctx)
		})
		if !errors.Is(err, idem.ErrLost) {
			t.Errorf("cause %v, want ErrLost", err)
		}
	})
}

// LS-4 (c), (d), (e): the heartbeat reacts to what it is told, and to silence.
func TestLS4_Heartbeat(t *testing.T) {
	t.Run("transient errors do not stop the work", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			renewals := 0
			b := newFaulty(memory.New(), func(_ string, _ int, rec idem.Record) fate {
				if rec.Status == idem.InProgress {
					if renewals++; renewals == 2 || renewals == 3 {
						return lost
					}
				}
				return fine
			})
			s := open(t, b, &idem.Options{Lease: lease})
			_, err := s.Do(context.Background(), "k", payloadA, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
				time.Sleep(3 * lease)
				return result1, context.Cause(ctx)
			})
			if err != nil || renewals < 8 {
				t.Errorf("%v after %d writes", err, renewals)
			}
		})
	})
	t.Run("a lost claim stops it within one interval", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := memory.New()
			s := open(t, b, &idem.Options{Lease: lease})
			out, err := s.Do(context.Background(), "k", payloadA, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
				r, _ := b.Get(ctx, "k")
				taken := r
				taken.Token, taken.Attempt = "other.1", 2
				if _, err := b.Swap(ctx, "k", r.Token, taken); err != nil {
					t.Error(err)
				}
				start := time.Now()
				<-ctx.Done()
				if d := time.Since(start); d > lease/3 || !errors.Is(context.Cause(ctx), idem.ErrLost) {
					t.Errorf("cancelled after %v because of %v", d, context.Cause(ctx))
				}
				return result1, nil // the effect has happened all the same
			})
			if !errors.Is(err, idem.ErrLost) || !errors.Is(err, idem.ErrNotRecorded) || !out.Result.Equal(result1) {
				t.Errorf("Do = %+v, %v; want the result, ErrNotRecorded and ErrLost", out, err)
			}
			if r := lookup(t, s, "k"); r.Token != "other.1" {
				t.Errorf("the taker's record was changed: %+v", r)
			}
		})
	})
	for _, f := range []fate{lost, hung} {
		t.Run(fmt.Sprintf("silence stops it when the lease is over (%d)", f), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := open(t, newFaulty(memory.New(), during(idem.InProgress, 2, f)), &idem.Options{Lease: lease})
				start := time.Now()
				out, err := s.Do(context.Background(), "k", payloadA, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
					<-ctx.Done()
					// One extension, after a third of the lease, was granted.
					if d, want := time.Since(start), lease+lease/3; d > want+time.Millisecond || d < want-lease/3 {
						t.Errorf("cancelled after %v, want at most the lease after the last good extension, %v", d, want)
					}
					if !errors.Is(context.Cause(ctx), idem.ErrLost) {
						t.Errorf("cause %v", context.Cause(ctx))
					}
					return result1, nil
				})
				// Nobody has taken over: the work is not thrown away.
				if err != nil || !out.Result.Equal(result1) {
					t.Errorf("Do = %+v, %v", out, err)
				}
			})
		})
	}
}

// FL-4: with the storage down nothing runs.
func TestFL4_FailClosed(t *testing.T) {
	for _, f := range []fate{lost, hung, never} {
		synctest.Test(t, func(t *testing.T) {
			s := open(t, newFaulty(memory.New(), func(string, int, idem.Record) fate { return f }), nil)
			var runs atomic.Int64
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			start := time.Now()
			_, err := s.Do(ctx, "k", payloadA, returning(&runs, result1, nil))
			if !errors.Is(err, idem.ErrUnavailable) || errors.Is(err, idem.ErrInProgress) || runs.Load() != 0 {
				t.Errorf("Do = %v after %d runs", err, runs.Load())
			}
			if f != hung && !errors.Is(err, errBroken) {
				t.Errorf("%v has lost the driver's error", err)
			}
			if f == never && time.Since(start) != 0 {
				t.Errorf("what was surely not applied was repeated for %v", time.Since(start))
			}
			time.Sleep(5 * time.Second) // the claim is being given back meanwhile
		})
	}
}

func TestNoFunctionIsBadInput(t *testing.T) {
	ctx := context.Background()
	s := open(t, nil, nil)
	_, do := s.Do(ctx, "k", payloadA, nil)
	_, call := idem.Call[int, int](ctx, s, "k", 1, nil)
	_, tx := s.DoTx(ctx, "k", payloadA, func(ctx context.Context, body idem.TxBody) error { return body(ctx, memory.New(), nil) })
	for _, err := range []error{do, call, tx} {
		if !errors.Is(err, idem.ErrOptions) {
			t.Errorf("%v", err)
		}
	}
	if r := lookup(t, s, "k"); r.Status != 0 {
		t.Errorf("written: %+v", r)
	}
}
