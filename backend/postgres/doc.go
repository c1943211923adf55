// Package postgres keeps records in a table of PostgreSQL, so that the claim of a
// key, the business change and the result can commit in one transaction. It works
// with pgx and with database/sql, on PostgreSQL 13 or later.
//
//	backend, err := postgres.New(pool, nil) // or NewSQL(db, nil)
//	err = backend.Migrate(ctx)              // or run the SQL of Schema
//	store, err := idem.New(backend, nil)
//
// # Everything in one transaction
//
// Where the effect is a change in the same database, use [Backend.Do] (or
// [Backend.DoSQL]). The change and its record commit together or not at all, so
// that the change is made exactly once, whatever crashes, and no lease, no
// heartbeat and no recovery is needed:
//
//	out, err := backend.Do(ctx, store, key, idem.FingerprintOf(body),
//		func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
//			_, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance - $1 WHERE id = $2`, amount, id)
//			return idem.Result{Code: 201, Body: receipt}, err
//		})
//
// All isolation levels will do; what excludes a second attempt is the unique key
// of the table. At REPEATABLE READ and SERIALIZABLE the loser of a conflict is
// rolled back and run again. Set [Options.TxOptions] where the change itself
// needs a stricter level than the default of the database.
//
// # Claim first, complete in the transaction
//
// Where the operation also calls other systems, or takes long, claim the key
// first, and let the completion commit with the business change:
//
//	claim, done, err := store.Begin(ctx, key, fp)
//	...
//	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if err := change(ctx, tx); err != nil {
//			return err
//		}
//		return store.With(backend.WithTx(tx)).Complete(ctx, claim, result)
//	})
//
// If the claim has been lost in the meantime, Complete says so with
// [idem.ErrLost], and the transaction has to roll back: no double effect although
// two attempts ran. If the commit fails without a definite answer, ask
// [idem.Store.Lookup] what became of it.
//
// # Many calls at once
//
// A call that comes alone has a connection to itself, and those that come while it is
// at work share a few: they go out together, in one round trip and one commit, and
// an error of one statement is told to its own caller only.
//
// The statements are prepared on each connection with [pgx.Conn.Prepare] and sent below
// pgx's own batches, which takes less of the processor. A connection with a Tracer, or
// of another mode than QueryExecModeCacheStatement, sends them through pgx.
//
// # Waiting
//
// A duplicate of a running operation waits without a connection. It learns of the
// end at once within a process, by notification with [Options.Listen], and by
// asking otherwise. Notifications are sent only where somebody waits.
//
// # Poolers
//
// Everything but Listen works behind a connection pooler in transaction mode,
// such as PgBouncer: the package keeps no state in a session. pgx itself caches
// prepared statements in sessions unless told otherwise; behind a pooler connect
// with default_query_exec_mode=exec or cache_describe. Listen takes a connection
// string of its own, which has to lead to the server directly.
//
// # Durability and time
//
// Calls by themselves and transactions of Do commit durably also where the
// database's default is synchronous_commit = off; in a transaction of the
// caller's that is checked. An acknowledged write is safe from a crash of the
// server, and lost in a failover to a standby that does not have it, unless
// replication is synchronous: then a key can be claimed a second time.
//
// Leases, retention and expiry are measured by the server's clock alone. Should it
// be set back, a lease ends no later than its length after somebody has looked.
// A standby is not read from, since what it has may be old.
//
// # The table
//
// There is one row for each key. Expired rows are deleted by package janitor, in
// the background of a program or from a scheduled job; without it the table grows.
// The table's fill factor leaves room for completions within their page. Plans are
// kept by the server as usual: after most rows of a large table have been deleted,
// let autovacuum analyze it.
//
// [Backend.List], and so the janitor where it recovers, goes through all rows in
// steps of 10,000.
package postgres
