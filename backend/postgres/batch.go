package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// The statements of a batch. Each does for many keys what one of the statements
// for one key does, with an array for every parameter. They go out in one
// pipeline, which PostgreSQL runs as one transaction.

// batchSQL begins the pipeline. A plan is kept for many batches, and the table
// may have been tiny when it was made: there is only one right plan, which looks
// up each key in the index. And the commit is to be durable.
const batchSQL = `SELECT {more}set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
	set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true),
	CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END`

// claimsSQL stores what is not in the way of anything, and returns what is
// stored by its token: of two claims of one key only one is.
const claimsSQL = `
INSERT INTO {table} (key, token, status, attempt, fence, fingerprint, code, meta, body, omitted, checkpoint, lease, ttl, written_at, sweep_at)
SELECT i.key, i.token, i.status::smallint, i.attempt, i.fence, i.fingerprint, i.code, i.meta, i.body, i.omitted <> 0, i.checkpoint, i.lease, i.ttl,
	clock_timestamp(), clock_timestamp() + i.soonest::float8 * interval '1 microsecond'
FROM {input} AS i
WHERE pg_try_advisory_xact_lock_shared(i.lock)
ON CONFLICT (key) DO NOTHING
RETURNING token, NULL::text`

// moreSQL is set besides where there are records to replace. For an empty table
// PostgreSQL prefers to go through its whole index, once, to looking up each key.
// It cannot with a bitmap. (It still does if statistics say that there is one row,
// until they are renewed.)
const moreSQL = `set_config('enable_indexscan', 'off', true), set_config('enable_indexonlyscan', 'off', true), `

const replacesSQL = `
UPDATE {table} AS r SET token = i.token, status = i.status::smallint, attempt = i.attempt, fence = i.fence, fingerprint = i.fingerprint,
	code = i.code, meta = i.meta, body = i.body, omitted = i.omitted <> 0, checkpoint = i.checkpoint, lease = i.lease, ttl = i.ttl,
	written_at = clock_timestamp(),
	sweep_at = CASE WHEN r.sweep_at BETWEEN clock_timestamp() + i.soonest::float8 * interval '1 microsecond' - interval '1 hour'
			AND clock_timestamp() + i.soonest::float8 * interval '1 microsecond'
		THEN r.sweep_at ELSE clock_timestamp() + i.soonest::float8 * interval '1 microsecond' END
FROM {input} AS i
WHERE r.key = i.key
	AND CASE WHEN r.token = i.old AND (r.token <> i.token OR i.live = 0) AND ({live}) = (i.live <> 0) THEN pg_try_advisory_xact_lock_shared(i.lock) ELSE false END
RETURNING r.token, {notifyMany}`

// readsSQL returns the records under keys, each with the place of its key. Under
// LATERAL every key is looked up by itself.
const readsSQL = `
SELECT i.n, 1::smallint, {columns}
FROM unnest($1::text[]) WITH ORDINALITY AS i(key, n)
CROSS JOIN LATERAL (SELECT t.* FROM {table} AS t WHERE t.key = i.key OFFSET 0) AS r
UNION ALL
SELECT 0::bigint, 4::smallint, {none} WHERE pg_is_in_recovery()`

// inputSQL has a row for every operation, of the parameters $1 to $8. PostgreSQL
// makes a table of each array that it unnests, and reaches into one of numbers at
// no cost: so all numbers are in one array, ten for each operation.
const inputSQL = `(
	SELECT a.*, ($8::bigint[])[10 * n - 9] AS lock, ($8::bigint[])[10 * n - 8] AS status, ($8::bigint[])[10 * n - 7] AS attempt,
		($8::bigint[])[10 * n - 6] AS fence, ($8::bigint[])[10 * n - 5] AS code, ($8::bigint[])[10 * n - 4] AS omitted, ($8::bigint[])[10 * n - 3] AS lease,
		($8::bigint[])[10 * n - 2] AS ttl, ($8::bigint[])[10 * n - 1] AS soonest, ($8::bigint[])[10 * n] AS live
	FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::bytea[], $6::bytea[], $7::bytea[]) WITH ORDINALITY
		AS a(key, token, old, fingerprint, meta, body, checkpoint, n))`

// inputOf returns the parameters of inputSQL.
func inputOf(calls []*call) []any {
	return []any{
		column[string]{calls, func(op *operation) string { return op.key }},
		column[string]{calls, func(op *operation) string { return op.new.Token }},
		column[string]{calls, func(op *operation) string { return op.old }},
		column[[]byte]{calls, func(op *operation) []byte { return op.new.Fingerprint[:] }},
		column[[]byte]{calls, func(op *operation) []byte { return op.meta }},
		column[[]byte]{calls, func(op *operation) []byte { return op.new.Result.Body }},
		column[[]byte]{calls, func(op *operation) []byte { return op.new.Checkpoint }},
		numbers(calls),
	}
}

// numbersOf returns the ten numbers of an operation.
func numbersOf(op *operation) [10]int64 {
	r := op.new
	return [10]int64{
		op.lock, int64(r.Status), int64(r.Attempt), r.Fence, int64(r.Result.Code), oneIf(r.Result.Omitted),
		int64(r.Lease), int64(r.TTL), soonest(r), oneIf(op.live),
	}
}

func oneIf(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// together runs the operations of calls in one pipeline. When it returns nil they
// are committed and have their replies. A write that has not taken place, because
// something is in its way or because of another call of the same key, is told just
// that, and its caller looks what there is.
func (b *Backend) together(ctx context.Context, calls []*call) error {
	inOrder(calls)
	var of [replace + 1][]*call // by their kind
	for rest := calls; len(rest) > 0; {
		kind, n := rest[0].op.kind, 1
		for n < len(rest) && rest[n].op.kind == kind {
			n++
		}
		of[kind], rest = rest[:n], rest[n:]
	}
	var batch pgx.Batch
	begin := b.sql.batch
	if of[replace] != nil {
		begin = b.sql.batchReplaces
	}
	batch.Queue(begin)
	if of[claim] != nil {
		batch.Queue(b.sql.claims, inputOf(of[claim])...)
	}
	if of[replace] != nil {
		batch.Queue(b.sql.replaces, inputOf(of[replace])...)
	}
	if of[get] != nil {
		batch.Queue(b.sql.reads, column[string]{of[get], func(op *operation) string { return op.key }})
	}
	conn, release, err := b.pgx.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	results := send(ctx, conn, &batch)
	err = eachRow(results, func(func(...any) error) error { return nil })
	for _, kind := range []kind{claim, replace} {
		if err == nil && of[kind] != nil {
			err = readWritten(results, of[kind])
		}
	}
	if err == nil && of[get] != nil {
		err = readRead(results, of[get])
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr // that of the commit
	}
	return err
}

// inOrder puts calls into the order in which every batch has them, so that no two
// batches wait for each other, and takes back what a try before has answered.
func inOrder(calls []*call) {
	slices.SortStableFunc(calls, func(x, y *call) int {
		return cmp.Or(cmp.Compare(x.op.kind, y.op.kind), cmp.Compare(x.op.lock, y.op.lock))
	})
	for _, c := range calls {
		c.reply, c.err = reply{}, nil
	}
}

// few runs the operations of calls in one pipeline of their own statements, as
// together does. For so few that takes the server less.
func (b *Backend) few(ctx context.Context, calls []*call) error {
	inOrder(calls)
	var batch pgx.Batch
	var readers []*call
	for _, c := range calls {
		switch c.op.kind {
		case get:
			readers = append(readers, c)
			batch.Queue(b.sql.get, c.op.args()...)
		case claim:
			batch.Queue(b.sql.claim.piece, c.op.args()...)
		case replace:
			batch.Queue(b.sql.replace.piece, c.op.args()...)
		}
	}
	if readers != nil {
		batch.Queue(standbySQL)
	}
	conn, release, err := b.pgx.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	results := send(ctx, conn, &batch)
	for _, c := range calls {
		if err == nil {
			err = c.readOne(results)
		}
	}
	if err == nil && readers != nil {
		var rep reply
		rep, err = readReply(results)
		for _, c := range readers {
			if c.reply.outcome == nothing {
				c.reply = rep // a record tells by itself
			}
		}
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr // that of the commit
	}
	return err
}

// readOne reads what the call's own statement returns.
func (c *call) readOne(results results) (err error) {
	if c.op.kind != get {
		c.reply, err = readWrite(results)
		return err
	}
	return eachRow(results, func(scan func(...any) error) error {
		c.reply, c.err = scanReply(scan)
		return nil
	})
}

// readWritten reads the tokens of the records that a statement has stored. They come
// in the order of the calls, as a rule.
func readWritten(results results, calls []*call) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for _, c := range calls {
		c.reply.outcome = unwritten
	}
	next := 0
	for rows.Next() {
		token := rows.RawValues()[0] // as it is, in text and in binary format
		stores := func(c *call) bool { return c.reply.outcome == unwritten && c.op.new.Token == string(token) }
		i := slices.IndexFunc(calls[next:], stores)
		if i < 0 {
			i, next = slices.IndexFunc(calls, stores), 0
		}
		if i < 0 {
			return fmt.Errorf("the server has stored a token that it was not sent: %q", token)
		}
		next += i
		calls[next].reply.outcome = stored
	}
	return rows.Err()
}

// readRead reads what was looked up for the readers.
func readRead(results results, readers []*call) error {
	var n int64
	return eachRow(results, func(scan func(...any) error) error {
		rep, damage := scanReply(scan, &n) // damage is one reader's alone
		if n == 0 {
			for _, c := range readers {
				c.reply.outcome = standby
			}
			return nil
		}
		readers[n-1].reply, readers[n-1].err = rep, damage
		return nil
	})
}
