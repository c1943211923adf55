package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
	"github.com/idem-go/idem/internal/testpg"
)

// PG-8: many instances create the table at once, in a schema that is there and in
// one that is not.
func TestPG8_ManyInstancesMigrateAtOnce(t *testing.T) {
	ctx := context.Background()
	url, schema := testpg.Schema(t)
	admin := open(t, url, 2)
	var pools []*pgxpool.Pool
	for range 16 {
		pools = append(pools, open(t, url, 2))
	}
	for round := range 30 {
		in := schema
		if round%3 == 0 {
			in = schema + "_new"
		}
		table := fmt.Sprintf("Records_%d", round)
		var all sync.WaitGroup
		for _, pool := range pools {
			all.Go(func() {
				b, err := postgres.New(pool, &postgres.Options{Schema: in, Table: table})
				if err != nil {
					t.Error(err)
					return
				}
				for range 2 {
					if err := b.Migrate(ctx); err != nil {
						t.Errorf("Migrate = %v", err)
					}
				}
			})
		}
		all.Wait()
		var indexes int
		if err := admin.QueryRow(ctx, `SELECT count(*) FROM pg_indexes WHERE schemaname = $1 AND tablename = $2`, in, table).Scan(&indexes); err != nil || indexes != 2 {
			t.Errorf("%d indexes, %v, want 2", indexes, err)
		}
		if round%3 == 0 {
			if _, err := admin.Exec(ctx, `DROP SCHEMA `+in+` CASCADE`); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A role that may only use the table may call Migrate all the same, and is told
// if there is no table.
func TestPG8_RoleWithoutCreate(t *testing.T) {
	ctx := context.Background()
	url, schema := testpg.Schema(t)
	testpg.Exec(t, url, `CREATE ROLE `+schema+`_user LOGIN`, `GRANT USAGE ON SCHEMA `+schema+` TO `+schema+`_user`)
	t.Cleanup(func() {
		testpg.Exec(t, url, `DROP OWNED BY `+schema+`_user`, `DROP ROLE `+schema+`_user`)
	})
	user := open(t, strings.Replace(url, "postgres@", schema+"_user@", 1), 2)
	b, err := postgres.New(user, &postgres.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Migrate(ctx); err == nil || !strings.Contains(err.Error(), "may not create it") {
		t.Errorf("Migrate without table and right = %v", err)
	}
	if err := b.Check(ctx); !errors.Is(err, postgres.ErrNoTable) || !strings.Contains(err.Error(), "call Migrate") {
		t.Errorf("Check without table = %v", err)
	}
	migrated(t, open(t, url, 2), &postgres.Options{Schema: schema})
	if err := b.Migrate(ctx); err != nil {
		t.Errorf("Migrate = %v", err)
	}
	if err := b.Check(ctx); err != nil {
		t.Errorf("Check = %v", err)
	}
	s := newStore(t, b, nil)
	if _, _, err := s.Begin(ctx, "k", payloadA); !errors.Is(err, idem.ErrUnavailable) || !strings.Contains(err.Error(), "needs SELECT, INSERT, UPDATE and DELETE") {
		t.Errorf("Begin without rights = %v", err)
	}
	testpg.Exec(t, url, `GRANT SELECT, INSERT, UPDATE, DELETE ON `+schema+`.idem_records TO `+schema+`_user`)
	c, _, err := s.Begin(ctx, "k", payloadA)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Complete(ctx, c, idem.Result{}); err != nil {
		t.Error(err)
	}
	if _, err := b.Sweep(ctx, 10); err != nil {
		t.Error(err)
	}
	if _, _, err := b.List(ctx, idem.Query{}); err != nil {
		t.Error(err)
	}
}

func TestMigrateRefusesAnotherShape(t *testing.T) {
	ctx := context.Background()
	for want, change := range map[string]string{
		`lacks ["checkpoint bytea"]`: `ALTER TABLE %s DROP COLUMN checkpoint`,
		`has ["extra integer NULL"]`: `ALTER TABLE %s ADD COLUMN extra int`,
		`lacks ["lease bigint"]`:     `ALTER TABLE %s ALTER COLUMN lease TYPE int USING 0`,
		`has ["body bytea NULL"]`:    `ALTER TABLE %s ALTER COLUMN body DROP NOT NULL`,
		`has ["key text default"]`:   `ALTER TABLE %s ALTER COLUMN key TYPE text COLLATE "default"`,
		"no unique index on key":     `ALTER TABLE %s DROP CONSTRAINT idem_records_pkey`,
		"unlogged":                   `ALTER TABLE %s SET UNLOGGED`,
		"works with version 1":       `COMMENT ON TABLE %s IS 'idem records, version 2'`,
		"is not a table":             `DROP TABLE %[1]s; CREATE VIEW %[1]s AS SELECT 1 AS key`,
	} {
		t.Run(want, func(t *testing.T) {
			url, schema := testpg.Schema(t)
			b := migrated(t, open(t, url, 2), &postgres.Options{Schema: schema})
			for _, sql := range strings.Split(fmt.Sprintf(change, schema+".idem_records"), ";") {
				testpg.Exec(t, url, sql)
			}
			for what, err := range map[string]error{"Migrate": b.Migrate(ctx), "Check": b.Check(ctx)} {
				if !errors.Is(err, postgres.ErrOtherTable) || !strings.Contains(err.Error(), want) {
					t.Errorf("%s = %v, want an ErrOtherTable that says %s", what, err, want)
				}
			}
		})
	}
	t.Run("a comment of the owner's", func(t *testing.T) {
		url, schema := testpg.Schema(t)
		b := migrated(t, open(t, url, 2), &postgres.Options{Schema: schema})
		testpg.Exec(t, url, `COMMENT ON TABLE `+schema+`.idem_records IS 'ours'`)
		if err := b.Migrate(ctx); err != nil {
			t.Errorf("Migrate = %v", err)
		}
	})
}

// The exported SQL creates what Migrate would have created.
func TestSchemaIsWhatMigrateCreates(t *testing.T) {
	ctx := context.Background()
	url, schema := testpg.Schema(t)
	sql, err := postgres.Schema(schema, "theirs")
	if err != nil {
		t.Fatal(err)
	}
	testpg.Exec(t, url, sql)
	b := migrated(t, open(t, url, 2), &postgres.Options{Schema: schema, Table: "theirs"})
	if c, _, err := newStore(t, b, nil).Begin(ctx, "k", payloadA); c == nil {
		t.Error(err)
	}
}

func TestNamesAreIdentifiers(t *testing.T) {
	pool := open(t, testpg.URL(t), 1)
	for _, name := range []string{"a b", `a"b`, "a.b", "1a", "a;b", "ä", "a-b", strings.Repeat("a", 64)} {
		for _, opts := range []*postgres.Options{{Schema: name}, {Table: name}} {
			if _, err := postgres.New(pool, opts); !errors.Is(err, idem.ErrOptions) {
				t.Errorf("New with %+v = %v", opts, err)
			}
		}
		if _, err := postgres.Schema(name, ""); !errors.Is(err, idem.ErrOptions) {
			t.Errorf("Schema(%q) = %v", name, err)
		}
	}
	// A word of SQL is a name like any other.
	_, schema := testpg.Schema(t)
	b := migrated(t, pool, &postgres.Options{Schema: schema, Table: "select"})
	if c, _, err := newStore(t, b, nil).Begin(context.Background(), "k", payloadA); c == nil {
		t.Error(err)
	}
	if _, err := postgres.New(nil, nil); !errors.Is(err, idem.ErrOptions) {
		t.Errorf("New(nil) = %v", err)
	}
	if _, err := postgres.NewSQL(nil, nil); !errors.Is(err, idem.ErrOptions) {
		t.Errorf("NewSQL(nil) = %v", err)
	}
}

// A call on a table that is not there says what to do.
func TestMissingTableSaysMigrate(t *testing.T) {
	url, schema := testpg.Schema(t)
	b, err := postgres.New(open(t, url, 2), &postgres.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, _, err := newStore(t, b, nil).Begin(ctx, "k", payloadA); !errors.Is(err, idem.ErrUnavailable) || !strings.Contains(err.Error(), "call Migrate") {
		t.Errorf("Begin = %v", err)
	}
}
