package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

// A field that is NULL or out of range is damage and nothing else.
func TestDamageIsNotGuessed(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4)
	s := newStore(t, f, nil)
	c, _, err := s.Begin(ctx, "k", payloadA)
	if err != nil {
		t.Fatal(err)
	}
	for _, column := range []string{"token", "status", "attempt", "fence", "fingerprint", "code", "meta", "body", "omitted", "checkpoint", "lease", "ttl", "written_at"} {
		f.exec(t, `ALTER TABLE `+f.schema+`.idem_records ALTER `+column+` DROP NOT NULL`)
		f.exec(t, `CREATE TABLE `+f.schema+`.saved AS SELECT * FROM `+f.schema+`.idem_records`)
		f.exec(t, `UPDATE `+f.schema+`.idem_records SET `+column+` = NULL`)
		if _, err := s.Lookup(ctx, "k"); !errors.Is(err, idem.ErrCorrupt) {
			t.Errorf("Lookup with %s = NULL: %v", column, err)
		}
		if _, _, err := s.Begin(ctx, "k", payloadA); !errors.Is(err, idem.ErrCorrupt) {
			t.Errorf("Begin with %s = NULL: %v", column, err)
		}
		f.exec(t, `UPDATE `+f.schema+`.idem_records AS r SET `+column+` = s.`+column+` FROM `+f.schema+`.saved AS s`)
		f.exec(t, `DROP TABLE `+f.schema+`.saved`)
	}
	f.exec(t, `UPDATE `+f.schema+`.idem_records SET meta = '\x02ff'`)
	if _, err := s.Lookup(ctx, "k"); !errors.Is(err, idem.ErrCorrupt) {
		t.Errorf("Lookup with a damaged meta: %v", err)
	}
	f.exec(t, `UPDATE `+f.schema+`.idem_records SET meta = ''`)
	if err := s.Complete(ctx, c, idem.Result{}); err != nil {
		t.Errorf("Complete, after all was mended: %v", err)
	}
	f.exec(t, `CREATE TABLE `+f.schema+`.saved AS SELECT * FROM `+f.schema+`.idem_records`)
	for _, nonsense := range []string{"status = 0", "status = 4", "attempt = -1", "lease = -1", "ttl = -1", "fingerprint = ''", "token = ''"} {
		f.exec(t, `UPDATE `+f.schema+`.idem_records SET `+nonsense)
		if _, err := s.Lookup(ctx, "k"); !errors.Is(err, idem.ErrCorrupt) {
			t.Errorf("Lookup with %s: %v", nonsense, err)
		}
		if _, _, err := s.Begin(ctx, "k", payloadA); !errors.Is(err, idem.ErrCorrupt) {
			t.Errorf("Begin with %s: %v", nonsense, err)
		}
		f.exec(t, `DELETE FROM `+f.schema+`.idem_records`)
		f.exec(t, `INSERT INTO `+f.schema+`.idem_records SELECT * FROM `+f.schema+`.saved`)
	}
	if _, done, err := s.Begin(ctx, "k", payloadA); err != nil || done == nil {
		t.Errorf("Begin, after all was mended: %v, %v", done, err)
	}
}

// A record whose damage makes it look expired is not swept, and so not forgotten.
func TestDamageIsNotSwept(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4)
	s := newStore(t, f, nil)
	if _, _, err := s.Begin(ctx, "k", payloadA); err != nil {
		t.Fatal(err)
	}
	f.exec(t, `UPDATE `+f.schema+`.idem_records SET ttl = -1, sweep_at = now() - interval '1 day'`)
	if n, err := f.Sweep(ctx, 10); n != 0 || err != nil {
		t.Errorf("Sweep = %d, %v", n, err)
	}
	if _, _, err := s.Begin(ctx, "k", payloadA); !errors.Is(err, idem.ErrCorrupt) {
		t.Errorf("Begin after the sweep: %v", err)
	}
}

// Keys that the contract does not know are refused before anything is written.
func TestKeysAreRefused(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4)
	for _, key := range []string{"", strings.Repeat("x", idem.MaxStoredKey+1)} {
		tx, err := f.pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for name, b := range map[string]idem.Batcher{"Backend": f.Backend, "WithTx": f.WithTx(tx).(idem.Batcher)} {
			r := idem.Record{Token: "a.1", Status: idem.InProgress, Attempt: 1, Lease: time.Minute, TTL: time.Hour}
			swapped := b.SwapAll(ctx, []idem.Swap{{Key: key, New: r}, {Key: name, New: r}})
			_, err := b.(idem.Backend).Swap(ctx, key, "", r)
			for _, err := range []error{err, swapped[0].Err} {
				if !errors.Is(err, idem.ErrKey) {
					t.Errorf("%s, a key of %d bytes: %v", name, len(key), err)
				}
			}
			if swapped[1].Err != nil {
				t.Errorf("%s, the key beside it: %v", name, swapped[1].Err)
			}
		}
		if err := tx.Rollback(ctx); err != nil {
			t.Error(err)
		}
	}
}
