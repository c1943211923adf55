package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/bolt"
)

// A ledger has the entries that orders are booked as, and idem's records in the
// same database.
type ledger interface {
	// book adds the order's entry, and calls complete in the transaction that
	// does: both are there afterwards or neither is. It looks for nothing and
	// locks nothing; that it is done once for each order is idem's part.
	book(ctx context.Context, o order, complete completion) (idem.Result, error)

	// entries returns how many entries there are for each order.
	entries(ctx context.Context) (map[string]int, error)

	backend() idem.Backend
	close() error
}

// A completion completes the claim of an order with its result, by way of tx, which
// is bound to the transaction that books the order.
type completion func(tx idem.Backend, r idem.Result) error

// openLedger opens the ledger at a path, or at the URL of a PostgreSQL.
func openLedger(ctx context.Context, at string) (ledger, error) {
	if strings.HasPrefix(at, "postgres://") || strings.HasPrefix(at, "postgresql://") {
		return openPostgres(ctx, at)
	}
	return openBolt(at)
}

// newStore returns the store of the consumer bookkeeper. Another consumer of the
// same messages, that sends mail say, has a scope of its own: what is booked is
// not mailed yet.
func newStore(l ledger, lease time.Duration) (*idem.Store, error) {
	return idem.New(l.backend(), &idem.Options{
		Scope: bookkeeper,
		Lease: lease,
		// The entry commits together with its record, so an attempt without a
		// record has booked nothing, and the next may run.
		OnLapse: idem.Takeover,
		// A duplicate of a running order goes back to the broker, and the worker to
		// another order.
		NoWait: true,
	})
}

// receipt is the result of an order that is booked.
func receipt(number uint64) idem.Result {
	return idem.Result{Body: fmt.Appendf(nil, "entry %d", number)}
}

// entry is an order as it is booked. An order without items makes it panic: that is
// the fault which every program has somewhere.
func entry(o order) string {
	return fmt.Sprintf("%d cents from %s, %d for each item", o.Cents, o.Account, o.Cents/o.Items)
}

// A boltLedger is in a bolt file.
type boltLedger struct {
	db      *bbolt.DB
	records *bolt.Backend
}

var entriesBucket = []byte("entries")

// A boltEntry is stored under its number.
type boltEntry struct {
	Order string `json:"order"`
	Text  string `json:"text"`
}

func openBolt(path string) (*boltLedger, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		return nil, fmt.Errorf("open the ledger %s: %w (is another consumer running?)", path, err)
	}
	records, err := bolt.New(db, nil)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &boltLedger{db, records}, nil
}

func (l *boltLedger) backend() idem.Backend { return l.records }
func (l *boltLedger) close() error          { return l.db.Close() }

func (l *boltLedger) book(_ context.Context, o order, complete completion) (r idem.Result, err error) {
	err = l.db.Update(func(tx *bbolt.Tx) error {
		entries, err := tx.CreateBucketIfNotExists(entriesBucket)
		if err != nil {
			return err
		}
		number, err := entries.NextSequence()
		if err != nil {
			return err
		}
		doc, err := json.Marshal(boltEntry{o.ID, entry(o)})
		if err != nil {
			return err
		}
		if err := entries.Put(binary.BigEndian.AppendUint64(nil, number), doc); err != nil {
			return err
		}
		r = receipt(number)
		return complete(l.records.WithTx(tx), r)
	})
	return r, err
}

func (l *boltLedger) entries(context.Context) (map[string]int, error) {
	count := map[string]int{}
	err := l.db.View(func(tx *bbolt.Tx) error {
		entries := tx.Bucket(entriesBucket)
		if entries == nil {
			return nil
		}
		return entries.ForEach(func(_, doc []byte) error {
			var e boltEntry
			if err := json.Unmarshal(doc, &e); err != nil {
				return err
			}
			count[e.Order]++
			return nil
		})
	})
	return count, err
}
