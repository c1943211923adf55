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

// A fakeTx is a transaction over memory: it keeps its writes to itself until it
// is committed.
type fakeTx struct {
	idem.Backend
	swaps []func() error
	own   map[string]idem.Record
}

func (tx *fakeTx) Get(ctx context.Context, key string) (idem.Record, error) {
	if r, ok := tx.own[key]; ok {
		return r, nil
	}
	return tx.Backend.Get(ctx, key)
}

func (tx *fakeTx) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	r, err := tx.Get(ctx, key)
	if err != nil || r.Token != old {
		return r, err
	}
	tx.own[key] = new
	tx.swaps = append(tx.swaps, func() error {
		got, err := tx.Backend.Swap(context.WithoutCancel(ctx), key, old, new)
		if err == nil && got.Token != new.Token {
			err = fmt.Errorf("%w: a concurrent transaction was first", idem.ErrRetryTx)
		}
		return err
	})
	return new, nil
}

func (tx *fakeTx) commit() error {
	for _, swap := range tx.swaps {
		if err := swap(); err != nil {
			return err
		}
	}
	return nil
}

// transacting returns what a backend gives to DoTx. commit stands for the
// database's; rows counts the business rows that were committed.
func transacting(b idem.Backend, rows *atomic.Int64, fn func(context.Context, *idem.Claim) (idem.Result, error), commit func(apply func() error) error) func(context.Context, idem.TxBody) error {
	return func(ctx context.Context, body idem.TxBody) error {
		tx := &fakeTx{Backend: b, own: map[string]idem.Record{}}
		inserted := int64(0)
		err := body(ctx, tx, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
			inserted++
			return fn(ctx, c)
		})
		if err != nil {
			return err
		}
		return commit(func() error {
			err := tx.commit()
			if err == nil {
				rows.Add(inserted)
			}
			return err
		})
	}
}

func plainCommit(apply func() error) error { return apply() }

func succeed(context.Context, *idem.Claim) (idem.Result, error) { return result1, nil }

func TestDoTxCommitsClaimAndResultTogether(t *testing.T) {
	ctx := context.Background()
	b := memory.New()
	s := open(t, b, nil)
	var rows atomic.Int64
	for i := range 3 {
		out, err := s.DoTx(ctx, "k", payloadA, transacting(b, &rows, succeed, plainCommit))
		if err != nil || !out.Result.Equal(result1) || out.Replayed != (i > 0) || out.Attempt != 1 {
			t.Errorf("%+v, %v", out, err)
		}
	}
	if _, err := s.DoTx(ctx, "k", payloadB, transacting(b, &rows, succeed, plainCommit)); !errors.Is(err, idem.ErrMismatch) {
		t.Errorf("another payload: %v", err)
	}
	if rows.Load() != 1 {
		t.Errorf("%d rows", rows.Load())
	}
}

func TestDoTxLeavesNoTraceOfAnError(t *testing.T) {
	ctx := context.Background()
	b := memory.New()
	s := open(t, b, nil)
	var rows atomic.Int64
	for _, err := range []error{errBroken, idem.NoEffect(errBroken)} {
		_, got := s.DoTx(ctx, "k", payloadA, transacting(b, &rows, func(context.Context, *idem.Claim) (idem.Result, error) { return result1, err }, plainCommit))
		if got != errBroken {
			t.Errorf("DoTx = %v, want fn's error as it is", got)
		}
		if r := lookup(t, s, "k"); r.Status != 0 || rows.Load() != 0 {
			t.Errorf("left %+v and %d rows", r, rows.Load())
		}
	}
	out, err := s.DoTx(ctx, "k", payloadB, transacting(b, &rows, succeed, plainCommit))
	if err != nil || out.Attempt != 1 {
		t.Errorf("the attempt that was rolled back was counted: %+v, %v", out, err)
	}
}

func TestDoTxRunsAgainAfterAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		b := memory.New()
		s := open(t, b, nil)
		var rows atomic.Int64
		conflicts := 0
		out, err := s.DoTx(ctx, "k", payloadA, transacting(b, &rows, func(context.Context, *idem.Claim) (idem.Result, error) {
			if conflicts++; conflicts <= 5 {
				return idem.Result{}, fmt.Errorf("insert: %w", idem.ErrRetryTx)
			}
			return result1, nil
		}, func(apply func() error) error {
			if conflicts++; conflicts <= 10 {
				return idem.ErrRetryTx
			}
			return apply()
		}))
		if err != nil || !out.Result.Equal(result1) || rows.Load() != 1 {
			t.Errorf("%+v, %v, %d rows", out, err, rows.Load())
		}
		// A transaction that always loses ends.
		_, err = s.DoTx(ctx, "k2", payloadA, transacting(b, &rows, succeed, func(func() error) error { return idem.ErrRetryTx }))
		if !errors.Is(err, idem.ErrRetryTx) {
			t.Errorf("%v", err)
		}
		_, err = s.DoTx(ctx, "k2", payloadA, transacting(b, &rows, func(context.Context, *idem.Claim) (idem.Result, error) { return idem.Result{}, idem.ErrRetryTx }, plainCommit))
		if !errors.Is(err, idem.ErrRetryTx) {
			t.Errorf("%v", err)
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err = s.DoTx(short, "k2", payloadA, transacting(b, &rows, succeed, func(func() error) error { return idem.ErrRetryTx }))
		if !errors.Is(err, idem.ErrRetryTx) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}

func TestDoTxWaitsOutsideOfTheTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		b := memory.New()
		s := open(t, b, &idem.Options{Lease: lease})
		var rows, open, begun atomic.Int64
		counted := func(fn func(context.Context, idem.TxBody) error) func(context.Context, idem.TxBody) error {
			return func(ctx context.Context, body idem.TxBody) error {
				begun.Add(1)
				open.Add(1)
				defer open.Add(-1)
				return fn(ctx, body)
			}
		}
		c := begin(t, s, "k", payloadA)
		done := make(chan error, 1)
		go func() {
			out, err := s.DoTx(ctx, "k", payloadA, counted(transacting(b, &rows, succeed, plainCommit)))
			if err == nil && (!out.Replayed || !out.Result.Equal(result2)) {
				err = fmt.Errorf("got %+v", out)
			}
			done <- err
		}()
		synctest.Wait()
		if open.Load() != 0 {
			t.Error("the duplicate waits inside of its transaction")
		}
		defer func() {
			if begun.Load() != 1 {
				t.Errorf("%d transactions for one answer, want 1", begun.Load())
			}
		}()
		if err := s.Complete(ctx, c, result2); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	b := memory.New()
	s := open(t, b, &idem.Options{NoWait: true})
	begin(t, s, "k", payloadA)
	if _, err := s.DoTx(context.Background(), "k", payloadA, transacting(b, new(atomic.Int64), succeed, plainCommit)); !errors.Is(err, idem.ErrInProgress) {
		t.Errorf("with NoWait: %v", err)
	}
}

// Reliability row 7: the answer to COMMIT is lost. Exactly one effect.
func TestDoTxAsksAfterAnUnknownCommit(t *testing.T) {
	for _, applied := range []bool{true, false} {
		for _, late := range []bool{true, false} {
			t.Run(fmt.Sprintf("applied %v, seen late %v", applied, late), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, hangUp := context.WithCancel(context.Background())
					defer hangUp()
					b := memory.New()
					s := open(t, b, nil)
					var rows atomic.Int64
					commits := 0
					out, err := s.DoTx(ctx, "k", payloadA, transacting(b, &rows, succeed, func(apply func() error) error {
						commits++
						if commits > 1 {
							return apply()
						}
						if applied {
							if late { // the server is still at it when the store is asked
								go func() {
									time.Sleep(time.Nanosecond)
									_ = apply()
								}()
							} else if err := apply(); err != nil {
								t.Error(err)
							}
						}
						return errBroken
					}))
					time.Sleep(time.Minute)
					if err != nil || !out.Result.Equal(result1) || out.Replayed {
						t.Errorf("%+v, %v", out, err)
					}
					if rows.Load() != 1 {
						t.Errorf("%d rows, want 1", rows.Load())
					}
				})
			})
		}
	}
	t.Run("surely not applied", func(t *testing.T) {
		b := memory.New()
		_, err := open(t, b, nil).DoTx(context.Background(), "k", payloadA, transacting(b, new(atomic.Int64), succeed, func(func() error) error { return idem.NoEffect(errBroken) }))
		if !errors.Is(err, errBroken) || !errors.Is(err, idem.ErrUnavailable) {
			t.Errorf("%v", err)
		}
	})
	t.Run("storage gone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newFaulty(memory.New(), func(method string, _ int, _ idem.Record) fate {
				if method == "Get" {
					return lost
				}
				return fine
			})
			_, err := open(t, b, nil).DoTx(context.Background(), "k", payloadA, transacting(b.Backend, new(atomic.Int64), succeed, func(func() error) error { return errBroken }))
			if !errors.Is(err, idem.ErrUnavailable) || errors.Is(err, idem.ErrNotRecorded) {
				t.Errorf("%v", err)
			}
		})
	})
}

// What is recognised as this call's own after an unknown commit, and what is not.
func TestDoTxTellsItsOwnCommitFromOthers(t *testing.T) {
	t.Run("applied after it was asked for", func(t *testing.T) {
		b := memory.New()
		s := open(t, b, nil)
		var rows atomic.Int64
		var late func() error
		runs := 0
		out, err := s.DoTx(context.Background(), "k", payloadA, func(ctx context.Context, body idem.TxBody) error {
			if runs++; runs == 2 {
				if err := late(); err != nil {
					t.Error(err)
				}
			}
			return transacting(b, &rows, succeed, func(apply func() error) error {
				if runs == 1 {
					late = apply
					return errBroken
				}
				return apply()
			})(ctx, body)
		})
		if err != nil || out.Replayed || !out.Result.Equal(result1) || rows.Load() != 1 {
			t.Errorf("%+v, %v, %d rows; want its own result", out, err, rows.Load())
		}
	})
	t.Run("another attempt was first", func(t *testing.T) {
		b := memory.New()
		s := open(t, b, nil)
		out, err := s.DoTx(context.Background(), "k", payloadA, transacting(b, new(atomic.Int64), succeed, func(func() error) error {
			if lookup(t, s, "k").Status != 0 {
				return nil
			}
			if err := s.Complete(context.Background(), begin(t, s, "k", payloadA), result2); err != nil {
				t.Error(err)
			}
			return errBroken
		}))
		if err != nil || !out.Replayed || !out.Result.Equal(result2) {
			t.Errorf("%+v, %v; want the other attempt's result", out, err)
		}
	})
	t.Run("the caller hangs up during the commit", func(t *testing.T) {
		b := memory.New()
		s := open(t, b, nil)
		ctx, hangUp := context.WithCancel(context.Background())
		out, err := s.DoTx(ctx, "k", payloadA, transacting(b, new(atomic.Int64), succeed, func(apply func() error) error {
			hangUp()
			if err := apply(); err != nil {
				t.Error(err)
			}
			return errBroken
		}))
		if err != nil || !out.Result.Equal(result1) {
			t.Errorf("%+v, %v; want to be told that it was applied", out, err)
		}
	})
}

// The caller has gone, and the server is still at the commit when it is asked.
func TestDoTxAsksForACallerWhoIsGone(t *testing.T) {
	for _, applied := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := memory.New()
			s := open(t, b, nil)
			ctx, hangUp := context.WithCancel(context.Background())
			start := time.Now()
			out, err := s.DoTx(ctx, "k", payloadA, transacting(b, new(atomic.Int64), succeed, func(apply func() error) error {
				hangUp()
				if applied {
					time.AfterFunc(time.Second, func() {
						if err := apply(); err != nil {
							t.Error(err)
						}
					})
				}
				return errBroken
			}))
			if applied && (err != nil || !out.Result.Equal(result1)) {
				t.Errorf("%+v, %v; want to be told that it was applied", out, err)
			}
			if !applied && (!errors.Is(err, idem.ErrUnavailable) || !errors.Is(err, errBroken) || !errors.Is(err, context.Canceled)) {
				t.Errorf("%+v, %v; want to be told that it is not known", out, err)
			}
			if d := time.Since(start); d > 3*time.Second {
				t.Errorf("it took %v", d)
			}
		})
	}
}
