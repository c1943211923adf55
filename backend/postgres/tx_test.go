package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
)

// began returns a transaction that is rolled back after the test.
func (f *fixture) began(t testing.TB, opts pgx.TxOptions) pgx.Tx {
	t.Helper()
	tx, err := f.pool.BeginTx(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// A beginning is how a Begin ended.
type beginning struct {
	claim *idem.Claim
	done  *idem.Record
	err   error
}

func begin(ctx context.Context, s *idem.Store, key string) <-chan beginning {
	c := make(chan beginning, 1)
	go func() {
		var b beginning
		b.claim, b.done, b.err = s.Begin(ctx, key, payloadA)
		c <- b
	}()
	return c
}

// PG-1: a transaction that has claimed the key is open. The loser of the race
// waits, and is never told of a unique violation or of missing rows.
func TestPG1_LoserOfAnInsertRace(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4)
	s := newStore(t, f, nil)
	claimed := func(key string) pgx.Tx {
		tx := f.began(t, pgx.TxOptions{})
		if c, _, err := s.With(f.WithTx(tx)).Begin(ctx, key, payloadA); err != nil || c == nil {
			t.Fatalf("Begin in a transaction: %v, %v", c, err)
		}
		return tx
	}
	stillWaits := func(b <-chan beginning) {
		t.Helper()
		select {
		case got := <-b:
			t.Errorf("Begin did not wait for the open transaction: %+v", got)
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Run("commit", func(t *testing.T) {
		tx := claimed("commit")
		b := begin(ctx, s, "commit")
		stillWaits(b)
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if got := <-b; !errors.Is(got.err, idem.ErrInProgress) {
			t.Errorf("after the commit: %+v", got)
		}
	})
	t.Run("rollback", func(t *testing.T) {
		tx := claimed("rollback")
		b := begin(ctx, s, "rollback")
		stillWaits(b)
		if err := tx.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
		if got := <-b; got.claim == nil || got.claim.Attempt != 1 {
			t.Errorf("after the rollback: %+v", got)
		}
	})
	t.Run("the context ends", func(t *testing.T) {
		tx := claimed("ends")
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		started := time.Now()
		got := <-begin(short, s, "ends")
		if !errors.Is(got.err, context.DeadlineExceeded) || !errors.Is(got.err, idem.ErrUnavailable) {
			t.Errorf("%+v", got)
		}
		if took := time.Since(started); took > time.Second {
			t.Errorf("it took %v after a deadline of 200ms", took)
		}
		_ = tx.Rollback(ctx)
		if r, err := s.Lookup(ctx, "ends"); err != nil || r.Status != 0 {
			t.Errorf("left behind: %+v, %v", r, err)
		}
	})
	t.Run("the record goes between insert and read", func(t *testing.T) {
		stop := make(chan struct{})
		var releasing sync.WaitGroup
		releasing.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				f.exec(t, `DELETE FROM `+f.schema+`.idem_records WHERE key = 'goes'`)
			}
		})
		var all sync.WaitGroup
		var claims atomic.Int64
		for range 64 {
			all.Go(func() {
				for range 20 {
					c, _, err := s.Begin(ctx, "goes", payloadA)
					if c != nil {
						claims.Add(1)
					}
					if err != nil && !errors.Is(err, idem.ErrInProgress) {
						t.Errorf("Begin = %v", err)
						return
					}
				}
			})
		}
		all.Wait()
		close(stop)
		releasing.Wait()
		if claims.Load() < 2 {
			t.Errorf("%d claims: the race was not run", claims.Load())
		}
	})
}

// PG-3: conflicts of isolation stay inside of calls by themselves, and show in
// the caller's transaction as what they are.
func TestPG3_SerializationFailuresAndDeadlocks(t *testing.T) {
	ctx := context.Background()
	for _, level := range []string{"repeatable read", "serializable"} {
		f := newFixture(t, 16, "default_transaction_isolation", level)
		s := newStore(t, f, nil)
		t.Run("alone at "+level, func(t *testing.T) {
			for round := range 20 {
				var all sync.WaitGroup
				var claims atomic.Int64
				for i := range 64 {
					all.Go(func() {
						c, done, err := s.Begin(ctx, fmt.Sprintf("k%d-%d", round, i%8), payloadA)
						switch {
						case c != nil:
							claims.Add(1)
							if err := s.Complete(ctx, c, idem.Result{}); err != nil {
								t.Errorf("Complete = %v", err)
							}
						case done == nil && !errors.Is(err, idem.ErrInProgress):
							t.Errorf("Begin = %v", err)
						}
					})
				}
				all.Wait()
				if claims.Load() != 8 {
					t.Fatalf("%d claims of 8 keys", claims.Load())
				}
			}
		})
		t.Run("an older snapshot at "+level, func(t *testing.T) {
			tx := f.began(t, pgx.TxOptions{})
			if _, err := tx.Exec(ctx, `SELECT count(*) FROM `+f.schema+`.payments`); err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.Begin(ctx, "snapshot", payloadA); err != nil {
				t.Fatal(err)
			}
			if c, _, err := s.With(f.WithTx(tx)).Begin(ctx, "snapshot", payloadA); !errors.Is(err, idem.ErrRetryTx) || c != nil {
				t.Errorf("Begin = %v, %v, want ErrRetryTx", c, err)
			}
			_ = tx.Rollback(ctx)
			again := f.began(t, pgx.TxOptions{})
			if _, _, err := s.With(f.WithTx(again)).Begin(ctx, "snapshot", payloadA); !errors.Is(err, idem.ErrInProgress) {
				t.Errorf("after the transaction was run again: %v", err)
			}
		})
	}
	t.Run("crossing keys", func(t *testing.T) {
		f := newFixture(t, 4)
		s := newStore(t, f, nil)
		txs := []pgx.Tx{f.began(t, pgx.TxOptions{}), f.began(t, pgx.TxOptions{})}
		for i, tx := range txs {
			if _, _, err := s.With(f.WithTx(tx)).Begin(ctx, fmt.Sprintf("cross%d", i), payloadA); err != nil {
				t.Fatal(err)
			}
		}
		// Nobody waits on the other, so there is no deadlock to be resolved.
		for i, tx := range txs {
			_, _, err := s.With(f.WithTx(tx)).Begin(ctx, fmt.Sprintf("cross%d", 1-i), payloadA)
			if !errors.Is(err, idem.ErrInProgress) {
				t.Errorf("Begin = %v, want ErrInProgress", err)
			}
		}
		if err := txs[0].Rollback(ctx); err != nil {
			t.Fatal(err)
		}
		if c, _, err := s.With(f.WithTx(txs[1])).Begin(ctx, "cross0", payloadA); c == nil {
			t.Errorf("after the other has rolled back: %v", err)
		}
		if err := txs[1].Commit(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Run("deadlock in business statements", func(t *testing.T) {
		f := newFixture(t, 8)
		s := newStore(t, f, nil)
		f.exec(t, `CREATE TABLE `+f.schema+`.accounts (id int PRIMARY KEY, balance int NOT NULL)`)
		f.exec(t, `INSERT INTO `+f.schema+`.accounts VALUES (0, 0), (1, 0)`)
		var runs atomic.Int64
		var all sync.WaitGroup
		for i := range 2 {
			all.Go(func() {
				_, err := f.Do(ctx, s, fmt.Sprintf("transfer%d", i), payloadA, func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
					first := runs.Add(1) <= 2
					for _, id := range []int{i, 1 - i} {
						if _, err := tx.Exec(ctx, `UPDATE `+f.schema+`.accounts SET balance = balance + 1 WHERE id = $1`, id); err != nil {
							return idem.Result{}, fmt.Errorf("pay: %w", err)
						}
						for first && id == i && runs.Load() < 2 { // until both have their first account
							if err := ctx.Err(); err != nil {
								return idem.Result{}, err
							}
							time.Sleep(time.Millisecond) // gives way; what is waited for is the loop's condition
						}
					}
					return idem.Result{}, nil
				})
				if err != nil {
					t.Errorf("transfer %d: %v", i, err)
				}
			})
		}
		all.Wait()
		var sum int
		if err := f.pool.QueryRow(ctx, `SELECT sum(balance) FROM `+f.schema+`.accounts`).Scan(&sum); err != nil || sum != 4 {
			t.Errorf("sum %d, %v, want 4", sum, err)
		}
	})
}

// PE-10 and reliability row 23: duplicates of a running key on a pool that they
// could fill. They are answered, or wait, without holding a connection.
func TestPE10_DuplicatesDoNotFillThePool(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 10)
	s := newStore(t, f, nil)
	noWait := newStore(t, f, &idem.Options{NoWait: true})
	unrelated := func(t *testing.T) {
		t.Helper()
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		started := time.Now()
		if _, err := f.pool.Exec(short, `SELECT 1`); err != nil {
			t.Errorf("an unrelated query: %v", err)
		}
		t.Logf("an unrelated query took %v", time.Since(started))
		if c, _, err := s.Begin(short, idem.NewKey(), payloadA); c == nil {
			t.Errorf("an unrelated claim: %v", err)
		}
		if n := f.pool.Stat().AcquiredConns(); n >= 10 {
			t.Errorf("all %d connections are in use", n)
		}
	}
	t.Run("everything in one transaction", func(t *testing.T) {
		running, finish := make(chan struct{}), make(chan struct{})
		var runs atomic.Int64
		pay := func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
			if runs.Add(1) == 1 {
				close(running)
				<-finish
			}
			return idem.Result{Body: []byte("paid")}, f.pay(ctx, tx, c.Key)
		}
		var all sync.WaitGroup
		do := func() {
			out, err := f.Do(ctx, s, "k", payloadA, pay)
			if err != nil || string(out.Result.Body) != "paid" {
				t.Errorf("Do = %+v, %v", out, err)
			}
		}
		all.Go(do)
		<-running
		for range 30 {
			all.Go(do)
		}
		for range 5 {
			unrelated(t)
			started := time.Now()
			if _, err := f.Do(ctx, noWait, "k", payloadA, pay); !errors.Is(err, idem.ErrInProgress) {
				t.Errorf("with NoWait: %v", err)
			} else if e := err.(*idem.Error); e.RetryAfter() <= 0 || e.RetryAfter() > time.Second {
				t.Errorf("RetryAfter is %v", e.RetryAfter())
			}
			t.Logf("with NoWait Do took %v", time.Since(started))
		}
		close(finish)
		all.Wait()
		if runs.Load() != 1 || f.payments(t)["k"] != 1 {
			t.Errorf("%d runs, payments %v", runs.Load(), f.payments(t))
		}
	})
	t.Run("a completion is open", func(t *testing.T) {
		c, _, err := s.Begin(ctx, "open", payloadA)
		if err != nil {
			t.Fatal(err)
		}
		tx := f.began(t, pgx.TxOptions{})
		if err := s.With(f.WithTx(tx)).Complete(ctx, c, idem.Result{Code: 1}); err != nil {
			t.Fatal(err)
		}
		for range 30 {
			short, cancel := context.WithTimeout(ctx, 2*time.Second)
			if _, _, err := s.Begin(short, "open", payloadA); !errors.Is(err, idem.ErrInProgress) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Begin = %v, want ErrInProgress at once", err)
			}
			cancel()
		}
		unrelated(t)
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if _, done, err := s.Begin(ctx, "open", payloadA); done == nil {
			t.Errorf("after the commit: %v", err)
		}
	})
	t.Run("a claim is open, database/sql", func(t *testing.T) {
		db := openSQL(t, f.url, 10)
		b, err := postgres.NewSQL(db, &postgres.Options{Schema: f.schema})
		if err != nil {
			t.Fatal(err)
		}
		std := newStore(t, b, nil)
		tx := f.began(t, pgx.TxOptions{})
		if c, _, err := s.With(f.WithTx(tx)).Begin(ctx, "claimed", payloadA); c == nil {
			t.Fatal(err)
		}
		var waiting []<-chan beginning
		for range 30 {
			waiting = append(waiting, begin(ctx, std, "claimed"))
		}
		for range 5 {
			short, cancel := context.WithTimeout(ctx, 2*time.Second)
			if c, _, err := std.Begin(short, idem.NewKey(), payloadA); c == nil {
				t.Errorf("an unrelated claim: %v", err)
			}
			cancel()
		}
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		for _, w := range waiting {
			if got := <-w; !errors.Is(got.err, idem.ErrInProgress) {
				t.Errorf("after the commit: %+v", got)
			}
		}
	})
	t.Run("a lapsed claim is taken over in a transaction", func(t *testing.T) {
		c, _, err := s.Begin(ctx, "lapsed", payloadA)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Abandon(ctx, c); err != nil {
			t.Fatal(err)
		}
		running, finish := make(chan struct{}), make(chan struct{})
		var all sync.WaitGroup
		var runs atomic.Int64
		do := func() {
			out, err := f.Do(ctx, s, "lapsed", payloadA, func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
				if runs.Add(1) == 1 {
					close(running)
				}
				<-finish
				if !c.Takeover {
					t.Error("the claim does not say that it is a takeover")
				}
				return idem.Result{}, f.pay(ctx, tx, c.Key)
			})
			if err != nil || out.Attempt != 2 {
				t.Errorf("Do = %+v, %v", out, err)
			}
		}
		all.Go(do)
		<-running
		for range 30 {
			all.Go(do)
		}
		for range 3 {
			unrelated(t)
		}
		close(finish)
		all.Wait()
		if runs.Load() != 1 {
			t.Errorf("%d runs", runs.Load())
		}
	})
}
