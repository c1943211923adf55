package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/idem-go/idem"
	"github.com/jackc/pgx/v5"
)

// Do runs fn once for the key, in a transaction in which the claim, what fn does
// through tx, and the result commit together. It returns the result to every
// caller with that key, for the retention of the store. The transaction takes
// three round trips beside fn's own.
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
func (b *Backend) Do(ctx context.Context, store *idem.Store, key string, fp idem.Fingerprint,
	fn func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error),
) (idem.Outcome, error) {
	if b.pgx == nil {
		return idem.Outcome{}, fmt.Errorf("postgres: do: %w: the Backend was made by NewSQL; use DoSQL", idem.ErrOptions)
	}
	careful := false
	return store.DoTx(ctx, key, fp, func(ctx context.Context, body idem.TxBody) error {
		t := &ownTx{b: b, careful: careful}
		defer t.close()
		err := body(ctx, newOwn(b, t.ask, t), func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
			r, err := fn(ctx, t.tx, c)
			if err == nil {
				err = t.usable()
			}
			t.ran = true
			return r, mayRunAgain(err)
		})
		careful = careful || t.interfered
		return t.end(ctx, err)
	})
}

// mayRunAgain gives the conflicts that fn has met, and returns, their class.
func mayRunAgain(err error) error {
	if err != nil && conflict(err) && !errors.Is(err, idem.ErrRetryTx) {
		return fmt.Errorf("%w: %w", idem.ErrRetryTx, err)
	}
	return err
}

// newOwn returns a Backend in a transaction of Do's.
func newOwn(b *Backend, ask func(context.Context, writes, []any) (reply, error), s session) *bound {
	return &bound{b: b, s: s, ask: ask}
}

// An ownTx is one transaction of Do. It begins together with the claim, in one
// round trip, and commits together with the completion, in another.
type ownTx struct {
	b       *Backend
	careful bool // completion and COMMIT are sent one after the other

	tx      pgx.Tx
	release func()

	ran        bool // fn has returned without an error
	interfered bool // the record is not as the claim left it: fn has written to it
	committed  bool // COMMIT has been sent
	commitErr  error
}

// cleanUp bounds what is done for a caller who may be gone.
const cleanUp = 2 * time.Second

func (t *ownTx) query(ctx context.Context, sql string, args []any, each func(func(...any) error) error) error {
	return pgxSession{t.tx}.query(ctx, sql, args, each)
}

func (t *ownTx) ask(ctx context.Context, w writes, args []any) (reply, error) {
	switch {
	case t.tx == nil:
		return t.begin(ctx, w.own, args)
	case t.ran && !t.careful && w.final != "":
		return t.commit(ctx, w.final, args)
	}
	return queryReply(ctx, t, w.own, args)
}

// begin begins the transaction and runs its first statement.
func (t *ownTx) begin(ctx context.Context, sql string, args []any) (reply, error) {
	conn, release, err := t.b.pgx.acquire(ctx)
	if err != nil {
		return reply{}, err
	}
	t.release = release
	var batch pgx.Batch
	batch.BeginTx(t.b.opts.TxOptions)
	batch.Queue(sql, args...)
	results := conn.SendBatch(ctx, &batch)
	t.tx = results.Tx()
	if _, err = results.Exec(); err != nil {
		results.Close()
		return reply{}, err
	}
	rep, err := readReply(results)
	if err != nil {
		results.Close()
		return reply{}, err
	}
	return rep, results.Close()
}

// commit runs the last statement of the transaction and commits it.
func (t *ownTx) commit(ctx context.Context, sql string, args []any) (reply, error) {
	var batch pgx.Batch
	batch.Queue(sql, args...)
	commit := "commit"
	if q := t.b.opts.TxOptions.CommitQuery; q != "" {
		commit = q
	}
	batch.Queue(commit)
	results := t.tx.SendBatch(ctx, &batch)
	_, err := readReply(results)
	switch {
	case sqlState(err) == divisionByZero:
		results.Close()
		t.interfered = true
		return reply{}, fmt.Errorf("%w: the record was written to by the function itself", idem.ErrRetryTx)
	case err != nil && (refused(err) || unsent(err)):
		results.Close()
		return reply{}, err
	case err == nil:
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
		t.commitErr = t.b.failedCommit(ctx, err)
	}
	// As far as this statement goes it is stored; what became of the commit is
	// told by end.
	return reply{outcome: stored}, nil
}

// readReply reads the reply of the next statement of a batch.
func readReply(results pgx.BatchResults) (rep reply, err error) {
	rows, err := results.Query()
	if err != nil {
		return rep, err
	}
	defer rows.Close()
	for rows.Next() {
		if rep, err = scanReply(rows.Scan); err != nil {
			return rep, err
		}
	}
	return rep, rows.Err()
}

// usable reports what fn has made of the transaction.
func (t *ownTx) usable() error {
	switch t.tx.Conn().PgConn().TxStatus() {
	case 'E':
		return errors.New("postgres: do: the function ignored an error of one of its statements, which has aborted the transaction; return it, or put the statement behind a savepoint")
	case 'I':
		return errors.New("postgres: do: the function has ended the transaction that it was given; leave that to Do")
	}
	return nil
}

// end ends the transaction as body has ended.
func (t *ownTx) end(ctx context.Context, err error) error {
	switch {
	case t.committed:
		if err == nil {
			err = t.commitErr
		}
		return err
	case err != nil || !t.ran || t.tx == nil:
		return err // close rolls back
	}
	t.committed = true
	if err := t.tx.Commit(ctx); err != nil {
		return t.b.failedCommit(ctx, err)
	}
	return nil
}

// close rolls back what has not been committed, also when fn panics, and gives
// the connection back.
func (t *ownTx) close() {
	if t.release == nil {
		return
	}
	defer t.release()
	if t.tx == nil {
		return
	}
	conn := t.tx.Conn()
	if !t.committed && !conn.IsClosed() || t.committed && conn.PgConn().TxStatus() != 'I' {
		ctx, cancel := context.WithTimeout(context.Background(), cleanUp)
		defer cancel()
		_ = t.tx.Rollback(ctx) // a failure closes the connection, which is a rollback too
	}
}

// DoSQL is Do for database/sql. Of Options.TxOptions it uses the isolation and
// the access mode.
func (b *Backend) DoSQL(ctx context.Context, store *idem.Store, key string, fp idem.Fingerprint,
	fn func(ctx context.Context, tx *sql.Tx, c *idem.Claim) (idem.Result, error),
) (idem.Outcome, error) {
	src, ok := b.src.(sqlSource)
	if !ok {
		return idem.Outcome{}, fmt.Errorf("postgres: do: %w: the Backend was made by New; use Do", idem.ErrOptions)
	}
	opts := &sql.TxOptions{Isolation: isolation[b.opts.TxOptions.IsoLevel], ReadOnly: b.opts.TxOptions.AccessMode == pgx.ReadOnly}
	return store.DoTx(ctx, key, fp, func(ctx context.Context, body idem.TxBody) error {
		tx, err := src.db.BeginTx(ctx, opts)
		if err != nil {
			return b.failed(ctx, "begin", &unavailable{err})
		}
		defer tx.Rollback()
		s := sqlSession{tx}
		ran := false
		ask := func(ctx context.Context, w writes, args []any) (reply, error) { return queryReply(ctx, s, w.own, args) }
		err = body(ctx, newOwn(b, ask, s), func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
			r, err := fn(ctx, tx, c)
			ran = true
			return r, mayRunAgain(err)
		})
		if err != nil || !ran {
			return err
		}
		if err := tx.Commit(); err != nil {
			return b.failedCommit(ctx, err)
		}
		return nil
	})
}

var isolation = map[pgx.TxIsoLevel]sql.IsolationLevel{
	"":                  sql.LevelDefault,
	pgx.ReadUncommitted: sql.LevelReadUncommitted,
	pgx.ReadCommitted:   sql.LevelReadCommitted,
	pgx.RepeatableRead:  sql.LevelRepeatableRead,
	pgx.Serializable:    sql.LevelSerializable,
}
