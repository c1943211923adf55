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
// may have been tiny when it was made: there is only one right plan, by the index
// on key. And the commit is to be durable.
const batchSQL = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
	set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true),
	CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END`

// claimsSQL stores what is not in the way of anything, and returns what is
// stored by its token: of two claims of one key only one is.
const claimsSQL = `
INSERT INTO {table} (key, token, status, attempt, fence, fingerprint, code, meta, body, omitted, checkpoint, lease, ttl, written_at, sweep_at)
SELECT i.key, i.token, i.status::smallint, i.attempt, i.fence, i.fingerprint, i.code, i.meta, i.body, i.omitted, i.checkpoint, i.lease, i.ttl,
	clock_timestamp(), clock_timestamp() + i.soonest::float8 * interval '1 microsecond'
FROM {input}) AS i({names})
WHERE pg_try_advisory_xact_lock_shared(i.lock)
ON CONFLICT (key) DO NOTHING
RETURNING token, NULL::text`

const replacesSQL = `
UPDATE {table} AS r SET token = i.token, status = i.status::smallint, attempt = i.attempt, fence = i.fence, fingerprint = i.fingerprint,
	code = i.code, meta = i.meta, body = i.body, omitted = i.omitted, checkpoint = i.checkpoint, lease = i.lease, ttl = i.ttl,
	written_at = clock_timestamp(),
	sweep_at = CASE WHEN r.sweep_at BETWEEN clock_timestamp() + i.soonest::float8 * interval '1 microsecond' - interval '1 hour'
			AND clock_timestamp() + i.soonest::float8 * interval '1 microsecond'
		THEN r.sweep_at ELSE clock_timestamp() + i.soonest::float8 * interval '1 microsecond' END
FROM {input}, $16::text[], $17::boolean[]) AS i({names}, old, live)
WHERE r.key = i.key
	AND CASE WHEN r.token = i.old AND (r.token <> i.token OR NOT i.live) AND ({live}) = i.live THEN pg_try_advisory_xact_lock_shared(i.lock) ELSE false END
RETURNING r.token, {notifyMany}`

// readsSQL returns the records under keys, each with the place of its key. Under
// LATERAL every key is looked up by itself.
const readsSQL = `
SELECT i.n, 1::smallint, {columns}
FROM unnest($1::text[]) WITH ORDINALITY AS i(key, n)
CROSS JOIN LATERAL (SELECT t.* FROM {table} AS t WHERE t.key = i.key OFFSET 0) AS r
UNION ALL
SELECT 0::bigint, 4::smallint, {none} WHERE pg_is_in_recovery()`

// inputSQL and inputNames are the parameters of what is written, $1 to $15, and
// what they are called.
const (
	inputSQL = `unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[], $8::bigint[], $9::bytea[], $10::bytea[], $11::boolean[], $12::bytea[], $13::bigint[], $14::bigint[], $15::bigint[]`

	inputNames = `key, lock, token, status, attempt, fence, fingerprint, code, meta, body, omitted, checkpoint, lease, ttl, soonest`
)

// An input collects the parameters of operations that write.
type input struct {
	keys, tokens, olds                       []string
	locks, statuses, attempts, fences, codes []int64
	fingerprints, metas, bodies, checkpoints [][]byte
	omitted, lives                           []bool
	leases, ttls, soonest                    []int64
}

func (in *input) add(op *operation) {
	r := op.new
	in.keys = append(in.keys, op.key)
	in.locks = append(in.locks, op.lock)
	in.tokens = append(in.tokens, r.Token)
	in.statuses = append(in.statuses, int64(r.Status))
	in.attempts = append(in.attempts, int64(r.Attempt))
	in.fences = append(in.fences, r.Fence)
	in.fingerprints = append(in.fingerprints, r.Fingerprint[:])
	in.codes = append(in.codes, int64(r.Result.Code))
	in.metas = append(in.metas, op.meta)
	in.bodies = append(in.bodies, orEmpty(r.Result.Body))
	in.omitted = append(in.omitted, r.Result.Omitted)
	in.checkpoints = append(in.checkpoints, orEmpty(r.Checkpoint))
	in.leases = append(in.leases, int64(r.Lease))
	in.ttls = append(in.ttls, int64(r.TTL))
	in.soonest = append(in.soonest, soonest(*r))
	if op.kind == replace {
		in.olds = append(in.olds, op.old)
		in.lives = append(in.lives, op.live)
	}
}

func (in *input) args() []any {
	args := []any{
		in.keys, in.locks, in.tokens, in.statuses, in.attempts, in.fences, in.fingerprints, in.codes, in.metas, in.bodies,
		in.omitted, in.checkpoints, in.leases, in.ttls, in.soonest,
	}
	if in.olds != nil {
		args = append(args, in.olds, in.lives)
	}
	return args
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
	for _, c := range calls {
		c.reply, c.err = reply{}, nil
		switch op := &c.op; op.kind {
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
	batch.Queue(b.sql.batch)
	if claims.keys != nil {
		batch.Queue(b.sql.claims, claims.args()...)
	}
	if replaces.keys != nil {
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
		if err == nil && in.keys != nil {
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
	slices.SortStableFunc(calls, func(x, y *call) int { return cmp.Compare(x.op.lock, y.op.lock) })
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
		var token string
		var notified *string
		if err := rows.Scan(&token, &notified); err != nil {
			return err
		}
		writers[token].reply.outcome = stored
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
