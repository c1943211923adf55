package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
	"github.com/idem-go/idem/internal/testpg"
)

// Reliability row 29: a role that may read and not write. Claims are definitely
// refused, with the reason, and the records can be looked up.
func TestRow29_RoleWithoutInsert(t *testing.T) {
	ctx := context.Background()
	url, schema := testpg.Schema(t)
	owner := newStore(t, migrated(t, open(t, url, 2), &postgres.Options{Schema: schema}), nil)
	if c, _, err := owner.Begin(ctx, "k", payloadA); c == nil {
		t.Fatal(err)
	}
	role := schema + "_reader"
	testpg.Exec(t, url, `CREATE ROLE `+role+` LOGIN`, `GRANT USAGE ON SCHEMA `+schema+` TO `+role, `GRANT SELECT ON ALL TABLES IN SCHEMA `+schema+` TO `+role)
	t.Cleanup(func() { testpg.Exec(t, url, `DROP OWNED BY `+role, `DROP ROLE `+role) })
	b, err := postgres.New(open(t, strings.Replace(url, "postgres@", role+"@", 1), 2), &postgres.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(t, b, nil)
	if r, err := s.Lookup(ctx, "k"); err != nil || r.Status != idem.InProgress {
		t.Errorf("Lookup = %v, %v", r.Status, err)
	}
	if _, _, err := s.Begin(ctx, "new", payloadA); !errors.Is(err, idem.ErrUnavailable) || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("Begin = %v, want ErrUnavailable with the reason", err)
	}
	_, err = b.Swap(ctx, "new", "", idem.Record{Token: "a.1", Status: idem.InProgress, Attempt: 1, TTL: 1e12, Lease: 1e9})
	if err == nil || !surely(err) {
		t.Errorf("Swap = %v, want an error without effect", err)
	}
}
