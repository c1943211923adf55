package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem"
)

// Do runs fn once for the key, in a transaction in which the claim, what fn does
// through tx, and the result commit together. It returns the result to every
// caller with that key, for the retention of the store. The transaction takes
// two round trips beside fn's own, and one more if there is a record that this
// process has not seen lately.
//
//   - If the operation is completed, Do returns the stored result.
//   - If another call is at it, Do waits, without a connection, or returns
//     [idem.ErrInProgress] with idem.Options.NoWait.
//   - An error of fn rolls everything back: no trace is left, and Do returns the
//     error as it is. A refusal that duplicates should see is a Result.
//   - After a conflict with another transaction (SQLSTATE 40001 or 40P01), fn's
//     own included, everything is rolled back and fn runs again. So fn must have
//     no effect but through tx.
//   - If the outcome of COMMIT is unknown, Do finds it out: the business change
//     is made exactly once.
//
// fn must not commit or roll back tx, nor ignore an error of one of its
// statements, except behind a savepoint of its own (tx.Begin). The isolation is
// that of Options.TxOptions. The commit is durable, whatever the default of the
// database for synchronous_commit is.
//
// The record of the operation is written with its result, at the end. Until then
// the transaction holds the key by an advisory lock; the unique key decides.
func (b *Backend) Do(ctx context.Context, store *idem.Store, key string, fp idem.Fingerprint,
	fn func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error),
) (idem.Outcome, error) {
	if b.pgx == nil {
		return idem.Outcome{}, fmt.Errorf("postgres: do: %w: the Backend was made by NewSQL; use DoSQL", idem.ErrOptions)
	}
	return store.DoTx(ctx, key, fp, func(ctx context.Context, body idem.TxBody) error {
		tx := &pgxTx{b: b}
		return b.transact(ctx, body, tx, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
			r, err := fn(ctx, tx.tx, c)
			if err == nil {
				err = tx.usable()
			}
			return r, err
		})
	})
}

// DoSQL is Do for database/sql; it takes three round trips more. Of
// Options.TxOptions it uses the isolation and the access mode.
func (b *Backend) DoSQL(ctx context.Context, store *idem.Store, key string, fp idem.Fingerprint,
	fn func(ctx context.Context, tx *sql.Tx, c *idem.Claim) (idem.Result, error),
) (idem.Outcome, error) {
	src, ok := b.src.(sqlSource)
	if !ok {
		return idem.Outcome{}, fmt.Errorf("postgres: do: %w: the Backend was made by New; use Do", idem.ErrOptions)
	}
	return store.DoTx(ctx, key, fp, func(ctx context.Context, body idem.TxBody) error {
		tx := &sqlTx{b: b, db: src.db}
		return b.transact(ctx, body, tx, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
			return fn(ctx, tx.tx, c)
		})
	})
}

// An ownTx is a transaction that Do begins and ends.
type ownTx interface {
	session

	// look begins the transaction, tries to take the lock of the key, and reads
	// the record.
	look(ctx context.Context, op *operation) (locked bool, rep reply, err error)

	// write runs the only statement that writes a record, and commits. It
	// returns an error if the statement failed. committed is what is known of
	// the commit after that.
	write(ctx context.Context, sql string, args []any) (committed, err error)

	// close rolls back what has not been committed and gives the connection
	// back. It may be called again.
	close()
}

// transact runs body in tx and commits it.
func (b *Backend) transact(ctx context.Context, body idem.TxBody, tx ownTx, fn func(context.Context, *idem.Claim) (idem.Result, error)) error {
	o := &own{b: b, tx: tx}
	defer func() {
		tx.close()
		if o.claim != nil {
			b.waits.wake(o.lock) // whatever became of it
		}
	}()
	err := body(ctx, o, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
		r, err := fn(ctx, c)
		if err != nil && conflict(err) && !errors.Is(err, idem.ErrRetryTx) {
			err = fmt.Errorf("%w: %w", idem.ErrRetryTx, err)
		}
		return r, err
	})
	if err == nil {
		err = o.committed
	}
	return err
}

// own is the Backend of one run of Do. What body asks of it is a claim and, after
// fn, the completion of that claim.
type own struct {
	b  *Backend
	tx ownTx

	lock      int64
	claim     *idem.Record // granted, and not written
	over      reply        // what it replaces
	committed error        // what became of the commit
}

// Get and Sweep make it a Backend; body does not call them.
func (o *own) Get(ctx context.Context, key string) (idem.Record, error) {
	return o.b.Get(ctx, key)
}

func (o *own) Sweep(ctx context.Context, limit int) (int, error) {
	return o.b.Sweep(ctx, limit)
}

func (o *own) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	if err := ctx.Err(); err != nil {
		return idem.Record{}, idem.NoEffect(fmt.Errorf("postgres: do: %w", err))
	}
	sw := o.b.newSwap(key, old, new)
	if o.claim == nil {
		return o.grant(ctx, sw)
	}
	if old != o.claim.Token {
		return *o.claim, nil
	}
	return o.complete(ctx, sw)
}

// grant lets the claim have the key, if it is free or has the record that the
// claim is to replace.
func (o *own) grant(ctx context.Context, sw *swap) (idem.Record, error) {
	for delay := time.Duration(0); ; delay = min(2*delay+time.Millisecond, 20*time.Millisecond) {
		locked, rep, err := o.tx.look(ctx, &sw.op)
		if err != nil {
			return idem.Record{}, o.b.failedBound(ctx, "begin", err)
		}
		now := unexpired(rep)
		switch {
		case rep.outcome == standby:
			return idem.Record{}, idem.NoEffect(errStandby("do"))
		case now.Token != sw.old:
			return now, nil
		case locked:
			o.lock, o.claim, o.over = sw.op.lock, sw.op.new, rep
			return *sw.op.new, nil
		}
		held, err := heldBySomebody(ctx, o.tx, sw.op.lock)
		if err != nil {
			return idem.Record{}, o.b.failedBound(ctx, "begin", err)
		}
		if held {
			return unknown(*sw.op.new), nil
		}
		if err := pause(ctx, delay); err != nil {
			return idem.Record{}, idem.NoEffect(fmt.Errorf("postgres: do: others are writing the record: %w", err))
		}
	}
}

// complete writes the completed record and commits.
func (o *own) complete(ctx context.Context, sw *swap) (idem.Record, error) {
	op, sql := &sw.op, o.b.sql.insert
	op.kind = claim
	if o.over.outcome == present {
		sql = o.b.sql.last
		op.kind, op.old, op.live = replace, o.over.record.Token, !o.over.record.Expired()
	}
	committed, err := o.tx.write(ctx, sql, op.args())
	switch {
	case err == nil:
		o.committed = committed
		o.b.known.note(op.key)
		return sw.new, nil
	case sqlState(err) == uniqueViolation || sqlState(err) == divisionByZero:
		return idem.Record{}, idem.NoEffect(fmt.Errorf("%w: the record was written by another transaction: %w", idem.ErrRetryTx, o.b.explain(ctx, "complete", err)))
	}
	return idem.Record{}, o.b.failedBound(ctx, "complete", err)
}

// cleanUp bounds what is done for a caller who may be gone.
const cleanUp = 2 * time.Second

// pgxTx is a transaction on a connection of pgx. It begins in one round trip with
// the look at the record, and commits in another with the write.
type pgxTx struct {
	b         *Backend
	tx        pgx.Tx
	release   func()
	committed bool
}

func (t *pgxTx) query(ctx context.Context, sql string, args []any, each func(func(...any) error) error) error {
	return pgxSession{t.tx}.query(ctx, sql, args, each)
}

func (t *pgxTx) look(ctx context.Context, op *operation) (locked bool, rep reply, err error) {
	// A pool may have connections that are dead. Nothing has happened yet.
	for tries := 1; ; tries++ {
		first := t.tx == nil
		locked, rep, err = t.lookOnce(ctx, op)
		if err == nil || !first || !lostConnection(err) || ctx.Err() != nil || tries == 3 {
			return locked, rep, err
		}
		t.close()
		t.tx = nil
	}
}

func (t *pgxTx) lookOnce(ctx context.Context, op *operation) (locked bool, rep reply, err error) {
	var batch pgx.Batch
	var results pgx.BatchResults
	begun := t.tx != nil
	if !begun {
		batch.BeginTx(t.b.opts.TxOptions)
	}
	// At READ COMMITTED each statement has a snapshot of its own: whoever has
	// the lock sees what was committed before he got it.
	batch.Queue(lockSQL, op.lock)
	// Most keys have no record, and to look for one costs less than to read it.
	look := t.b.sql.there
	if t.b.known.has(op.key) {
		look = t.b.sql.get
	}
	batch.Queue(look, op.key)
	if begun {
		results = t.tx.SendBatch(ctx, &batch)
	} else {
		conn, release, err := t.b.pgx.acquire(ctx)
		if err != nil {
			return false, rep, err
		}
		t.release = release
		results = conn.SendBatch(ctx, &batch)
		t.tx = results.Tx()
		if _, err := results.Exec(); err != nil {
			_ = results.Close()
			return false, rep, err
		}
	}
	var recovering, there bool
	err = results.QueryRow().Scan(&locked, &recovering)
	switch {
	case err != nil:
	case look == t.b.sql.get:
		rep, err = readReply(results)
	default:
		err = eachRow(results, func(func(...any) error) error {
			there = true
			return nil
		})
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	switch {
	case err == nil && recovering:
		rep = reply{outcome: standby}
	case err == nil && there:
		t.b.known.note(op.key)
		rep, err = queryReply(ctx, t, t.b.sql.get, []any{op.key})
	}
	return locked, rep, err
}

func (t *pgxTx) write(ctx context.Context, sql string, args []any) (committed, err error) {
	var batch pgx.Batch
	batch.Queue(sql, args...)
	commit := "commit"
	if q := t.b.opts.TxOptions.CommitQuery; q != "" {
		commit = q
	}
	batch.Queue(commit)
	results := t.tx.SendBatch(ctx, &batch)
	_, err = results.Exec()
	if err != nil && (refused(err) || unsent(err)) {
		_ = results.Close()
		return nil, err // the server skips what follows in the pipeline
	}
	if err == nil {
		tag, commitErr := results.Exec()
		if err = commitErr; err == nil && tag.String() == "ROLLBACK" {
			err = pgx.ErrTxCommitRollback
		}
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	t.committed = true
	if err != nil {
		return t.b.failedCommit(ctx, err), nil
	}
	return nil, nil
}

// usable reports what fn has made of the transaction.
func (t *pgxTx) usable() error {
	switch t.tx.Conn().PgConn().TxStatus() {
	case 'E':
		return errors.New("postgres: do: the function ignored an error of one of its statements, which has aborted the transaction; return it, or put the statement behind a savepoint")
	case 'I':
		return errors.New("postgres: do: the function has ended the transaction that it was given; leave that to Do")
	}
	return nil
}

// close rolls back what has not been committed, also when fn panics, and gives
// the connection back.
func (t *pgxTx) close() {
	if t.release == nil {
		return
	}
	release := t.release
	t.release = nil
	defer release()
	conn := t.tx.Conn()
	if conn == nil || conn.IsClosed() || t.committed && conn.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanUp)
	defer cancel()
	_ = t.tx.Rollback(ctx) // a failure closes the connection, which is a rollback too
}

// sqlTx is a transaction of database/sql.
type sqlTx struct {
	b  *Backend
	db *sql.DB
	tx *sql.Tx
}

func (t *sqlTx) query(ctx context.Context, sql string, args []any, each func(func(...any) error) error) error {
	return sqlSession{t.tx}.query(ctx, sql, args, each)
}

func (t *sqlTx) look(ctx context.Context, op *operation) (locked bool, rep reply, err error) {
	if t.tx == nil {
		opts := t.b.opts.TxOptions
		for tries := 1; ; tries++ {
			t.tx, err = t.db.BeginTx(ctx, &sql.TxOptions{Isolation: isolation[opts.IsoLevel], ReadOnly: opts.AccessMode == pgx.ReadOnly})
			if err == nil {
				break
			}
			if t.tx = nil; ctx.Err() != nil || tries == 3 {
				return false, rep, &unavailable{err}
			}
		}
	}
	var recovering bool
	err = t.query(ctx, lockSQL, []any{op.lock}, func(scan func(...any) error) error { return scan(&locked, &recovering) })
	if err == nil {
		rep, err = queryReply(ctx, t, t.b.sql.get, []any{op.key})
	}
	if recovering {
		rep = reply{outcome: standby}
	}
	return locked, rep, err
}

func (t *sqlTx) write(ctx context.Context, sql string, args []any) (committed, err error) {
	if err := exec(ctx, t, sql, args...); err != nil {
		return nil, err
	}
	if err := t.tx.Commit(); err != nil {
		return t.b.failedCommit(ctx, err), nil
	}
	return nil, nil
}

func (t *sqlTx) close() {
	if t.tx != nil {
		_ = t.tx.Rollback() // does nothing after the commit
	}
}

var isolation = map[pgx.TxIsoLevel]sql.IsolationLevel{
	"":                  sql.LevelDefault,
	pgx.ReadUncommitted: sql.LevelReadUncommitted,
	pgx.ReadCommitted:   sql.LevelReadCommitted,
	pgx.RepeatableRead:  sql.LevelRepeatableRead,
	pgx.Serializable:    sql.LevelSerializable,
}
