package postgres

import (
	"context"
	"strings"
	"time"
)

// Stats tell an operator about the server and the table. What this role may not see
// is 0, or in Hidden.
type Stats struct {
	Server  string // version
	Standby bool
	Table   bool // there is a table of the name; if not, the fields from here on are zero
	Hidden  []string

	Size       int64         // of the table, its indexes and its large values, in bytes
	Live, Dead int64         // rows, as the server estimates them; dead ones wait for vacuum
	Vacuumed   time.Duration // since the last vacuum; negative if there was none
	Autovacuum bool
	Overdue    int64         // rows that are expired and not swept, up to 10,000
	OverdueFor time.Duration // by how much the first of them is

	Fsync, FullPageWrites bool
	SynchronousCommit     string
	InvalidIndexes        []string
	MissingRights         []string // of SELECT, INSERT, UPDATE and DELETE

	// Prepared and Oldest are of transactions that have locked the table and are not
	// at an end: how many are prepared for a two-phase commit, and for how long the
	// oldest of all has been open.
	Prepared int
	Oldest   time.Duration

	// ClockAhead is by how much the server's clock is ahead of this machine's, to
	// within half of the time that asking took.
	ClockAhead time.Duration
}

const (
	serverSQL = `
SELECT current_setting('server_version'), pg_is_in_recovery(), current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
	current_setting('synchronous_commit'), 
	coalesce((SELECT c.oid::bigint FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1::text AND c.relname = $2::text), 0),
	pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')`

	clockSQL = `SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint`

	rightsSQL = `
SELECT coalesce(string_agg(r, ',' ORDER BY n), '') FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) WITH ORDINALITY AS rights(r, n)
WHERE NOT has_schema_privilege($2::text, 'USAGE') OR NOT has_table_privilege($1::bigint::oid, r)`

	tableSQL = `
SELECT pg_total_relation_size(c.oid), coalesce(t.n_live_tup, 0), coalesce(t.n_dead_tup, 0),
	coalesce((date_part('epoch', clock_timestamp() - greatest(t.last_vacuum, t.last_autovacuum)) * 1000000)::bigint, -1),
	current_setting('autovacuum') = 'on' AND NOT coalesce(c.reloptions::text ~ 'autovacuum_enabled=(false|off|no|0)', false),
	(SELECT coalesce(string_agg(x.relname, ',' ORDER BY x.relname), '') FROM pg_index AS i JOIN pg_class AS x ON x.oid = i.indexrelid
		WHERE i.indrelid = c.oid AND NOT (i.indisvalid AND i.indisready)),
	(SELECT count(DISTINCT l.virtualtransaction) FROM pg_locks AS l WHERE l.relation = c.oid AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND l.pid IS NULL AND l.granted),
	(SELECT coalesce(max((date_part('epoch', clock_timestamp() - a.xact_start) * 1000000)::bigint), 0)
		FROM pg_stat_activity AS a WHERE a.pid <> pg_backend_pid() AND a.pid IN (SELECT l.pid FROM pg_locks AS l WHERE l.relation = c.oid
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))),
	(SELECT coalesce(max((date_part('epoch', clock_timestamp() - p.prepared) * 1000000)::bigint), 0)
		FROM pg_prepared_xacts AS p WHERE p.database = current_database() AND EXISTS (SELECT FROM pg_locks AS l
		JOIN pg_locks AS x ON x.virtualtransaction = l.virtualtransaction AND x.pid IS NULL AND x.transactionid = p.transaction
		WHERE l.relation = c.oid AND l.pid IS NULL))
FROM pg_class AS c LEFT JOIN pg_stat_all_tables AS t ON t.relid = c.oid
WHERE c.oid = $1::bigint::oid`

	// An expired row is swept in the order of sweep_at, which may be too early.
	overdueSQL = `
SELECT count(*), coalesce((date_part('epoch', clock_timestamp() - min(o.at)) * 1000000)::bigint, 0)
FROM (SELECT r.written_at + (r.ttl / 1000)::float8 * interval '1 microsecond' AS at FROM {table} AS r
	WHERE r.sweep_at <= statement_timestamp() AND NOT ({live}) ORDER BY r.sweep_at LIMIT 10000) AS o`
)

// Stats asks the server. It changes nothing, and answers on a standby and where
// there is no table too.
func (b *Backend) Stats(ctx context.Context) (st Stats, err error) {
	err = b.src.with(ctx, func(s session) error {
		st = Stats{}
		var oid int64
		var sees bool
		one := func(sql string, args []any, dest ...any) error {
			return s.query(ctx, sql, args, func(scan func(...any) error) error { return scan(dest...) })
		}
		if err := one(serverSQL, []any{b.opts.Schema, b.opts.Table}, &st.Server, &st.Standby, &st.Fsync, &st.FullPageWrites, &st.SynchronousCommit, &oid, &sees); err != nil {
			return err
		}
		var micros int64
		before := time.Now()
		if err := one(clockSQL, nil, &micros); err != nil {
			return err
		}
		took := time.Since(before)
		if ahead := time.UnixMicro(micros).Sub(before.Add(took / 2)); ahead.Abs() > took/2 {
			st.ClockAhead = ahead
		}
		if st.Table = oid != 0; !st.Table {
			return nil
		}
		if !sees {
			st.Hidden = append(st.Hidden, "transactions of other roles (grant pg_read_all_stats)")
		}
		var missing string
		if err := one(rightsSQL, []any{oid, b.opts.Schema}, &missing); err != nil {
			return err
		}
		st.MissingRights = list(missing)
		var vacuumed, oldest, prepared, overdue int64
		var invalid string
		if err := one(tableSQL, []any{oid}, &st.Size, &st.Live, &st.Dead, &vacuumed, &st.Autovacuum, &invalid, &st.Prepared, &oldest, &prepared); err != nil {
			return err
		}
		st.Vacuumed, st.Oldest, st.InvalidIndexes = micro(vacuumed), micro(max(oldest, prepared)), list(invalid)
		if strings.Contains(missing, "SELECT") {
			st.Hidden = append(st.Hidden, "expired rows")
			return nil
		}
		switch err := one(b.sql.overdue, nil, &st.Overdue, &overdue); {
		case sqlState(err) == undefinedColumn: // it is another table
			st.Hidden = append(st.Hidden, "expired rows")
		case err != nil:
			return err
		}
		st.OverdueFor = micro(max(0, overdue))
		return nil
	})
	if err != nil {
		return Stats{}, b.failed(ctx, "stats", err)
	}
	return st, nil
}

func micro(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}
