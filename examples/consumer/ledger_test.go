package main

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testpg"
)

// The entry and its record commit together: a consumer that dies right after book
// has left both behind, and one that has lost its claim neither.
func TestEntryAndRecordCommitTogether(t *testing.T) {
	for name, at := range map[string]func(t *testing.T) string{
		"bolt":     func(t *testing.T) string { return filepath.Join(testenv.Dir(t), "ledger") },
		"postgres": func(t *testing.T) string { return testpg.New(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			l, err := openLedger(ctx, at(t))
			if err != nil {
				t.Fatal(err)
			}
			defer l.close()
			store, err := newStore(l, idem.MinRetention)
			if err != nil {
				t.Fatal(err)
			}
			begin := func(o order) *idem.Claim {
				c, _, err := store.Begin(ctx, o.ID, idem.FingerprintOf([]byte(o.ID)))
				if err != nil || c == nil {
					t.Fatalf("%v, %v", c, err)
				}
				return c
			}
			book := func(c *idem.Claim, o order) (idem.Result, error) {
				return l.book(ctx, o, func(tx idem.Backend, r idem.Result) error { return store.With(tx).Complete(ctx, c, r) })
			}
			kept, lost := nthOrder(1), nthOrder(2)
			receipt, err := book(begin(kept), kept)
			if err != nil {
				t.Fatal(err)
			}
			if r, err := store.Lookup(ctx, kept.ID); err != nil || r.Status != idem.Completed || !r.Result.Equal(receipt) {
				t.Errorf("the order is booked, and its record is %+v, %v", r, err)
			}

			first := begin(lost)
			if err := store.Abandon(ctx, first); err != nil {
				t.Fatal(err)
			}
			second := begin(lost) // another consumer has taken over
			if _, err := book(first, lost); !errors.Is(err, idem.ErrLost) {
				t.Errorf("booking with a claim that is lost: %v", err)
			}
			if entries, err := l.entries(ctx); err != nil || len(entries) != 1 {
				t.Errorf("the ledger has %v, %v", entries, err)
			}
			if _, err := book(second, lost); err != nil {
				t.Error(err)
			}
			if entries, err := l.entries(ctx); err != nil || entries[lost.ID] != 1 || entries[kept.ID] != 1 {
				t.Errorf("the ledger has %v, %v", entries, err)
			}
		})
	}
}
