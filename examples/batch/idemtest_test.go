package main

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemtest"
)

// A payment is repeated in every way, and the import killed in the middle of it:
// it is booked once.
func TestBookingIsIdempotent(t *testing.T) {
	idemtest.Run(t, idemtest.Operation{
		Setup: func(t testing.TB, e *idemtest.Env) idemtest.Subject {
			im, err := openLedger(filepath.Join(e.Dir(), "ledger.db"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { im.db.Close() })
			im.add = func(entries *bbolt.Bucket, p payment) (r idem.Result, err error) {
				err = e.Effect(context.Background(), func() error { r, err = addEntry(entries, p); return err })
				return r, err
			}
			return idemtest.Subject{
				Send: func(ctx context.Context, r idemtest.Request) (string, error) {
					p, err := parse([]string{r.Key, "DE01", string(r.Payload)})
					if err != nil {
						return "", err
					}
					done, err := im.book(ctx, []row{{p, 1}})
					if done.conflicts > 0 {
						return "", idemtest.ErrConflict
					}
					return "", err
				},
				Effects: func() (n int) {
					if err := im.readEntries(func(entry) { n++ }); err != nil {
						t.Error(err)
					}
					return n
				},
			}
		},
		Payload: func(n int) []byte { return fmt.Append(nil, 100+n) },
	})
}
