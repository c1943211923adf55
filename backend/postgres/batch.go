package postgres

import (
	"cmp"
	"context"
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

// An input collects the parameters of operations that write.
type input struct {
	keys, tokens, olds                       array[text]
	fingerprints, metas, bodies, checkpoints array[octets]
	numbers                                  array[number]
}

// grow makes room for n operations.
func (in *input) grow(n int) {
	for _, a := range []*array[text]{&in.keys, &in.tokens, &in.olds} {
		*a = make(array[text], 0, n)
	}
	for _, a := range []*array[octets]{&in.fingerprints, &in.metas, &in.bodies, &in.checkpoints} {
		*a = make(array[octets], 0, n)
	}
	in.numbers = make(array[number], 0, 10*n)
}

func (in *input) add(op *operation) {
	r := op.new
	in.keys = append(in.keys, text(op.key))
	in.tokens = append(in.tokens, text(r.Token))
	in.olds = append(in.olds, text(op.old))
	in.fingerprints = append(in.fingerprints, r.Fingerprint[:])
	in.metas = append(in.metas, op.meta)
	in.bodies = append(in.bodies, r.Result.Body)
	in.checkpoints = append(in.checkpoints, r.Checkpoint)
	in.numbers = append(in.numbers, number(op.lock), number(r.Status), number(r.Attempt), number(r.Fence), number(r.Result.Code), oneIf(r.Result.Omitted),
		number(r.Lease), number(r.TTL), number(soonest(r)), oneIf(op.live))
}

func oneIf(b bool) number {
	if b {
		return 1
	}
	return 0
}

func (in *input) args() []any {
	return []any{in.keys, in.tokens, in.olds, in.fingerprints, in.metas, in.bodies, in.checkpoints, in.numbers}
}

// together runs the operations of calls in one pipeline. When it returns nil they
// are committed and have their replies. A write that has not taken place, because
// something is in its way or because of another call of the same key, is told just
// that, and its caller looks what there is.
func (b *Backend) together(ctx context.Context, calls []*call) error {
	// In the order of the keys, so that no two batches wait for each other.
	slices.SortStableFunc(calls, func(x, y *call) int { return cmp.Compare(x.op.lock, y.op.lock) })
	var claims, replaces input
	var keys []string
	var readers []*call
	writers := make(map[string]*call, len(calls))
	var count [replace + 1]int
	for _, c := range calls {
		count[c.op.kind]++
	}
	claims.grow(count[claim])
	replaces.grow(count[replace])
	for _, c := range calls {
		c.reply, c.err = reply{}, nil
		switch op := c.op; op.kind {
		case get:
			keys, readers = append(keys, op.key), append(readers, c)
			continue
		case claim:
			claims.add(op)
		case replace:
			replaces.add(op)
		}
		c.reply.outcome = unwritten
		if token := c.op.new.Token; writers[token] == nil {
			writers[token] = c
		}
	}

	var batch pgx.Batch
	begin := b.sql.batch
	if len(replaces.keys) > 0 {
		begin = b.sql.batchReplaces
	}
	batch.Queue(begin)
	if len(claims.keys) > 0 {
		batch.Queue(b.sql.claims, claims.args()...)
	}
	if len(replaces.keys) > 0 {
		batch.Queue(b.sql.replaces, replaces.args()...)
	}
	if keys != nil {
		batch.Queue(b.sql.reads, keys)
	}
	conn, release, err := b.pgx.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	results := conn.SendBatch(ctx, &batch)
	_, err = results.Exec()
	for _, in := range []*input{&claims, &replaces} {
		if err == nil && len(in.keys) > 0 {
			err = readWritten(results, writers)
		}
	}
	if err == nil && readers != nil {
		err = readRead(results, readers)
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr // that of the commit
	}
	return err
}

// few runs the operations of calls in one pipeline of their own statements, as
// together does. For so few that takes the server less.
func (b *Backend) few(ctx context.Context, calls []*call) error {
	slices.SortStableFunc(calls, func(x, y *call) int {
		return cmp.Or(cmp.Compare(x.op.kind, y.op.kind), cmp.Compare(x.op.lock, y.op.lock)) // as in together
	})
	var batch pgx.Batch
	var readers []*call
	for _, c := range calls {
		c.reply, c.err = reply{}, nil
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
	results := conn.SendBatch(ctx, &batch)
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

func (c *call) readOne(results pgx.BatchResults) error {
	if c.op.kind == get {
		rows, err := results.Query()
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			c.reply, c.err = scanReply(rows.Scan)
		}
		return rows.Err()
	}
	var err error
	c.reply, err = readWrite(results.QueryRow())
	return err
}

// readWritten reads the tokens of the records that a statement has stored.
func readWritten(results pgx.BatchResults, writers map[string]*call) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		// The token, as it is in text and in binary format; to scan it copies it.
		writers[string(rows.RawValues()[0])].reply.outcome = stored
	}
	return rows.Err()
}

// readRead reads what was looked up for the readers.
func readRead(results pgx.BatchResults, readers []*call) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var n int64
		rep, damage := scanReply(rows.Scan, &n) // damage is one reader's alone
		if n == 0 {
			for _, c := range readers {
				c.reply.outcome = standby
			}
			continue
		}
		readers[n-1].reply, readers[n-1].err = rep, damage
	}
	return rows.Err()
}
