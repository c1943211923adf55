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
WHERE r.key = i.key AND r.token = i.old AND (r.token <> i.token OR NOT i.live) AND ({live}) = i.live AND pg_try_advisory_xact_lock_shared(i.lock)
RETURNING r.token, {notifyMany}`

// readsSQL returns the records under keys, each with the place of its key, except
// for those that have been stored just now. Under LATERAL every key is looked up
// by itself.
const readsSQL = `
SELECT i.n, 1::smallint, {columns}
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS i(key, own, n)
CROSS JOIN LATERAL (SELECT t.* FROM {table} AS t WHERE t.key = i.key
	AND (t.token <> i.own OR t.xmin IS DISTINCT FROM pg_current_xact_id_if_assigned()::xid) OFFSET 0) AS r
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
	r := &op.new
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
// are committed and have their replies. A call that finds nothing, because a
// rival was quicker or because of another call of the same key, asks again by
// itself.
func (b *Backend) together(ctx context.Context, calls []*call) error {
	// In the order of the keys, so that no two batches wait for each other.
	slices.SortStableFunc(calls, func(x, y *call) int { return cmp.Compare(x.op.lock, y.op.lock) })
	var claims, replaces input
	var keys, own []string
	var readers []*call
	writers := make(map[string]*call, len(calls))
	for _, c := range calls {
		c.reply, c.err = reply{}, nil
		switch op := &c.op; op.kind {
		case claim:
			claims.add(op)
		case replace:
			replaces.add(op)
		}
		token := ""
		if c.op.kind != get {
			token = c.op.new.Token
			if writers[token] == nil {
				writers[token] = c
			}
		}
		if c.op.kind != replace {
			keys, own = append(keys, c.op.key), append(own, token)
			readers = append(readers, c)
		}
	}

	var batch pgx.Batch
	batch.Queue(b.sql.batch)
	for _, write := range []struct {
		in  *input
		sql string
	}{{&claims, b.sql.claims}, {&replaces, b.sql.replaces}} {
		if write.in.keys != nil {
			batch.Queue(write.sql, write.in.args()...)
		}
	}
	if keys != nil {
		batch.Queue(b.sql.reads, keys, own)
	}

	conn, release, err := b.pgx.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	results := conn.SendBatch(ctx, &batch)
	err = readBatch(results, &claims, &replaces, writers, readers)
	if closeErr := results.Close(); err == nil {
		err = closeErr // that of the commit
	}
	return err
}

// readBatch reads the results of a batch's statements.
func readBatch(results pgx.BatchResults, claims, replaces *input, writers map[string]*call, readers []*call) error {
	if _, err := results.Exec(); err != nil {
		return err
	}
	for _, in := range []*input{claims, replaces} {
		if in.keys == nil {
			continue
		}
		rows, err := results.Query()
		if err != nil {
			return err
		}
		for rows.Next() {
			var token string
			var notified *string
			if err := rows.Scan(&token, &notified); err != nil {
				rows.Close()
				return err
			}
			writers[token].reply.outcome = stored
		}
		if err := rows.Err(); err != nil {
			return err
		}
	}
	if readers == nil {
		return nil
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	for rows.Next() {
		var n int64
		rep, damage := scanReply(rows.Scan, &n)
		if n == 0 {
			for _, c := range readers {
				c.reply.outcome = standby
			}
			continue
		}
		if c := readers[n-1]; c.reply.outcome != stored {
			c.reply, c.err = rep, damage
		}
	}
	return rows.Err()
}
