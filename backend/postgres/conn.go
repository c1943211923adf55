package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A session runs statements on one connection, or in one transaction.
type session interface {
	// query runs a statement and calls each with the function that scans the
	// row, for every row. It scans into several destinations or one *scanTo.
	query(ctx context.Context, sql string, args []any, each func(scan func(...any) error) error) error
}

// A source has connections.
type source interface {
	// with runs fn with a connection.
	with(ctx context.Context, fn func(session) error) error

	// inTx runs fn in a transaction of its own at READ COMMITTED. It returns
	// fn's error, or that of the commit.
	inTx(ctx context.Context, fn func(session) error) error
}

// An unavailable error means that there was no connection to be had: nothing has
// been sent.
type unavailable struct{ err error }

func (e *unavailable) Error() string     { return "no connection: " + e.err.Error() }
func (e *unavailable) Unwrap() error     { return e.err }
func (e *unavailable) SafeToRetry() bool { return true }

// queryReply runs a statement that answers with one reply at most.
func queryReply(ctx context.Context, s session, sql string, args []any) (rep reply, err error) {
	err = s.query(ctx, sql, args, func(scan func(...any) error) error {
		var err error
		rep, err = scanReply(scan)
		return err
	})
	return rep, err
}

// exec runs a statement whose rows do not matter.
func exec(ctx context.Context, s session, sql string, args ...any) error {
	return s.query(ctx, sql, args, func(func(...any) error) error { return nil })
}

// pgxSession is a session of pgx: a connection or a transaction.
type pgxSession struct {
	q interface {
		Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
		SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	}
}

func (s pgxSession) query(ctx context.Context, sql string, args []any, each func(func(...any) error) error) error {
	rows, err := s.q.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// pgxSource has the connections of a pool, or the one that it was given.
type pgxSource struct {
	pool *pgxpool.Pool
	conn *pgx.Conn
	turn chan struct{} // of the single connection: whoever has put something in may use it
}

// newPgxSource returns a source on a *pgxpool.Pool or a *pgx.Conn.
func newPgxSource(db DB) (*pgxSource, error) {
	switch db := db.(type) {
	case *pgxpool.Pool:
		if db != nil {
			return &pgxSource{pool: db}, nil
		}
	case *pgx.Conn:
		if db != nil {
			return &pgxSource{conn: db, turn: make(chan struct{}, 1)}, nil
		}
	}
	return nil, fmt.Errorf("it takes a *pgxpool.Pool or a *pgx.Conn, not %T", db)
}

// acquire returns a connection; release gives it back.
func (s *pgxSource) acquire(ctx context.Context) (conn *pgx.Conn, release func(), err error) {
	if s.pool != nil {
		c, err := s.pool.Acquire(ctx)
		if err != nil {
			return nil, nil, &unavailable{err}
		}
		return c.Conn(), c.Release, nil
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, &unavailable{ctx.Err()}
	}
	if s.conn.IsClosed() {
		<-s.turn
		return nil, nil, &unavailable{errors.New("the connection is closed; use a pool, which opens another one")}
	}
	return s.conn, func() { <-s.turn }, nil
}

func (s *pgxSource) with(ctx context.Context, fn func(session) error) error {
	conn, release, err := s.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	return fn(pgxSession{conn})
}

func (s *pgxSource) inTx(ctx context.Context, fn func(session) error) error {
	conn, release, err := s.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		return fn(pgxSession{tx})
	})
}

// sqlSession is a session of database/sql: a connection or a transaction.
type sqlSession struct {
	q interface {
		QueryContext(ctx context.Context, sql string, args ...any) (*sql.Rows, error)
	}
}

func (s sqlSession) query(ctx context.Context, sql string, args []any, each func(func(...any) error) error) error {
	rows, err := s.q.QueryContext(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	scan := func(dest ...any) error {
		if to, ok := dest[0].(*scanTo); ok {
			dest = to.fields()
		}
		return rows.Scan(dest...)
	}
	for rows.Next() {
		if err := each(scan); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return rows.Close()
}

type sqlSource struct{ db *sql.DB }

func (s sqlSource) with(ctx context.Context, fn func(session) error) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return &unavailable{err}
	}
	defer func() { _ = conn.Close() }()
	return fn(sqlSession{conn})
}

func (s sqlSource) inTx(ctx context.Context, fn func(session) error) error {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return &unavailable{err} // a transaction that has not begun has done nothing
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	if err := fn(sqlSession{tx}); err != nil {
		return err
	}
	return tx.Commit()
}
