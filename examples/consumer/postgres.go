package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
)

// A postgresLedger is in a PostgreSQL, and several processes may use it.
type postgresLedger struct {
	pool    *pgxpool.Pool
	records *postgres.Backend
}

func openPostgres(ctx context.Context, url string) (*postgresLedger, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	records, err := postgres.New(pool, nil)
	if err == nil {
		err = records.Migrate(ctx)
	}
	if err == nil {
		// No constraint keeps an order from being booked twice: it would hide what
		// this example is about.
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(4711)`); err != nil { // consumers start together
				return err
			}
			_, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS entries (number bigserial PRIMARY KEY, order_id text NOT NULL, entry text NOT NULL)`)
			return err
		})
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &postgresLedger{pool, records}, nil
}

func (l *postgresLedger) backend() idem.Backend { return l.records }

func (l *postgresLedger) close() error {
	l.pool.Close()
	return nil
}

func (l *postgresLedger) book(ctx context.Context, o order, complete completion) (r idem.Result, err error) {
	err = pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		var number uint64
		if err := tx.QueryRow(ctx, `INSERT INTO entries (order_id, entry) VALUES ($1, $2) RETURNING number`, o.ID, entry(o)).Scan(&number); err != nil {
			return err
		}
		r = receipt(number)
		return complete(l.records.WithTx(tx), r)
	})
	return r, err
}

func (l *postgresLedger) entries(ctx context.Context) (map[string]int, error) {
	rows, err := l.pool.Query(ctx, `SELECT order_id, count(*) FROM entries GROUP BY order_id`)
	if err != nil {
		return nil, err
	}
	count, id, n := map[string]int{}, "", 0
	_, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error {
		count[id] = n
		return nil
	})
	return count, err
}
