package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
)

// Everything in one transaction: the charge and its record commit together. The
// second request, a retry, gets the first one's answer.
func ExampleBackend_Do() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	backend, err := postgres.New(pool, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := backend.Migrate(ctx); err != nil {
		log.Fatal(err)
	}
	store, err := idem.New(backend, nil)
	if err != nil {
		log.Fatal(err)
	}

	request := []byte(`{"account": 1, "amount": 30}`)
	charge := func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
		var balance int
		err := tx.QueryRow(ctx, `UPDATE accounts SET balance = balance - 30 WHERE id = 1 AND balance >= 30 RETURNING balance`).Scan(&balance)
		if err == pgx.ErrNoRows {
			return idem.Result{Code: 402, Body: []byte("not enough money")}, nil // a duplicate gets the refusal too
		}
		return idem.Result{Code: 201, Body: fmt.Appendf(nil, "the balance is %d", balance)}, err
	}
	for range 2 {
		out, err := backend.Do(ctx, store, "charge-4711", idem.FingerprintOf(request), charge)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d %s, replayed: %v\n", out.Result.Code, out.Result.Body, out.Replayed)
	}
	// 201 the balance is 70, replayed: false
	// 201 the balance is 70, replayed: true
}

// A change that reads what it decides on needs SERIALIZABLE. A transaction that
// loses a conflict is rolled back and run again, together with its claim.
func ExampleBackend_Do_serializable() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	backend, err := postgres.New(pool, &postgres.Options{TxOptions: pgx.TxOptions{IsoLevel: pgx.Serializable}})
	if err != nil {
		log.Fatal(err)
	}
	store, err := idem.New(backend, nil)
	if err != nil {
		log.Fatal(err)
	}

	out, err := backend.Do(ctx, store, "withdraw-12", idem.FingerprintOf([]byte("50 from account 2")),
		func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
			// Together the accounts of the family may not fall below zero.
			var sum int
			if err := tx.QueryRow(ctx, `SELECT sum(balance) FROM accounts`).Scan(&sum); err != nil {
				return idem.Result{}, err
			}
			if sum < 50 {
				return idem.Result{Code: 402}, nil
			}
			_, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance - 50 WHERE id = 2`)
			return idem.Result{Code: 201}, err
		})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(out.Result.Code)
	// 201
}

// Claim first, complete in the business transaction: for operations that take
// long or call other systems on their way.
func ExampleBackend_WithTx() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	backend, err := postgres.New(pool, nil)
	if err != nil {
		log.Fatal(err)
	}
	store, err := idem.New(backend, nil)
	if err != nil {
		log.Fatal(err)
	}

	claim, done, err := store.Begin(ctx, "refund-4711", idem.FingerprintOf([]byte("30 to account 1")))
	switch {
	case err != nil:
		log.Fatal(err) // in progress elsewhere, another payload, or no storage: nothing may run
	case done != nil:
		fmt.Println("replayed", done.Result.Code)
		return
	}
	// ... call the other system here, with claim.ChildKey("refund") ...
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance + 30 WHERE id = 1`); err != nil {
			return err
		}
		return store.With(backend.WithTx(tx)).Complete(ctx, claim, idem.Result{Code: 201})
	})
	if err != nil {
		log.Fatal(err)
	}
	record, err := store.Lookup(ctx, "refund-4711")
	fmt.Println(record.Status, err)
	// completed <nil>
}

// The same as Do with database/sql.
func ExampleBackend_DoSQL() {
	ctx := context.Background()
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	backend, err := postgres.NewSQL(db, nil)
	if err != nil {
		log.Fatal(err)
	}
	store, err := idem.New(backend, nil)
	if err != nil {
		log.Fatal(err)
	}

	for range 2 {
		out, err := backend.DoSQL(ctx, store, "deposit-1", idem.FingerprintOf([]byte("5 to account 1")),
			func(ctx context.Context, tx *sql.Tx, c *idem.Claim) (idem.Result, error) {
				_, err := tx.ExecContext(ctx, `UPDATE accounts SET balance = balance + 5 WHERE id = 1`)
				return idem.Result{Code: 201}, err
			})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(out.Result.Code, out.Replayed)
	}
	// 201 false
	// 201 true
}
