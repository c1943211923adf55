package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
	"github.com/idem-go/idem/conformancetest"
	"github.com/idem-go/idem/internal/testpg"
)

// PG-4: everything works behind a pooler that gives every transaction another
// connection, with the connection settings that the documentation names.
func TestPG4_ConformanceBehindPgBouncer(t *testing.T) {
	base, schema := testpg.Schema(t)
	through := testpg.PgBouncer(t, base, "transaction")
	params := append([]string{"default_query_exec_mode", "exec"}, odd...)
	conformancetest.Run(t, harness(t, testpg.With(through, params...), schema, connectPgx))
}

// Reliability row 21: five modes, 400 calls each. Where pgx's cache of prepared
// statements is in the way there are errors that say so, and never two claims of
// a key.
func TestRow21_ExecModesBehindPgBouncer(t *testing.T) {
	ctx := context.Background()
	base, schema := testpg.Schema(t)
	through := testpg.PgBouncer(t, base, "transaction")
	f := newFixtureAt(t, base, schema, 4)
	for _, mode := range []string{"exec", "cache_describe", "simple_protocol", "describe_exec", "cache_statement"} {
		t.Run(mode, func(t *testing.T) {
			b, err := postgres.New(open(t, testpg.With(through, "default_query_exec_mode", mode), 8), &postgres.Options{Schema: schema})
			if err != nil {
				t.Fatal(err)
			}
			s := newStore(t, b, nil)
			var mu sync.Mutex
			claims := map[string]int{}
			var failed error
			var errs int
			call := func(i int) {
				short, cancel := context.WithTimeout(ctx, 20*time.Second)
				defer cancel()
				key := fmt.Sprintf("%s-%d", mode, i%20)
				c, _, err := s.Begin(short, key, payloadA)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case c != nil:
					claims[key]++
				case !errors.Is(err, idem.ErrInProgress):
					errs++
					failed = err
				}
			}
			for round := range 50 {
				var all sync.WaitGroup
				for i := range 8 {
					all.Go(func() { call(round*8 + i) })
				}
				all.Wait()
			}
			for key, n := range claims {
				if n != 1 {
					t.Errorf("%q was claimed %d times", key, n)
				}
			}
			t.Logf("%d keys claimed, %d of 400 calls failed: %v", len(claims), errs, failed)
			// describe_exec takes two round trips for a statement, and is lost
			// behind a pooler like the cache.
			if cached := mode == "cache_statement" || mode == "describe_exec"; !cached && (errs > 0 || len(claims) != 20) {
				t.Errorf("%d calls failed", errs)
			} else if cached && errs > 0 && (!strings.Contains(failed.Error(), "default_query_exec_mode") || !errors.Is(failed, idem.ErrUnavailable)) {
				t.Errorf("the error does not name the setting: %v", failed)
			}
		})
	}
	t.Run("Do", func(t *testing.T) {
		b, err := postgres.New(open(t, testpg.With(through, "default_query_exec_mode", "exec"), 8), &postgres.Options{Schema: schema})
		if err != nil {
			t.Fatal(err)
		}
		s := newStore(t, b, nil)
		var all sync.WaitGroup
		for i := range 60 {
			all.Go(func() {
				key := fmt.Sprintf("do%d", i%20)
				_, err := b.Do(ctx, s, key, payloadA, func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
					return idem.Result{}, f.pay(ctx, tx, c.Key)
				})
				if err != nil {
					t.Errorf("Do = %v", err)
				}
			})
		}
		all.Wait()
		if paid := f.payments(t); len(paid) != 20 {
			t.Errorf("%d keys were paid", len(paid))
		} else {
			for key, n := range paid {
				if n != 1 {
					t.Errorf("%q was paid %d times", key, n)
				}
			}
		}
	})
}

// A pooler in statement mode has no transactions. Do says so, and changes nothing.
func TestRow21_StatementPooling(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	base, schema := testpg.Schema(t)
	f := newFixtureAt(t, base, schema, 4)
	through := testpg.PgBouncer(t, base, "statement")
	b, err := postgres.New(open(t, testpg.With(through, "default_query_exec_mode", "exec"), 4), &postgres.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(t, b, nil)
	_, err = b.Do(ctx, s, "k", payloadA, func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
		return idem.Result{}, f.pay(ctx, tx, c.Key)
	})
	if !errors.Is(err, idem.ErrUnavailable) || !strings.Contains(err.Error(), "statement mode") {
		t.Errorf("Do = %v, want ErrUnavailable with the reason", err)
	}
	if r, err := newStore(t, f, nil).Lookup(ctx, "k"); err != nil || r.Status != 0 || f.payments(t)["k"] != 0 {
		t.Errorf("left behind: %+v, %v, paid %d times", r, err, f.payments(t)["k"])
	}
}
