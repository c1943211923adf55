package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/backend/postgres"
)

// postgresBooks has the orders in the database in which idem's records are. Any
// number of shops can use it at the same time.
type postgresBooks struct {
	pool *pgxpool.Pool
	b    *postgres.Backend
}

const schema = `
CREATE TABLE IF NOT EXISTS shop_customers (name text PRIMARY KEY, orders bigint NOT NULL);
CREATE TABLE IF NOT EXISTS shop_orders (
	customer text NOT NULL REFERENCES shop_customers, number bigint NOT NULL,
	item text NOT NULL, amount int NOT NULL, cents bigint NOT NULL, key text NOT NULL, at timestamptz NOT NULL,
	PRIMARY KEY (customer, number))`

func openPostgres(ctx context.Context, url string) (books, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	s := &postgresBooks{pool: pool}
	if err := s.prepare(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return s, nil
}

func (s *postgresBooks) prepare(ctx context.Context) (err error) {
	if s.b, err = postgres.New(s.pool, nil); err != nil {
		return err
	}
	if err := s.b.Migrate(ctx); err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, schema); err != nil {
		return fmt.Errorf("create the tables of the shop: %w", err)
	}
	return nil
}

func (s *postgresBooks) backend() storage { return s.b }

func (s *postgresBooks) close() error {
	s.pool.Close()
	return nil
}

func (s *postgresBooks) book(ctx context.Context, o order, complete completion) error {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return notBooked(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // does nothing after a commit
	if o.Number, err = insert(ctx, tx, o); err != nil {
		return notBooked(err)
	}
	if err := complete(s.b.WithTx(tx), o); err != nil {
		return notBooked(err)
	}
	return tx.Commit(ctx)
}

// insert writes an order, and returns the number that it gets.
func insert(ctx context.Context, tx pgx.Tx, o order) (number int64, err error) {
	err = tx.QueryRow(ctx, `INSERT INTO shop_customers AS c (name, orders) VALUES ($1, 1)
		ON CONFLICT (name) DO UPDATE SET orders = c.orders + 1 RETURNING orders`, o.Customer).Scan(&number)
	if err != nil {
		return 0, err
	}
	_, err = tx.Exec(ctx, `INSERT INTO shop_orders (customer, number, item, amount, cents, key, at) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		o.Customer, number, o.Item, o.Amount, o.Cents, o.Key, o.At)
	return number, err
}

func (s *postgresBooks) summary(ctx context.Context, customer string) (sum summary, err error) {
	// It counts what is there, instead of trusting a counter.
	err = s.pool.QueryRow(ctx, `SELECT count(*), coalesce(sum(cents), 0)::bigint FROM shop_orders WHERE customer = $1`, customer).Scan(&sum.Orders, &sum.Cents)
	if err != nil {
		return sum, err
	}
	rows, err := s.pool.Query(ctx, `SELECT customer, number, item, amount, cents, key, at FROM shop_orders
		WHERE customer = $1 ORDER BY number DESC LIMIT $2`, customer, lastOrders)
	if err != nil {
		return sum, err
	}
	sum.Last, err = pgx.CollectRows(rows, pgx.RowToStructByPos[order])
	return sum, err
}
