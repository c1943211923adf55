package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/idem-go/idem/backend/bolt"
)

// boltBooks has the orders in the file in which idem's records are: a bucket for
// each customer, with the orders by their numbers.
type boltBooks struct {
	db *bbolt.DB
	b  *bolt.Backend
}

var ordersBucket = []byte("orders")

func openBolt(path string) (books, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, fmt.Errorf("open %s: another process has it; is the shop open already?", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	b, err := bolt.New(db, nil)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &boltBooks{db, b}, nil
}

func (s *boltBooks) backend() storage { return s.b }
func (s *boltBooks) close() error     { return s.db.Close() }

func (s *boltBooks) book(_ context.Context, o order, complete completion) error {
	tx, err := s.db.Begin(true)
	if err != nil {
		return notBooked(err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if o.Number, err = put(tx, o); err != nil {
		return notBooked(err)
	}
	if err := complete(s.b.WithTx(tx), o); err != nil {
		return notBooked(err)
	}
	return tx.Commit()
}

// put writes an order, and returns the number that it gets.
func put(tx *bbolt.Tx, o order) (number int64, err error) {
	all, err := tx.CreateBucketIfNotExists(ordersBucket)
	if err != nil {
		return 0, err
	}
	own, err := all.CreateBucketIfNotExists([]byte(o.Customer))
	if err != nil {
		return 0, err
	}
	next, err := own.NextSequence()
	if err != nil {
		return 0, err
	}
	o.Number = int64(next)
	doc, err := json.Marshal(o)
	if err != nil {
		return 0, err
	}
	return o.Number, own.Put(binary.BigEndian.AppendUint64(nil, next), doc)
}

func (s *boltBooks) summary(_ context.Context, customer string) (sum summary, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		all := tx.Bucket(ordersBucket)
		if all == nil {
			return nil
		}
		own := all.Bucket([]byte(customer))
		if own == nil {
			return nil
		}
		// It counts what is there, instead of trusting a counter.
		cursor := own.Cursor()
		for number, doc := cursor.Last(); number != nil; number, doc = cursor.Prev() {
			var o order
			if err := json.Unmarshal(doc, &o); err != nil {
				return fmt.Errorf("order %d of %s: %w", binary.BigEndian.Uint64(number), customer, err)
			}
			sum.Orders++
			sum.Cents += o.Cents
			if len(sum.Last) < lastOrders {
				sum.Last = append(sum.Last, o)
			}
		}
		return nil
	})
	return sum, err
}
