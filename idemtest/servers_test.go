package idemtest_test

import (
	"context"
	"crypto/rand"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
	idemredis "github.com/idem-go/idem/backend/redis"
	"github.com/idem-go/idem/idemtest"
	"github.com/idem-go/idem/internal/testpg"
	"github.com/idem-go/idem/internal/testredis"
)

// A process that is killed works on the same server, schema and prefix as this
// one: it finds them in its environment.
const envName = "IDEMTEST_NAME"

func pool(t testing.TB) *pgxpool.Pool {
	p, err := pgxpool.New(context.Background(), os.Getenv("IDEM_POSTGRES_URL"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// useSchema makes a schema for the test and the processes that it kills.
func useSchema(t *testing.T, tables ...string) {
	if os.Getenv(envName) != "" {
		return // this is such a process
	}
	url, schema := testpg.Schema(t)
	url = testpg.With(url, "search_path", schema)
	t.Setenv("IDEM_POSTGRES_URL", url)
	t.Setenv(envName, schema)
	backend, err := postgres.New(pool(t), &postgres.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	if err := backend.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	testpg.Exec(t, url, tables...)
}

func TestPostgres(t *testing.T) {
	useSchema(t)
	idemtest.Run(t, charging(func(t testing.TB, e *idemtest.Env) (idem.Backend, string) {
		b, err := postgres.New(pool(t), &postgres.Options{Schema: os.Getenv(envName)})
		if err != nil {
			t.Fatal(err)
		}
		return b, e.Dir()
	}))
}

// Claim, effect and result in one transaction: there is one effect, whatever dies.
func TestPostgresTransaction(t *testing.T) {
	useSchema(t, `CREATE TABLE charges (body text NOT NULL)`)
	idemtest.Run(t, idemtest.Operation{
		Setup: func(t testing.TB, e *idemtest.Env) idemtest.Subject {
			e.Dir() // the server outlives the process
			db := pool(t)
			b, err := postgres.New(db, &postgres.Options{Schema: os.Getenv(envName)})
			if err != nil {
				t.Fatal(err)
			}
			store, err := idem.New(b, nil)
			if err != nil {
				t.Fatal(err)
			}
			return idemtest.Subject{
				Send: func(ctx context.Context, r idemtest.Request) (string, error) {
					out, err := b.Do(ctx, store, r.Key, idem.FingerprintOf(r.Payload), func(ctx context.Context, tx pgx.Tx, _ *idem.Claim) (idem.Result, error) {
						return idem.Result{Body: []byte("charged")}, e.Effect(ctx, func() error {
							_, err := tx.Exec(ctx, `INSERT INTO charges VALUES ($1)`, r.Payload)
							return err
						})
					})
					return string(out.Result.Body), err
				},
				Effects: func() (n int) {
					if err := db.QueryRow(context.Background(), `SELECT count(*) FROM charges`).Scan(&n); err != nil {
						t.Error(err)
					}
					return n
				},
			}
		},
		Payload: payment,
	})
}

func TestRedis(t *testing.T) {
	if os.Getenv(envName) == "" {
		t.Setenv("IDEM_REDIS_URL", testredis.Shared(t))
		t.Setenv(envName, "t"+rand.Text()[:8]+":")
	}
	idemtest.Run(t, charging(func(t testing.TB, e *idemtest.Env) (idem.Backend, string) {
		client := goredis.NewClient(&goredis.Options{Addr: testredis.Shared(t), ContextTimeoutEnabled: true})
		t.Cleanup(func() { client.Close() })
		b, err := idemredis.New(client, &idemredis.Options{Prefix: os.Getenv(envName), Warn: func(string) {}})
		if err != nil {
			t.Fatal(err)
		}
		return b, e.Dir()
	}))
}
