package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/idem-go/idem"
	"github.com/jackc/pgx/v5"
)

// WithTx returns a Backend bound to the caller's transaction, for
// [idem.Store.With]: what is written through it commits and rolls back with tx.
//
//   - If a conflict with another transaction has aborted tx, the error is
//     [idem.ErrRetryTx]: roll back and run the transaction again.
//   - A key that another open transaction has claimed is in progress, at once.
//   - Until tx ends, others who write the key wait, or are told that it is in
//     progress. So claim late, and commit soon.
//   - A commit whose outcome is unknown is settled by asking the Store, not by
//     running the transaction again. Do does that.
func (b *Backend) WithTx(tx pgx.Tx) idem.Backend { return newBound(b, pgxSession{tx}) }

// WithSQLTx is WithTx for database/sql.
func (b *Backend) WithSQLTx(tx *sql.Tx) idem.Backend { return newBound(b, sqlSession{tx}) }

// bound is a Backend in a transaction.
type bound struct {
	b *Backend
	s session

	// ask runs one of the variants of a write.
	ask func(ctx context.Context, w writes, args []any) (reply, error)
}

func newBound(b *Backend, s session) *bound {
	t := &bound{b: b, s: s}
	t.ask = func(ctx context.Context, w writes, args []any) (reply, error) {
		rep, err := queryReply(ctx, s, w.bound, args)
		if rep.outcome == unsafely && !b.opts.AllowAsyncCommit {
			return reply{}, fmt.Errorf("synchronous_commit is off in this transaction, so that a crash of the server can lose it after its commit; "+
				"run SET LOCAL synchronous_commit = on, or set Options.AllowAsyncCommit: %w", idem.ErrOptions)
		}
		return rep, err
	}
	return t
}

func (t *bound) Get(ctx context.Context, key string) (idem.Record, error) {
	if err := ctx.Err(); err != nil {
		return idem.Record{}, idem.NoEffect(fmt.Errorf("postgres: get: %w", err))
	}
	rep, err := queryReply(ctx, t.s, t.b.sql.get, []any{key})
	if err != nil {
		return idem.Record{}, t.b.failedBound(ctx, "get", err)
	}
	return unexpired(rep), nil
}

// openTx is the token of a record that is not known yet: what a transaction of
// somebody else's has written and not committed.
const openTx = "open transaction"

// comeBack is the lease of such a record: how soon to ask again, if nothing
// tells.
const comeBack = time.Second

// patience bounds how long a Swap in a transaction stays behind statements of
// others, which take milliseconds each.
const patience = 5 * time.Second

func (t *bound) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	if err := ctx.Err(); err != nil {
		return idem.Record{}, idem.NoEffect(fmt.Errorf("postgres: swap: %w", err))
	}
	sw := t.b.newSwap(key, old, new)
	started := time.Now()
	for delay := time.Duration(0); ; delay = min(2*delay+time.Millisecond, 20*time.Millisecond) {
		text, args := sw.statement()
		rep, err := t.ask(ctx, text, args)
		if err != nil {
			return idem.Record{}, t.b.failedBound(ctx, "swap", err)
		}
		got, ok := sw.settle(rep)
		if ok {
			return got, nil
		}
		if delay > 0 {
			held, err := t.held(ctx, sw)
			if err != nil {
				return idem.Record{}, err
			}
			if held && (old == "" || got.Attempt != new.Attempt) {
				return sw.unknown(), nil
			}
			if held || time.Since(started) > patience {
				return idem.Record{}, idem.NoEffect(fmt.Errorf("postgres: swap: another transaction has written the record and is still open: %w", idem.ErrRetryTx))
			}
		}
		if err := pause(ctx, delay); err != nil {
			return idem.Record{}, idem.NoEffect(fmt.Errorf("postgres: swap: others are writing the record: %w", err))
		}
	}
}

// held reports whether another transaction has written the key and is still
// open.
func (t *bound) held(ctx context.Context, sw *swap) (held bool, err error) {
	lock := uint64(sw.args[1].(int64))
	args := []any{int64(lock >> 32), int64(lock & (1<<32 - 1))}
	err = t.s.query(ctx, heldSQL, args, func(scan func(...any) error) error { return scan(&held) })
	if err != nil {
		return false, t.b.failedBound(ctx, "swap", err)
	}
	return held, nil
}

// unknown returns what stands for the record of a transaction that is open: one
// in progress, with the payload in question as far as anybody knows.
func (sw *swap) unknown() idem.Record {
	r := idem.Record{
		Token:       openTx,
		Status:      idem.InProgress,
		Attempt:     max(sw.new.Attempt, 1),
		Fence:       sw.new.Fence,
		Fingerprint: sw.new.Fingerprint,
		Lease:       comeBack,
		TTL:         time.Hour,
	}
	if sw.new.Lease > 0 {
		r.Lease = min(r.Lease, sw.new.Lease)
	}
	return r
}

func (t *bound) Sweep(ctx context.Context, limit int) (n int, err error) {
	if err := ctx.Err(); err != nil || limit < 1 {
		return 0, err
	}
	err = t.s.query(ctx, t.b.sql.sweep, []any{int64(limit)}, func(scan func(...any) error) error { return scan(&n) })
	if err != nil {
		return 0, t.b.failedBound(ctx, "sweep", err)
	}
	return n, nil
}
