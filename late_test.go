package idem_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// A lateWire delivers claims after a delay; whoever sent them
// is told at once that the wire broke.
type lateWire struct {
	idem.Backend
	delay time.Duration
	first bool // the claims of a key without a record too
}

func (w *lateWire) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	if new.Status == idem.InProgress && new.Lease > 0 && (w.first || old != "") {
		go func() {
			time.Sleep(w.delay)
			_, _ = w.Backend.Swap(context.Background(), key, old, new)
		}()
		return idem.Record{}, errBroken
	}
	return w.Backend.Swap(ctx, key, old, new)
}

// A claim that was given up and arrives late takes nothing, neither a fresh key
// nor one to be taken over: there would be a lease in which nobody runs.
func TestLateClaimPlantsNoGhost(t *testing.T) {
	for name, takeover := range map[string]bool{"fresh key": false, "takeover": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := context.Background()
				mem := memory.New()
				const lease = time.Hour
				s := open(t, mem, &idem.Options{Lease: lease, NoWait: true})
				if takeover {
					if err := s.Abandon(ctx, begin(t, s, "k", payloadA)); err != nil {
						t.Fatal(err)
					}
				}
				_, _, err := open(t, &lateWire{mem, 10 * time.Second, !takeover}, &idem.Options{Lease: lease}).Begin(ctx, "k", payloadA)
				if !errors.Is(err, idem.ErrUnavailable) {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				out, err := s.Do(ctx, "k", payloadA, returning(new(atomic.Int64), result1, nil))
				if err != nil {
					t.Errorf("a minute later, nobody runs: %+v, %v", out, err)
				}
			})
		})
	}
}

// The cause of a context in DoTx, as in Do.
func TestDoTxEndsWhenTheCauseIsErrInProgress(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(&idem.Error{Op: "do", Key: "first", Err: idem.ErrInProgress})
	s := open(t, nil, nil)
	runs := 0
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("%v: the transaction was begun %d times", r, runs)
		}
	}()
	b := memory.New()
	_, err := s.DoTx(ctx, "second", payloadA, func(ctx context.Context, body idem.TxBody) error {
		if runs++; runs > 1000 {
			panic("it never ends")
		}
		return transacting(b, new(atomic.Int64), succeed, plainCommit)(ctx, body)
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// An operation that ends with NoEffect in a takeover speaks for itself only: the
// key stays open.
func TestNoEffectInATakeover(t *testing.T) {
	ctx := context.Background()
	s := open(t, nil, nil)
	_, _ = s.Do(ctx, "k", payloadA, returning(new(atomic.Int64), idem.Result{}, errBroken))
	_, _ = s.Do(ctx, "k", payloadA, returning(new(atomic.Int64), idem.Result{}, idem.NoEffect(errBroken)))
	if r := lookup(t, s, "k"); r.Status != idem.InProgress || r.Lease != 0 || r.Fingerprint != payloadA {
		t.Errorf("%+v; want it to end like Abandon", r)
	}
}
