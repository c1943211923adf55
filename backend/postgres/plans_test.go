package postgres

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem/internal/testpg"
)

// The statements of a batch look up each key in the index, also with plans that
// were made while the table was empty, or was not known to have grown.
func TestPlansLookUpKeys(t *testing.T) {
	ctx := context.Background()
	url, schema := testpg.Schema(t)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing depends on it
	b, err := New(conn, &Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	plan := func(begin, sql, types, args string) string {
		t.Helper()
		tx, err := conn.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(ctx) //nolint:errcheck // it has only looked
		for _, sql := range []string{begin, "PREPARE p (" + types + ") AS " + sql} {
			if _, err := tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
		}
		rows, err := tx.Query(ctx, "EXPLAIN (COSTS OFF) EXECUTE p ("+args+")", pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, "DEALLOCATE p"); err != nil {
			t.Fatal(err)
		}
		return strings.Join(lines, "\n")
	}
	const (
		types = "text[], text[], text[], bytea[], bytea[], bytea[], bytea[], bigint[]"
		args  = "'{a}', '{b}', '{c}', '{d}', '{e}', '{f}', '{g}', '{1,2,3,4,5,6,7,8,9,10}'"
	)
	for _, c := range []struct{ when, sql string }{
		{"fresh", ""},
		{"empty", "VACUUM ANALYZE " + b.table},
		{"large", "INSERT INTO " + b.table + ` SELECT 1, 1, 0, 0, 1, now(), now(), 2, false, 'key' || i, 'token' || i, '', '', '', '' FROM generate_series(1, 20000) AS i`},
		{"analyzed", "VACUUM ANALYZE " + b.table},
	} {
		if c.sql != "" {
			testpg.Exec(t, url, c.sql)
		}
		for name, p := range map[string]string{
			"replaces": plan(b.sql.batchReplaces, b.sql.replaces, types, args),
			"reads":    plan(b.sql.batch, b.sql.reads, "text[]", "'{a}'"),
		} {
			if !strings.Contains(p, "Index Cond: (key = ") {
				t.Errorf("%s, with a table that is %s, does not look up each key:\n%s", name, c.when, p)
			}
		}
	}
}
