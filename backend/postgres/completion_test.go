package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
)

// Claim first, complete in the business transaction: who has lost his claim is
// told so, and his business change goes with the transaction.
func TestCompletionOfALostClaimRollsBack(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4)
	s := newStore(t, f, &idem.Options{Lease: time.Millisecond})
	first, _, err := s.Begin(ctx, "k", payloadA)
	if err != nil {
		t.Fatal(err)
	}
	var second *idem.Claim
	for second == nil { // until the lease of a millisecond is over
		if second, _, err = s.Begin(ctx, "k", payloadA); err != nil && !errors.Is(err, idem.ErrInProgress) {
			t.Fatal(err)
		}
	}
	pay := func(c *idem.Claim) error {
		return pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
			if err := f.pay(ctx, tx, c.Key); err != nil {
				return err
			}
			return s.With(f.WithTx(tx)).Complete(ctx, c, idem.Result{Code: 201})
		})
	}
	if err := pay(first); !errors.Is(err, idem.ErrLost) {
		t.Errorf("the first attempt: %v, want ErrLost", err)
	}
	// A refused completion leaves nothing locked while its transaction is open.
	tx := f.began(t, pgx.TxOptions{})
	if err := s.With(f.WithTx(tx)).Complete(ctx, first, idem.Result{}); !errors.Is(err, idem.ErrLost) {
		t.Errorf("in an open transaction: %v, want ErrLost", err)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := s.Extend(short, second); err != nil {
		t.Errorf("beside the open transaction: %v", err)
	}
	_ = tx.Rollback(ctx)
	if err := pay(second); err != nil {
		t.Errorf("the second attempt: %v", err)
	}
	if err := pay(first); !errors.Is(err, idem.ErrLost) {
		t.Errorf("the first attempt, after the second: %v, want ErrLost", err)
	}
	if paid := f.payments(t)["k"]; paid != 1 {
		t.Errorf("paid %d times", paid)
	}
}

// A completion in a transaction waits for the heartbeat of its own claim, and for
// duplicates that look, and is not told that the claim is lost.
func TestCompletionMeetsItsOwnHeartbeat(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 16)
	s := newStore(t, f, nil)
	noWait := newStore(t, f, &idem.Options{NoWait: true})
	for i := range 50 {
		key := fmt.Sprintf("k%d", i)
		c, _, err := s.Begin(ctx, key, payloadA)
		if err != nil {
			t.Fatal(err)
		}
		text, err := c.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		var beats sync.WaitGroup
		for range 3 {
			beats.Go(func() {
				var other idem.Claim
				if err := other.UnmarshalText(text); err != nil {
					t.Error(err)
				}
				for {
					select {
					case <-stop:
						return
					default:
					}
					if err := s.Extend(ctx, &other); err != nil && !errors.Is(err, idem.ErrLost) {
						t.Errorf("Extend = %v", err)
					}
				}
			})
		}
		for range 2 {
			beats.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					_, err := f.Do(ctx, noWait, key, payloadA, func(context.Context, pgx.Tx, *idem.Claim) (idem.Result, error) {
						return idem.Result{}, errors.New("the duplicate ran")
					})
					if err != nil && !errors.Is(err, idem.ErrInProgress) {
						t.Errorf("Do = %v", err)
					}
				}
			})
		}
		err = pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
			return s.With(f.WithTx(tx)).Complete(ctx, c, idem.Result{})
		})
		if err != nil {
			t.Errorf("Complete = %v", err)
		}
		close(stop)
		beats.Wait()
	}
}

// Reliability row 17: a caller's transaction whose commit a crash can lose is
// reported; calls by themselves and Do commit durably.
func TestAsynchronousCommitIsReported(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4, "synchronous_commit", "off")
	s := newStore(t, f, nil)
	allowing, err := postgres.New(f.pool, &postgres.Options{Schema: f.schema, AllowAsyncCommit: true})
	if err != nil {
		t.Fatal(err)
	}
	tx := f.began(t, pgx.TxOptions{})
	_, _, err = s.With(f.WithTx(tx)).Begin(ctx, "a", payloadA)
	if !errors.Is(err, idem.ErrOptions) {
		t.Errorf("Begin = %v, want an error that names synchronous_commit", err)
	}
	_ = tx.Rollback(ctx)
	tx = f.began(t, pgx.TxOptions{})
	if c, _, err := s.With(allowing.WithTx(tx)).Begin(ctx, "b", payloadA); c == nil {
		t.Errorf("with AllowAsyncCommit: %v", err)
	}
	_ = tx.Rollback(ctx)
	tx = f.began(t, pgx.TxOptions{})
	if _, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = on`); err != nil {
		t.Fatal(err)
	}
	if c, _, err := s.With(f.WithTx(tx)).Begin(ctx, "c", payloadA); c == nil {
		t.Errorf("with SET LOCAL: %v", err)
	}
}
