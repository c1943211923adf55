package postgres_test

import (
	"context"
	"fmt"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
	"github.com/idem-go/idem/conformancetest"
	"github.com/idem-go/idem/internal/faultproxy"
	"github.com/idem-go/idem/internal/testpg"
)

// The sessions of all of these are in a zone, and speak in a style, that nobody
// expects.
var odd = []string{"timezone", "Asia/Kolkata", "datestyle", "German, DMY", "intervalstyle", "sql_standard", "search_path", "nowhere"}

func TestConformance(t *testing.T) {
	for name, params := range map[string][]string{
		"Default":               nil,
		"Default, Serializable": {"default_transaction_isolation", "serializable"},
		"Exec, RepeatableRead":  {"default_query_exec_mode", "exec", "default_transaction_isolation", "repeatable read"},
		"Simple, Serializable":  {"default_query_exec_mode", "simple_protocol", "default_transaction_isolation", "serializable"},
	} {
		t.Run(name, func(t *testing.T) { conformancetest.Run(t, pgxHarness(t, params...)) })
	}
	t.Run("SQL", func(t *testing.T) {
		conformancetest.Run(t, sqlHarness(t, "default_transaction_isolation", "repeatable read"))
	})
}

// A storage is what a harness knows of a backend.
type storage struct {
	idem.Backend
	table string
	inTx  func(func(idem.Backend) error) error
}

var tables atomic.Int64

func pgxHarness(t *testing.T, params ...string) conformancetest.Harness {
	base, schema := testpg.Schema(t)
	base = testpg.With(base, append(odd, params...)...)
	return harness(t, base, schema, connectPgx)
}

func connectPgx(t testing.TB, url string, opts *postgres.Options) *storage {
	pool := open(t, url, 8)
	b := migrated(t, pool, opts)
	return &storage{Backend: b, inTx: func(fn func(idem.Backend) error) error {
		ctx := context.Background()
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		if err := fn(b.WithTx(tx)); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}}
}

func sqlHarness(t *testing.T, params ...string) conformancetest.Harness {
	base, schema := testpg.Schema(t)
	base = testpg.With(base, append(odd, params...)...)
	return harness(t, base, schema, func(t testing.TB, url string, opts *postgres.Options) *storage {
		db := openSQL(t, url, 8)
		b, err := postgres.NewSQL(db, opts)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Migrate(context.Background()); err != nil {
			t.Fatal(err)
		}
		return &storage{Backend: b, inTx: func(fn func(idem.Backend) error) error {
			tx, err := db.Begin()
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if err := fn(b.WithSQLTx(tx)); err != nil {
				return err
			}
			return tx.Commit()
		}}
	})
}

// harness returns a Harness whose backends connect through a proxy.
func harness(t *testing.T, base, schema string, connect func(testing.TB, string, *postgres.Options) *storage) conformancetest.Harness {
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	proxy := faultproxy.New(t, u.Host)
	u.Host = proxy.Addr()
	admin := open(t, testpg.With(testpg.URL(t), "timezone", "UTC"), 4)
	exec := func(t testing.TB, sql string, args ...any) {
		t.Helper()
		if _, err := admin.Exec(context.Background(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	handles := make(map[idem.Backend]*storage)
	connected := func(t testing.TB, table string) idem.Backend {
		s := connect(t, u.String(), &postgres.Options{Schema: schema, Table: table})
		s.table = schema + "." + table
		handles[s.Backend] = s
		return s.Backend
	}
	return conformancetest.Harness{
		New: func(t testing.TB) idem.Backend { return connected(t, fmt.Sprintf("t%d", tables.Add(1))) },
		Peer: func(t testing.TB, b idem.Backend) idem.Backend {
			return connected(t, handles[b].table[len(schema)+1:])
		},
		Advance: func(t testing.TB, b idem.Backend, d time.Duration) {
			exec(t, fmt.Sprintf(`UPDATE %s SET written_at = written_at - $1 * interval '1 microsecond', sweep_at = sweep_at - $1 * interval '1 microsecond'`, handles[b].table), float64(d.Microseconds()))
		},
		InTx: func(t testing.TB, b idem.Backend, fn func(idem.Backend) error) error { return handles[b].inTx(fn) },
		Break: func(t testing.TB, b idem.Backend) func() {
			proxy.Refuse(true)
			return func() { proxy.Refuse(false) }
		},
		Writes: func(t testing.TB, b idem.Backend) (n uint64) {
			var log, xid int64
			err := admin.QueryRow(context.Background(), `SELECT pg_current_wal_insert_lsn() - '0/0', txid_snapshot_xmax(txid_current_snapshot())`).Scan(&log, &xid)
			if err != nil {
				t.Fatal(err)
			}
			return uint64(log + xid)
		},
	}
}
