package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/idem-go/idem"
)

// An order is what a customer has ordered.
type order struct {
	Customer string    `json:"customer"`
	Number   int64     `json:"number"` // 1, 2, ... for each customer; set when it is booked
	Item     string    `json:"item"`
	Amount   int       `json:"amount"`
	Cents    int64     `json:"cents"` // for all of it
	Key      string    `json:"key"`   // for the page; nothing is decided by it
	At       time.Time `json:"at"`
}

// Books are where the orders are. They know nothing of idempotency, except that
// an order and the answer to it commit together: that is what book is for.
type books interface {
	// backend has idem's records, in the same storage.
	backend() storage

	// book writes an order, and calls complete in the transaction that does,
	// with the number that the order gets. If complete fails, nothing is
	// written. An error that is errNotBooked means the same; after any other it
	// is not known.
	book(ctx context.Context, o order, complete completion) error

	// summary counts the orders of a customer and returns the last ones, newest
	// first.
	summary(ctx context.Context, customer string) (summary, error)

	close() error
}

// A completion records the answer to an order, by way of tx, which is bound to the
// transaction that writes the order. It may be called again, if the transaction
// has to be run again.
type completion func(tx idem.Backend, o order) error

// A storage is a backend that can tell what is in flight. All of idem's can.
type storage interface {
	idem.Backend
	idem.Lister
}

// A summary is what the books say of a customer.
type summary struct {
	Orders int64   `json:"orders"`
	Cents  int64   `json:"cents"`
	Last   []order `json:"last"`
}

// lastOrders is how many orders a summary has.
const lastOrders = 8

// errNotBooked means that an order was surely not written.
var errNotBooked = errors.New("the order was not booked")

func notBooked(err error) error { return fmt.Errorf("%w: %w", errNotBooked, err) }

// openBooks opens the books that a URL names.
func openBooks(ctx context.Context, url string) (books, error) {
	scheme, rest, _ := strings.Cut(url, ":")
	switch scheme {
	case "bolt":
		path, slashes := strings.CutPrefix(rest, "//")
		if path == "" || slashes && !strings.HasPrefix(path, "/") {
			return nil, fmt.Errorf("store %q: write bolt:file, or bolt:///path/to/file", url)
		}
		return openBolt(path)
	case "postgres", "postgresql":
		return openPostgres(ctx, url)
	case "redis", "rediss":
		return openRedis(url)
	}
	return nil, errors.New("the store is bolt:file, bolt:///path, postgres://... or redis://...") // the URL may have a password in it
}
