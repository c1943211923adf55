package idem_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// HT-4: duplicates wait for the running one and get its answer; however many
// wait, the storage is asked by one.
func TestHT4_WaitersShareOneWatcher(t *testing.T) {
	for _, watched := range []bool{true, false} {
		t.Run(fmt.Sprintf("watcher %v", watched), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := memory.New()
				counting := newFaulty(mem, nil)
				var b idem.Backend = counting // has no Watch: polls
				if watched {
					b = struct {
						*faulty
						idem.Watcher
					}{counting, mem}
				}
				s := open(t, b, &idem.Options{Lease: time.Minute})
				const work = 2 * time.Second
				var runs atomic.Int64
				var wg sync.WaitGroup
				start := time.Now()
				for i := range 200 {
					wg.Go(func() {
						out, err := s.Do(context.Background(), "k", payloadA, func(context.Context, *idem.Claim) (idem.Result, error) {
							runs.Add(1)
							time.Sleep(work)
							return result1, nil
						})
						if err != nil || !out.Result.Equal(result1) {
							t.Errorf("caller %d: %+v, %v", i, out, err)
						}
						if out.Replayed {
							out.Result.Body[0] = 'x' // everybody has a copy of his own
						}
					})
				}
				wg.Wait()
				if runs.Load() != 1 {
					t.Errorf("%d runs, want 1", runs.Load())
				}
				if d := time.Since(start); d > work+100*time.Millisecond || watched && d > work+time.Millisecond {
					t.Errorf("the last answer came after %v", d)
				}
				if swaps := counting.count("Swap"); swaps != 201 { // 200 claims, 1 completion
					t.Errorf("%d Swaps, want one a caller and the completion", swaps)
				}
				// 5, 10, 20, 40, 80, 100, 100 ... ms, each shortened by up to half.
				if gets := counting.count("Get"); gets > 45 || watched && gets > 2 {
					t.Errorf("%d Gets for all waiters together", gets)
				}
			})
		})
	}
}

// OP-4: a waiter whose context ends is told both.
func TestOP4_WaiterWhoseContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, nil, &idem.Options{Lease: lease})
		begin(t, s, "k", payloadA)
		ctx, cancel := context.WithTimeout(context.Background(), lease/2)
		defer cancel()
		start := time.Now()
		_, err := s.Do(ctx, "k", payloadA, returning(new(atomic.Int64), result1, nil))
		if !errors.Is(err, idem.ErrInProgress) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != lease/2 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if e, ok := errors.AsType[*idem.Error](err); !ok || e.RetryAfter() <= 0 || e.RetryAfter() > lease {
			t.Errorf("RetryAfter of %v", err)
		}
		if err := s.Wait(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait = %v", err)
		}
	})
}

func TestWaitersTakeOverAndTakeTurns(t *testing.T) {
	t.Run("a lapsed attempt", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := open(t, nil, &idem.Options{Lease: lease})
			c := begin(t, s, "k", payloadA)
			if err := s.Checkpoint(context.Background(), c, []byte("called the bank")); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			out, err := s.Do(context.Background(), "k", payloadA, func(_ context.Context, c *idem.Claim) (idem.Result, error) {
				if !c.Takeover || string(c.Checkpoint) != "called the bank" || c.Attempt != 2 {
					t.Errorf("claim %+v, want a takeover with the checkpoint", c)
				}
				return result1, nil
			})
			if d := time.Since(start); err != nil || out.Attempt != 2 || d < lease || d > lease+100*time.Millisecond {
				t.Errorf("%+v, %v after %v", out, err, d)
			}
		})
	})
	t.Run("a released attempt", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := open(t, nil, &idem.Options{Lease: lease})
			var runs atomic.Int64
			var wg sync.WaitGroup
			for range 50 { // one after the other says "nothing happened"
				wg.Go(func() {
					out, err := s.Do(context.Background(), "k", payloadA, func(context.Context, *idem.Claim) (idem.Result, error) {
						time.Sleep(time.Millisecond)
						if runs.Add(1) < 10 {
							return idem.Result{}, idem.NoEffect(errBroken)
						}
						return result1, nil
					})
					if err == nil && !out.Result.Equal(result1) || err != nil && err != errBroken {
						t.Errorf("%+v, %v", out, err)
					}
				})
			}
			wg.Wait()
			if runs.Load() != 10 {
				t.Errorf("%d runs, want 10", runs.Load())
			}
		})
	})
	t.Run("another payload", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := open(t, nil, nil)
			c := begin(t, s, "k", payloadA)
			done := make(chan error)
			go func() {
				_, err := s.Do(context.Background(), "k", payloadA, returning(new(atomic.Int64), result1, nil))
				done <- err
			}()
			synctest.Wait()
			// Freed, and taken by another operation before the waiter wakes.
			if err := s.Release(context.Background(), c); err != nil {
				t.Fatal(err)
			}
			c2, _, err := s.Begin(context.Background(), "k", payloadB)
			if err == nil {
				if err := s.Complete(context.Background(), c2, result2); err != nil {
					t.Fatal(err)
				}
				if err := <-done; !errors.Is(err, idem.ErrMismatch) {
					t.Errorf("the waiter got %v", err)
				}
			} else if err := <-done; err != nil { // the waiter was faster
				t.Error(err)
			}
		})
	})
}

// A storage that stays away while somebody waits is reported, not waited for.
func TestWaitingGivesUpOnADeadStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFaulty(memory.New(), func(method string, n int, _ idem.Record) fate {
			if method == "Get" && n > 3 {
				return lost
			}
			return fine
		})
		s := open(t, b, &idem.Options{Lease: time.Hour})
		begin(t, s, "k", payloadA)
		start := time.Now()
		_, err := s.Do(context.Background(), "k", payloadA, returning(new(atomic.Int64), result1, nil))
		if d := time.Since(start); !errors.Is(err, idem.ErrUnavailable) || !errors.Is(err, errBroken) || d > 5*time.Second {
			t.Errorf("%v after %v", err, d)
		}
	})
}

// HT-4: who does not want to wait is told at once, in the scope he asked in, while
// others wait on the same Store.
func TestHT4_NoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, memory.New(), nil).Scoped("a")
		c, _, err := s.Begin(context.Background(), "k", payloadA)
		if err != nil {
			t.Fatal(err)
		}
		run := func(context.Context, *idem.Claim) (idem.Result, error) { return idem.Result{Code: 2}, nil }
		start := time.Now()
		if _, err := s.NoWait().Do(context.Background(), "k", payloadA, run); !errors.Is(err, idem.ErrInProgress) || time.Since(start) != 0 {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		time.AfterFunc(time.Second, func() { _ = s.Complete(context.Background(), c, idem.Result{Code: 1}) })
		if out, err := s.Do(context.Background(), "k", payloadA, run); err != nil || !out.Replayed || time.Since(start) != time.Second {
			t.Errorf("after %v: %+v, %v", time.Since(start), out, err)
		}
	})
}
