package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem"
)

// WithTx returns a Backend bound to the caller's transaction, for
// [idem.Store.With]: what is written through it commits and rolls back with tx.
//
//   - If a conflict with another transaction has aborted tx, the error is
//     [idem.ErrRetryTx]: roll back and run the transaction again.
//   - A key that another open transaction has claimed is in progress, at once.
//   - Until tx ends, others who write the key wait, or are told that it is in
//     progress. So claim late, and commit soon.
//   - tx holds one lock of the server for each key that it has written: for
//     transactions with thousands of keys raise max_locks_per_transaction.
//   - A commit whose outcome is unknown is settled by asking the Store, not by
//     running the transaction again. Do does that.
func (b *Backend) WithTx(tx pgx.Tx) idem.Backend { return &bound{b, pgxSession{tx}} }

// WithSQLTx is WithTx for database/sql.
func (b *Backend) WithSQLTx(tx *sql.Tx) idem.Backend { return &bound{b, sqlSession{tx}} }

// bound is a Backend in a transaction.
type bound struct {
	b *Backend
	s session
}

// ask runs an operation in the transaction.
func (t *bound) ask(ctx context.Context, op *operation) (reply, error) {
	rep, err := queryReply(ctx, t.s, t.statement(op), op.args())
	if err != nil {
		return rep, err
	}
	return t.safe(rep)
}

// statement returns the SQL of an operation that writes.
func (t *bound) statement(op *operation) string {
	if op.kind == replace {
		return t.b.sql.replace.bound
	}
	return t.b.sql.claim.bound
}

// safe refuses a write that a crash of the server could lose.
func (t *bound) safe(rep reply) (reply, error) {
	if rep.outcome == unsafely && !t.b.opts.AllowAsyncCommit {
		return reply{}, fmt.Errorf("synchronous_commit is off in this transaction, so that a crash of the server can lose it after its commit; "+
			"run SET LOCAL synchronous_commit = on, or set Options.AllowAsyncCommit: %w", idem.ErrOptions)
	}
	return rep, nil
}

func (t *bound) Get(ctx context.Context, key string) (idem.Record, error) {
	if err := ctx.Err(); err != nil {
		return idem.Record{}, idem.NoEffect(fmt.Errorf("postgres: get: %w", err))
	}
	rep, err := queryReply(ctx, t.s, t.b.sql.get, []any{key})
	if err != nil {
		return idem.Record{}, t.b.failedBound(ctx, "get", err)
	}
	if rep.outcome == standby {
		return idem.Record{}, errStandby("get")
	}
	return unexpired(rep), nil
}

// openTx is the token of a record that is not known yet: what a transaction of
// somebody else's has written and not committed.
const openTx = "open transaction"

// comeBack is the lease of such a record: how soon to ask again, if nothing
// tells.
const comeBack = time.Second

// patience bounds how long a Swap in a transaction that is no claim stays behind
// others.
const patience = 5 * time.Second

func (t *bound) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	if err := ctx.Err(); err != nil {
		return idem.Record{}, idem.NoEffect(fmt.Errorf("postgres: swap: %w", err))
	}
	if err := checkKey(key); err != nil {
		return idem.Record{}, err
	}
	sw := t.b.newSwap(key, old, new)
	started := time.Now()
	for delay := time.Duration(0); ; delay = min(2*delay+time.Millisecond, 20*time.Millisecond) {
		rep, err := t.ask(ctx, sw.next())
		if err != nil {
			return idem.Record{}, t.b.failedBound(ctx, "swap", err)
		}
		got, ok := sw.settle(rep)
		if ok {
			return got, nil
		}
		if delay > 0 {
			held, err := heldBySomebody(ctx, t.s, sw.op.lock)
			if err != nil {
				return idem.Record{}, t.b.failedBound(ctx, "swap", err)
			}
			if held && (old == "" || got.Attempt != new.Attempt) {
				return unknown(new), nil
			}
			// A completion is not told that somebody is in its way: that may be
			// its own heartbeat, or a duplicate that looks.
			if time.Since(started) > patience {
				return idem.Record{}, idem.NoEffect(fmt.Errorf("postgres: swap: another transaction that has the record is still open after %v: %w", patience, idem.ErrRetryTx))
			}
		}
		if err := pause(ctx, delay); err != nil {
			return idem.Record{}, idem.NoEffect(fmt.Errorf("postgres: swap: others are writing the record: %w", err))
		}
	}
}

// heldBySomebody reports whether another transaction has written the key with
// the lock and is still open.
func heldBySomebody(ctx context.Context, s session, lock int64) (held bool, err error) {
	err = s.query(ctx, heldSQL, heldArgs(lock), func(scan func(...any) error) error { return scan(&held) })
	return held, err
}

func heldArgs(lock int64) []any {
	return []any{int64(uint64(lock) >> 32), int64(uint64(lock) & (1<<32 - 1))}
}

// unknown returns what stands in the way of new while a transaction of somebody
// else's is open: an attempt in progress, with the same payload as far as
// anybody knows.
func unknown(new idem.Record) idem.Record {
	r := idem.Record{
		Token:       openTx,
		Status:      idem.InProgress,
		Attempt:     max(new.Attempt, 1),
		Fence:       new.Fence,
		Fingerprint: new.Fingerprint,
		Lease:       comeBack,
		TTL:         time.Hour,
	}
	if new.Lease > 0 {
		r.Lease = min(r.Lease, new.Lease)
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
