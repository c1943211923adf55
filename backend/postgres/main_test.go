package postgres_test

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testpg"
)

// The tests run in a zone that is neither the server's nor the sessions'.
func TestMain(m *testing.M) {
	flag.Parse()
	zone, err := time.LoadLocation("America/New_York")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	time.Local = zone
	code := m.Run()
	testpg.Stop()
	os.Exit(testenv.Leaks(code))
}

var payloadA, payloadB = idem.FingerprintOf([]byte("A")), idem.FingerprintOf([]byte("B"))

// open returns a pool on url, with max connections at most.
func open(t testing.TB, url string, max int32) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = max
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// openSQL is open for database/sql.
func openSQL(t testing.TB, url string, max int) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(max)
	db.SetMaxIdleConns(max)
	t.Cleanup(func() { db.Close() })
	return db
}

// migrated returns a Backend on db whose table has been created.
func migrated(t testing.TB, db postgres.DB, opts *postgres.Options) *postgres.Backend {
	t.Helper()
	b, err := postgres.New(db, opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return b
}

// A fixture is a pool with a table of its own, and a table of accounts to change
// in transactions.
type fixture struct {
	*postgres.Backend
	pool   *pgxpool.Pool
	url    string
	schema string
}

// newFixture returns a fixture on the shared server; params are added to the
// connection string, as names and values in turn.
func newFixture(t testing.TB, max int32, params ...string) *fixture {
	t.Helper()
	url, schema := testpg.Schema(t)
	url = testpg.With(url, params...)
	return newFixtureAt(t, url, schema, max)
}

func newFixtureAt(t testing.TB, url, schema string, max int32) *fixture {
	t.Helper()
	pool := open(t, url, max)
	f := &fixture{pool: pool, url: url, schema: schema}
	f.Backend = migrated(t, pool, &postgres.Options{Schema: schema})
	f.exec(t, `CREATE TABLE `+schema+`.payments (key text NOT NULL)`)
	return f
}

func (f *fixture) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := f.pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// pay is the business change of most tests: one row per effect.
func (f *fixture) pay(ctx context.Context, tx pgx.Tx, key string) error {
	_, err := tx.Exec(ctx, `INSERT INTO `+f.schema+`.payments (key) VALUES ($1)`, key)
	return err
}

// payments returns how often each key was paid.
func (f *fixture) payments(t testing.TB) map[string]int {
	t.Helper()
	rows, err := f.pool.Query(context.Background(), `SELECT key, count(*) FROM `+f.schema+`.payments GROUP BY key`)
	if err != nil {
		t.Fatal(err)
	}
	paid := make(map[string]int)
	var key string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&key, &n}, func() error { paid[key] = n; return nil }); err != nil {
		t.Fatal(err)
	}
	return paid
}

func newStore(t testing.TB, b idem.Backend, opts *idem.Options) *idem.Store {
	t.Helper()
	s, err := idem.New(b, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
