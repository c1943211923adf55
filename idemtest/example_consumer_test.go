package idemtest_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/bolt"
	"github.com/idem-go/idem/idemtest"
)

// A consumer books messages into a file, in which idem's records are too: claim,
// booking and result commit together.
type consumer struct {
	backend *bolt.Backend
	store   *idem.Store
	book    func(ctx context.Context, tx *bbolt.Tx, message []byte) error
}

var bookings = []byte("bookings")

// book is what the program does with a message.
func book(_ context.Context, tx *bbolt.Tx, message []byte) error {
	b, err := tx.CreateBucketIfNotExists(bookings)
	if err != nil {
		return err
	}
	n, err := b.NextSequence()
	if err != nil {
		return err
	}
	return b.Put(fmt.Append(nil, n), message)
}

// handle handles a delivery and says how to settle it with the broker.
func (c *consumer) handle(ctx context.Context, id string, message []byte, delivery int) idem.Settlement {
	_, err := c.backend.Do(ctx, c.store, id, idem.FingerprintOf(message), func(ctx context.Context, tx *bbolt.Tx, _ *idem.Claim) (idem.Result, error) {
		return idem.Result{}, c.book(ctx, tx, message)
	})
	return idem.Settle(err, delivery)
}

// testConsumer is the whole test of a consumer of messages. Its file is in e.Dir,
// so the process is killed too.
func testConsumer(t *testing.T) {
	idemtest.Run(t, idemtest.Operation{
		Setup: func(t testing.TB, e *idemtest.Env) idemtest.Subject {
			db, err := bbolt.Open(filepath.Join(e.Dir(), "books.db"), 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			program := newConsumer(t, db)
			program.book = func(ctx context.Context, tx *bbolt.Tx, message []byte) error {
				return e.Effect(ctx, func() error { return book(ctx, tx, message) })
			}
			return idemtest.Subject{
				Send: func(ctx context.Context, r idemtest.Request) (string, error) {
					switch program.handle(ctx, r.Key, r.Payload, 1).Action {
					case idem.Ack:
						return "", nil
					case idem.DeadLetter:
						return "", idemtest.ErrConflict
					}
					return "", errors.New("to be delivered again")
				},
				Effects: func() int { return countBookings(t, db) },
			}
		},
		Payload: func(n int) []byte { return fmt.Appendf(nil, `{"account":7,"cents":%d}`, 100+n) },
	})
}

func newConsumer(t testing.TB, db *bbolt.DB) *consumer {
	backend, err := bolt.New(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	store, err := idem.New(backend, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &consumer{backend, store, book}
}

func countBookings(t testing.TB, db *bbolt.DB) (n int) {
	err := db.View(func(tx *bbolt.Tx) error {
		if b := tx.Bucket(bookings); b != nil {
			n = b.Stats().KeyN
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A consumer whose effect commits together with idem's records. In the program's
// own tests, testConsumer is called TestConsumer.
func Example_consumer() {
	_ = testConsumer
	// Output:
}
