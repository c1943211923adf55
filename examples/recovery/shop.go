package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/bolt"
	"github.com/idem-go/idem/janitor"
)

// options are what the flags say.
type options struct {
	provider       string // address
	lease, timeout time.Duration
	hang           *hang
}

// A shop charges orders.
type shop struct {
	backend  *bolt.Backend
	store    *idem.Store
	rules    idem.Options
	provider *client
	hang     *hang
}

func openShop(path string, o options) (*shop, error) {
	// Shared, since a recovery may run beside charges. A real service would have the
	// file for itself, and the janitor in the background.
	backend, err := bolt.Open(path, &bolt.Options{Shared: true, OpenTimeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	s := &shop{
		backend: backend,
		// Hold: nobody charges an order again before it is known what became of
		// the first charge. The lease is longer than a request can be under way, so
		// that what the provider does not know when a claim is recovered, it will
		// not hear of any more.
		rules:    idem.Options{Scope: "orders", OnLapse: idem.Hold, Lease: o.lease, Retention: idem.MaxRetention},
		provider: newClient(o.provider, o.timeout, o.hang.atProvider()),
		hang:     o.hang,
	}
	if s.store, err = idem.New(backend, &s.rules); err != nil {
		return nil, errors.Join(err, backend.Close())
	}
	return s, nil
}

func (s *shop) close() error { return s.backend.Close() }

// charge charges an order, once, and returns the receipt to whoever asks again.
func (s *shop) charge(ctx context.Context, order string, cents int64) (receipt string, replayed bool, err error) {
	fp := idem.FingerprintOf([]byte(order), strconv.AppendInt(nil, cents, 10))
	out, err := s.store.Do(ctx, order, fp, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
		s.hang.reached(claimed)
		reference := c.ChildKey("charge")
		// Before the call: whoever finds this note has to ask, and whoever finds
		// none knows that there was no call.
		if err := s.store.Checkpoint(ctx, c, []byte(reference)); err != nil {
			return idem.Result{}, idem.NoEffect(err)
		}
		s.hang.reached(checkpointed)
		booked, err := s.provider.charge(ctx, reference, cents)
		if err != nil {
			return idem.Result{}, err // it may be booked, or not
		}
		s.hang.reached(charged)
		return receiptFor(booked), nil
	})
	if err != nil && !errors.Is(err, idem.ErrNotRecorded) {
		return "", false, err
	}
	s.hang.reached(completed)
	return string(out.Result.Body), out.Replayed, err
}

func receiptFor(c charge) idem.Result {
	return idem.Result{Code: 201, Meta: map[string]string{"reference": c.Reference}, Body: []byte(c.Receipt)}
}

// findOut is what the janitor calls for a charge whose process died.
func (s *shop) findOut(ctx context.Context, c *idem.Claim) (idem.Result, error) {
	if len(c.Checkpoint) == 0 {
		return idem.Result{}, idem.NoEffect(errors.New("it died before it called the provider"))
	}
	booked, err := s.provider.find(ctx, string(c.Checkpoint))
	switch {
	case errors.Is(err, errNotFound):
		return idem.Result{}, idem.NoEffect(err)
	case err != nil:
		return idem.Result{}, err // asked again later
	}
	return receiptFor(booked), nil
}

// recoverAll runs the janitor until no order is open.
func (s *shop) recoverAll(ctx context.Context, w io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var total janitor.Report
	var failed error
	err := janitor.Run(ctx, s.backend, &janitor.Options{
		Interval: s.rules.Lease / 5,
		Store:    &s.rules,
		Recover:  s.findOut,
		Observe: func(ctx context.Context, r janitor.Report) {
			total.Recovered += r.Recovered
			total.Freed += r.Freed
			open, err := s.list(ctx, idem.InProgress)
			if failed = err; err != nil || len(open) == 0 {
				stop()
			}
		},
	})
	fmt.Fprintf(w, "%d completed, %d freed\n", total.Recovered, total.Freed)
	return errors.Join(err, failed)
}

// list returns the orders in a status.
func (s *shop) list(ctx context.Context, status idem.Status) (orders []idem.Entry, err error) {
	for cursor := ""; ; {
		var some []idem.Entry
		some, cursor, err = s.backend.List(ctx, idem.Query{Prefix: idem.ScopePrefix(s.rules.Scope), Status: status, Cursor: cursor})
		if orders = append(orders, some...); err != nil || cursor == "" {
			return orders, err
		}
	}
}

// compare compares the orders with the provider's charges. Each completed order has
// to have one charge, and each charge a completed order.
func (s *shop) compare(ctx context.Context, w io.Writer) error {
	charges, err := s.provider.all(ctx)
	if err != nil {
		return err
	}
	orders, err := s.list(ctx, idem.Completed)
	if err != nil {
		return err
	}
	receipts := map[string][]string{} // by reference
	for _, c := range charges {
		receipts[c.Reference] = append(receipts[c.Reference], c.Receipt)
	}
	var wrong []error
	for _, o := range orders {
		_, order := idem.SplitKey(o.Key)
		reference := o.Record.Result.Meta["reference"]
		if got := receipts[reference]; len(got) != 1 || got[0] != string(o.Record.Result.Body) {
			wrong = append(wrong, fmt.Errorf("%s has the receipt %q, and the provider has %q", order, o.Record.Result.Body, got))
		}
		delete(receipts, reference)
	}
	for reference, got := range receipts {
		wrong = append(wrong, fmt.Errorf("the provider has %q for the reference %s, of which no order knows", got, reference))
	}
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	fmt.Fprintf(w, "%d orders and %d charges: they agree\n", len(orders), len(charges))
	return nil
}
