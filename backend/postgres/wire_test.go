package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/internal/testpg"
)

// A connection keeps some room for parameters, and none of the parameters.
func TestWireKeepsLittle(t *testing.T) {
	ctx := context.Background()
	url, _ := testpg.Schema(t)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	for _, size := range []int{10, 1000, mostKept - 1000, mostKept + 1000, 16 << 20, 10} {
		var batch pgx.Batch
		for range 3 {
			batch.Queue(`SELECT length($1::bytea)::bigint`, make([]byte, size))
		}
		results := send(ctx, conn, &batch)
		for range 3 {
			if err := eachRow(results, func(func(...any) error) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		if err := results.Close(); err != nil {
			t.Fatal(err)
		}
		w := wireOf(conn)
		if !w.direct || cap(w.params) > 2*mostKept {
			t.Errorf("after parameters of %d bytes: direct %v, and %d bytes are kept", size, w.direct, cap(w.params))
		}
		for _, v := range w.values[:cap(w.values)] {
			if v != nil {
				t.Errorf("after parameters of %d bytes there is one left of %d", size, len(v))
			}
		}
	}
}

// Where statements are not to be prepared, pgx decides what is done with them.
func TestWireIsDirectOnlyWherePgxPrepares(t *testing.T) {
	ctx := context.Background()
	url, _ := testpg.Schema(t)
	for _, mode := range []string{"exec", "simple_protocol", "cache_describe", "describe_exec"} {
		conn, err := pgx.Connect(ctx, testpg.With(url, "default_query_exec_mode", mode))
		if err != nil {
			t.Fatal(err)
		}
		if wireOf(conn).direct {
			t.Errorf("mode %s is direct", mode)
		}
		conn.Close(ctx)
	}
	conn, err := pgx.Connect(ctx, testpg.With(url, "statement_cache_capacity", "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if wireOf(conn).direct {
		t.Error("a connection without a cache of statements is direct")
	}
}

// A batch on a connection that is closed, by a call that was too late say, is an error
// that says that nothing was sent, and touches nothing that pgx still works with.
func TestWireOnClosedConnection(t *testing.T) {
	ctx := context.Background()
	url, _ := testpg.Schema(t)
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, n := range []int{1, 2} {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var batch pgx.Batch
		for range n {
			batch.Queue(`SELECT 1::bigint`)
		}
		for _, closed := range []bool{false, true} {
			if closed {
				short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				if _, err := conn.Exec(short, `SELECT pg_sleep(60)`); !conn.Conn().IsClosed() {
					t.Fatal(err)
				}
				cancel()
			}
			results := send(ctx, conn.Conn(), &batch)
			err = results.Close()
			if !closed && err != nil || closed && !unsent(err) {
				t.Errorf("%d statements on a connection that is closed (%v): %v", n, closed, err)
			}
		}
		conn.Release()
	}
}
