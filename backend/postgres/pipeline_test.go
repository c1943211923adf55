package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
)

// A program may take away the statements that its connections have prepared, as
// DISCARD ALL does. The call that notices says so and has had no effect, and no call
// after it has to.
func TestPreparedStatementsTakenAway(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 1)
	s := newStore(t, f, nil)
	claim := func(keys []string) (failed []string) {
		items := make([]idem.Item, len(keys))
		for i, key := range keys {
			items[i] = idem.Item{Key: key, Fingerprint: payloadA}
		}
		for i, begun := range s.BeginAll(ctx, items) {
			switch {
			case begun.Claim != nil:
			case begun.Err != nil && strings.Contains(begun.Err.Error(), "26000"):
				failed = append(failed, keys[i])
			default:
				t.Fatalf("%s: %v", keys[i], begun.Err)
			}
		}
		return failed
	}
	keys := func(what string, n int) (keys []string) {
		for i := range n {
			keys = append(keys, fmt.Sprint(what, n, "-", i))
		}
		return keys
	}
	for _, n := range []int{1, 3, 30} {
		claim(keys("before", n))
		if _, err := f.pool.Exec(ctx, `DEALLOCATE ALL`, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		failed := claim(keys("at", n))
		if len(failed) == 0 {
			t.Errorf("%d claims together: none has noticed", n)
		}
		if again := claim(failed); again != nil {
			t.Errorf("%d claims together: %d failed, and of them %d once more", n, len(failed), len(again))
		}
		if late := claim(keys("after", n)); late != nil {
			t.Errorf("%d claims together: %d failed later", n, len(late))
		}
	}
}

// So it is with all that shares statements or connections with the calls, and what the
// application does itself does not notice at all.
func TestPreparedStatementsTakenAwayFromEverybody(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 1)
	s := newStore(t, f, nil)
	do := func() error {
		_, err := f.Do(ctx, s, "paid", payloadA, func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
			return idem.Result{Body: []byte("paid")}, f.pay(ctx, tx, c.Key)
		})
		return err
	}
	if err := do(); err != nil {
		t.Fatal(err)
	}
	get := func(key string) func() error {
		return func() error {
			_, err := f.Get(ctx, key)
			return err
		}
	}
	inTx := func(what func(idem.Backend) error) func() error {
		return func() error {
			return pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error { return what(f.WithTx(tx)) })
		}
	}
	together := func() error {
		for _, begun := range s.BeginAll(ctx, []idem.Item{{Key: "paid", Fingerprint: payloadA}, {Key: idem.NewKey(), Fingerprint: payloadA}, {Key: idem.NewKey(), Fingerprint: payloadA}}) {
			if begun.Err != nil {
				return begun.Err
			}
		}
		return nil
	}
	ways := []struct {
		name  string
		tries int // how many calls may fail
		call  func() error
	}{
		{"Get", 1, get("paid")},
		{"Get of what is not there", 2, get("never")},
		{"Do", 2, do},
		{"in a transaction", 1, inTx(func(b idem.Backend) error {
			_, err := b.Get(ctx, "paid")
			return err
		})},
		{"together", 3, together},
		{"a transaction of the application", 0, inTx(func(idem.Backend) error { return nil })},
	}
	for range 2 {
		for _, w := range ways {
			for _, other := range ways {
				for range 3 {
					_ = other.call() // everybody has prepared what he needs
				}
			}
			f.exec(t, `DISCARD ALL`, pgx.QueryExecModeSimpleProtocol)
			var err error
			for range w.tries {
				if err = w.call(); err != nil && !strings.Contains(err.Error(), "26000") {
					t.Fatalf("%s: %v", w.name, err)
				}
			}
			if err = w.call(); err != nil {
				t.Errorf("%s: after %d tries: %v", w.name, w.tries, err)
			}
		}
	}
	if paid := f.payments(t)["paid"]; paid != 1 {
		t.Errorf("it was paid %d times", paid)
	}
}

// Who traces what a connection does sees all statements, alone and in batches.
func TestTracersSeeStatements(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 1)
	config := f.pool.Config()
	seen := &tracer{}
	config.ConnConfig.Tracer = seen
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	b, err := postgres.New(pool, &postgres.Options{Schema: f.schema})
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(t, b, nil)
	for _, n := range []int{1, 3, 30} {
		items := make([]idem.Item, n)
		for i := range items {
			items[i] = idem.Item{Key: fmt.Sprint(n, " ", i), Fingerprint: payloadA}
		}
		before := seen.count()
		for _, begun := range s.BeginAll(ctx, items) {
			if begun.Err != nil {
				t.Fatal(begun.Err)
			}
		}
		if seen.count() == before {
			t.Errorf("%d claims together: no INSERT is traced", n)
		}
	}
}

// A tracer counts the INSERTs that it is told of.
type tracer struct {
	mu      sync.Mutex
	inserts int
}

func (t *tracer) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inserts
}

func (t *tracer) saw(sql string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if strings.Contains(sql, "INSERT INTO") {
		t.inserts++
	}
}

func (t *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	t.saw(data.SQL)
	return ctx
}

func (t *tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (t *tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (t *tracer) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	t.saw(data.SQL)
}

func (t *tracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
