package faulttest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
	"github.com/idem-go/idem/internal/testpg"
)

// query returns the one value that a statement yields.
func query(t *testing.T, pool *pgxpool.Pool, sql string) (value string) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func connect(t *testing.T, url string) (*pgxpool.Pool, *postgres.Backend, *idem.Store) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b, err := postgres.New(pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := idem.New(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	return pool, b, s
}

// Reliability row 20: the primary dies and its standby takes over. What was
// acknowledged without the standby is lost, as the documentation says; what had to
// reach the standby first is not.
func TestRow20_Failover(t *testing.T) {
	t.Parallel()
	for _, synchronous := range []bool{false, true} {
		t.Run(fmt.Sprintf("synchronous=%v", synchronous), func(t *testing.T) {
			primary := testpg.New(t)
			pool, b, s := connect(t, primary.URL())
			if err := b.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			standby := primary.Standby(t)
			until(t, "the standby follows", func() bool {
				return query(t, pool, `SELECT count(*)::text FROM pg_stat_replication WHERE state = 'streaming'`) == "1"
			})
			if synchronous {
				testpg.Exec(t, primary.URL(), `ALTER SYSTEM SET synchronous_standby_names = '*'`, `SELECT pg_reload_conf()`)
				until(t, "the standby is synchronous", func() bool {
					return query(t, pool, `SELECT count(*)::text FROM pg_stat_replication WHERE sync_state = 'sync'`) == "1"
				})
			}
			var claims []*idem.Claim
			claim := func(ctx context.Context, key string) error {
				c, _, err := s.Begin(ctx, key, own)
				if err == nil {
					claims = append(claims, c)
				}
				return err
			}
			if synchronous {
				for i := range 50 {
					if err := claim(t.Context(), fmt.Sprintf("before-%d", i)); err != nil {
						t.Fatal(err)
					}
				}
			}
			cutOff(t, standby)
			const later = "after the line to the standby was cut"
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			err := claim(ctx, later)
			if synchronous && !errors.Is(err, idem.ErrUnavailable) {
				t.Errorf("a claim that does not reach the standby ends with %v, want ErrUnavailable", err)
			}
			if !synchronous && err != nil {
				t.Fatal(err)
			}

			primary.Kill()
			testpg.Exec(t, standby.URL(), `SELECT pg_promote(true)`)
			_, _, promoted := connect(t, standby.URL())
			again, _, err := promoted.Begin(t.Context(), later, own)
			if err != nil {
				t.Fatalf("Begin of a key that was not replicated = %v; it is expected to be lost", err)
			}
			if !synchronous {
				if err := promoted.Complete(t.Context(), claims[0], resultOf("late")); !errors.Is(err, idem.ErrLost) {
					t.Errorf("Complete by the first holder = %v, want ErrLost", err)
				}
				if again.Attempt != 1 || again.Fence <= claims[0].Fence {
					t.Errorf("the new claim is attempt %d with the fence %d after %d", again.Attempt, again.Fence, claims[0].Fence)
				}
				return
			}
			for _, c := range claims {
				if _, _, err := promoted.Begin(t.Context(), c.Key, own); !errors.Is(err, idem.ErrInProgress) {
					t.Errorf("Begin(%q) = %v, want ErrInProgress: it was acknowledged", c.Key, err)
				}
				if err := promoted.Complete(t.Context(), c, resultOf(c.Key)); err != nil {
					t.Errorf("Complete(%q) = %v", c.Key, err)
				}
			}
		})
	}
}

// cutOff makes the standby stop following.
func cutOff(t *testing.T, standby *testpg.Server) {
	t.Helper()
	testpg.Exec(t, standby.URL(), `ALTER SYSTEM SET primary_conninfo = ''`, `SELECT pg_reload_conf()`)
	pool, err := pgxpool.New(t.Context(), standby.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	until(t, "the standby has lost its primary", func() bool {
		return query(t, pool, `SELECT count(*)::text FROM pg_stat_wal_receiver`) == "0"
	})
}
