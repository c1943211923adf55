package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/idem-go/idem"
)

// Version is the version of the table that this package works with. It is kept
// in the comment of the table.
const Version = 1

const versionMark = "idem records, version "

// Schema returns the SQL that creates the table, for people's own migration
// tools. Names are as in [Options], "" for the defaults; names that Options
// would refuse give an error. The schema itself has to exist.
func Schema(schema, table string) (string, error) {
	b, err := newBackend(nil, &Options{Schema: schema, Table: table})
	if err != nil {
		return "", err
	}
	return strings.Join(b.schema(), ";\n\n") + ";\n", nil
}

// schema returns the statements that create the table. It has no CHECK
// constraints: PostgreSQL makes their expressions ready anew for every statement,
// which took 40 us of one. Keys are checked before they are written, and records
// when they are read.
func (b *Backend) schema() []string {
	return []string{
		`CREATE TABLE ` + b.table + ` (
	-- The columns of one length first: no room is lost between them.
	attempt     bigint NOT NULL,
	fence       bigint NOT NULL,
	code        bigint NOT NULL,
	lease       bigint NOT NULL,       -- nanoseconds from written_at
	ttl         bigint NOT NULL,       -- nanoseconds from written_at
	written_at  timestamptz NOT NULL,  -- by the clock of the server
	sweep_at    timestamptz NOT NULL,  -- no later than the expiry
	status      smallint NOT NULL,     -- 1 in progress, 2 completed, 3 released
	omitted     boolean NOT NULL,
	key         text COLLATE "C" NOT NULL PRIMARY KEY,
	token       text COLLATE "C" NOT NULL,
	fingerprint bytea NOT NULL,        -- 32 bytes
	meta        bytea NOT NULL,
	body        bytea NOT NULL,
	checkpoint  bytea NOT NULL
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05)`,
		`CREATE INDEX ON ` + b.table + ` (sweep_at)`,
		fmt.Sprintf(`COMMENT ON TABLE %s IS '%s%d'`, b.table, versionMark, Version),
	}
}

// shape is what the table has to look like, as shapeSQL tells it.
var shape = []string{
	"attempt bigint", "body bytea", "checkpoint bytea", "code bigint", "fence bigint", "fingerprint bytea", "key text C",
	"lease bigint", "meta bytea", "omitted boolean", "status smallint", "sweep_at timestamp with time zone", "token text C",
	"ttl bigint", "written_at timestamp with time zone",
}

const shapeSQL = `
SELECT c.relkind::text, c.relpersistence::text, coalesce(obj_description(c.oid, 'pg_class'), ''),
	(SELECT coalesce(string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attcollation = 0 THEN '' ELSE ' ' || l.collname END
		|| CASE WHEN a.attnotnull THEN '' ELSE ' NULL' END, ';' ORDER BY a.attname COLLATE "C"), '')
		FROM pg_attribute AS a LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
		WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
	EXISTS (SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'key'
		WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1::text AND c.relname = $2::text`

// What Check and Migrate find instead of the table.
var (
	// ErrNoTable means that there is nothing of the table's name.
	ErrNoTable = errors.New("there is no such table")

	// ErrOtherTable means that what has the table's name is not as this version of
	// the package needs it.
	ErrOtherTable = errors.New("the table is not as it has to be")
)

// Check looks whether the server and the table are as this package needs them, and
// changes nothing. Besides [ErrNoTable] and [ErrOtherTable] it returns an error
// if the server cannot be asked, is too old or is a standby.
func (b *Backend) Check(ctx context.Context) error {
	const what = "check"
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("postgres: %s: %w", what, err)
	}
	err := b.src.with(ctx, func(s session) error { return b.check(ctx, s, what) })
	if errors.Is(err, ErrNoTable) {
		return fmt.Errorf("postgres: %s: %w: %s; call Migrate, or run the SQL of Schema", what, ErrNoTable, b.table)
	}
	return b.explained(ctx, what, err)
}

// check returns nil if server and table are as this package needs them, ErrNoTable
// as it is, or what is wrong with them.
func (b *Backend) check(ctx context.Context, s session, what string) error {
	if err := fits(ctx, s, what); err != nil {
		return err
	}
	return b.checkTable(ctx, s, what)
}

func (b *Backend) checkTable(ctx context.Context, s session, what string) error {
	found := false
	var kind, persistence, comment, columns string
	var unique bool
	err := s.query(ctx, shapeSQL, []any{b.opts.Schema, b.opts.Table}, func(scan func(...any) error) error {
		found = true
		return scan(&kind, &persistence, &comment, &columns, &unique)
	})
	if err != nil {
		return err
	}
	has := strings.Split(columns, ";")
	missing := slices.DeleteFunc(slices.Clone(shape), func(c string) bool { return slices.Contains(has, c) })
	unknown := slices.DeleteFunc(slices.Clone(has), func(c string) bool { return slices.Contains(shape, c) })
	version, versioned := strings.CutPrefix(comment, versionMark)
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("postgres: %s: %w: %s %s; it was not changed", what, ErrOtherTable, b.table, fmt.Sprintf(format, args...))
	}
	switch {
	case !found:
		return ErrNoTable
	case kind != "r" && kind != "p":
		return wrong("is not a table (relkind %s)", kind)
	case versioned && version != fmt.Sprint(Version):
		return wrong("has version %s, and this program works with version %d", version, Version)
	case len(missing) > 0 || len(unknown) > 0:
		return wrong("has an unexpected shape: it lacks %q and has %q", missing, unknown)
	case !unique:
		return wrong("has no unique index on key alone, without which nothing is exclusive")
	case persistence != "p":
		return wrong("is unlogged or temporary: a crash would empty it, and every operation could run again")
	}
	return nil
}

// Migrate creates the table if there is none, and the schema if there is none.
// Any number of instances may do so at once. It changes nothing, and needs no
// right to create, if the table is there; a table of unexpected shape is an
// error, which wraps [ErrOtherTable]. PostgreSQL 13 or later, with a database encoding of UTF8.
func (b *Backend) Migrate(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("postgres: migrate: %w", err)
	}
	const what = "migrate"
	err := b.src.with(ctx, func(s session) error { return b.check(ctx, s, what) })
	if !errors.Is(err, ErrNoTable) {
		return b.migrated(ctx, err)
	}
	return b.migrated(ctx, b.src.inTx(ctx, func(s session) error {
		// CREATE IF NOT EXISTS fails for some of those who run it at once. The
		// lock goes with the transaction.
		if err := exec(ctx, s, `SELECT pg_advisory_xact_lock($1::bigint)::text`, lockOf("migrate", b.table, "")); err != nil {
			return err
		}
		if err := b.checkTable(ctx, s, what); !errors.Is(err, ErrNoTable) {
			return err
		}
		there := false
		err := s.query(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1::text)`, []any{b.opts.Schema},
			func(scan func(...any) error) error { return scan(&there) })
		if err == nil && !there {
			// Not under the lock of this table alone: others may create another
			// table in the same schema.
			if err = exec(ctx, s, `SELECT pg_advisory_xact_lock($1::bigint)::text`, lockOf("migrate", b.opts.Schema, "")); err == nil {
				err = exec(ctx, s, `CREATE SCHEMA IF NOT EXISTS "`+b.opts.Schema+`"`)
			}
		}
		for _, sql := range b.schema() {
			if err == nil {
				err = exec(ctx, s, sql)
			}
		}
		return err
	}))
}

func (b *Backend) migrated(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if sqlState(err) == insufficientRights {
		return fmt.Errorf("postgres: migrate: there is no table %s and the role may not create it; run the SQL of Schema as its owner: %w", b.table, err)
	}
	return b.explained(ctx, "migrate", err)
}

// explained returns err with what it is about, unless it says so itself.
func (b *Backend) explained(ctx context.Context, what string, err error) error {
	if err == nil || strings.HasPrefix(err.Error(), "postgres: ") {
		return err
	}
	return b.failed(ctx, what, err)
}

// fits reports what is wrong with the server.
func fits(ctx context.Context, s session, what string) error {
	var version int64
	var encoding string
	var recovering bool
	err := s.query(ctx, `SELECT current_setting('server_version_num')::bigint, current_setting('server_encoding'), pg_is_in_recovery()`, nil,
		func(scan func(...any) error) error { return scan(&version, &encoding, &recovering) })
	switch {
	case err != nil:
		return err
	case version < 130000:
		return fmt.Errorf("postgres: %s: the server has version %d.%d, and 13 is needed", what, version/10000, version%10000)
	case encoding != "UTF8":
		return fmt.Errorf("postgres: %s: the encoding of the database is %s, and UTF8 is needed: keys may have any character", what, encoding)
	case recovering:
		return fmt.Errorf("postgres: %s: the server is a standby; connect to the primary: %w", what, idem.ErrUnavailable)
	}
	return nil
}
