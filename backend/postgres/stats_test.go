package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
	"github.com/idem-go/idem/internal/testpg"
)

func stats(t *testing.T, b *postgres.Backend) postgres.Stats {
	t.Helper()
	s, err := b.Stats(t.Context())
	if err != nil {
		t.Fatalf("Stats: %v", err)
	}
	return s
}

func TestCheckAndStats(t *testing.T) {
	url, schema := testpg.Schema(t)
	pool := open(t, url, 4)
	b, err := postgres.New(pool, &postgres.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "call Migrate") {
		t.Errorf("Check without a table = %v", err)
	}
	if s := stats(t, b); s.Table || s.Standby || s.Server == "" || !s.FullPageWrites || s.SynchronousCommit == "" || s.ClockAhead.Abs() > time.Minute {
		t.Errorf("without a table: %+v", s)
	}
	if err := b.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Check(t.Context()); err != nil {
		t.Errorf("Check = %v", err)
	}
	store := newStore(t, b, nil)
	for i := range 10 {
		_, err := store.Do(t.Context(), fmt.Sprint(i), payloadA, func(context.Context, *idem.Claim) (idem.Result, error) { return idem.Result{}, nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	s := stats(t, b)
	if !s.Table || s.Size < 3*8192 || s.Overdue != 0 || s.InvalidIndexes != nil || s.MissingRights != nil || s.Hidden != nil ||
		s.Prepared != 0 || s.Oldest != 0 || !s.Autovacuum || s.Vacuumed >= 0 {
		t.Errorf("%+v", s)
	}
	table := schema + ".idem_records"
	testpg.Exec(t, url,
		`UPDATE `+table+` SET written_at = written_at - interval '25 hours', sweep_at = sweep_at - interval '25 hours' WHERE key < '4'`,
		`ALTER TABLE `+table+` SET (autovacuum_enabled = off)`, `VACUUM `+table)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `SELECT FROM `+table); err != nil {
		t.Fatal(err)
	}
	s = stats(t, b)
	if s.Overdue != 4 || s.OverdueFor < 59*time.Minute || s.OverdueFor > 61*time.Minute || s.Oldest <= 0 || s.Autovacuum || s.Vacuumed < 0 {
		t.Errorf("%+v", s)
	}
}

func TestCheckAndStatsOfAStandby(t *testing.T) {
	server := testpg.New(t)
	migrated(t, open(t, server.URL(), 2), nil)
	standby := server.Standby(t)
	b, err := postgres.New(open(t, standby.URL(), 2), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = b.Check(t.Context())
	if !errors.Is(err, idem.ErrUnavailable) || !strings.HasPrefix(err.Error(), "postgres: check: the server is a standby") {
		t.Errorf("Check = %v", err)
	}
	if s := stats(t, b); !s.Standby || !s.Table {
		t.Errorf("%+v", s)
	}
}

func TestStatsOfWhatIsWrong(t *testing.T) {
	server := testpg.New(t, "max_prepared_transactions=5", "fsync=off", "full_page_writes=off", "synchronous_commit=off", "autovacuum=off")
	pool := open(t, server.URL(), 4)
	b := migrated(t, pool, nil)
	testpg.Exec(t, server.URL(),
		`CREATE ROLE reader LOGIN`, `GRANT SELECT ON idem_records TO reader`,
		`CREATE ROLE stranger LOGIN`,
		`UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idem_records_sweep_at_idx'::regclass`)
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{`BEGIN`, `UPDATE idem_records SET code = 1`, `PREPARE TRANSACTION 'forgotten'`} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	s := stats(t, b)
	if s.Fsync || s.FullPageWrites || s.SynchronousCommit != "off" || s.Autovacuum || s.Prepared != 1 || s.Oldest <= 0 ||
		!slices.Equal(s.InvalidIndexes, []string{"idem_records_sweep_at_idx"}) {
		t.Errorf("%+v", s)
	}
	for role, missing := range map[string]string{"reader": "INSERT UPDATE DELETE", "stranger": "SELECT INSERT UPDATE DELETE"} {
		b, err := postgres.New(open(t, strings.Replace(server.URL(), "postgres@", role+"@", 1), 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		s := stats(t, b)
		if strings.Join(s.MissingRights, " ") != missing || len(s.Hidden) == 0 {
			t.Errorf("%s: %+v", role, s)
		}
	}
	testpg.Exec(t, server.URL(), `ROLLBACK PREPARED 'forgotten'`, `CREATE TABLE other (key text)`)
	other, err := postgres.New(pool, &postgres.Options{Table: "other"})
	if err != nil {
		t.Fatal(err)
	}
	if s := stats(t, other); !s.Table || !slices.Equal(s.Hidden, []string{"expired rows"}) {
		t.Errorf("another table: %+v", s)
	}
	server.Kill()
	if _, err := b.Stats(ctx); err == nil {
		t.Error("Stats of a server that is down is no error")
	}
}
