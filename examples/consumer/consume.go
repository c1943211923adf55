package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/idem-go/idem"
)

// maxAttempts is how often an order is tried before it is put aside.
const maxAttempts = 3

// errPoison marks what no redelivery mends.
var errPoison = errors.New("put aside")

// A consumer books orders from the broker in a ledger.
type consumer struct {
	js      jetstream.JetStream
	ledger  ledger
	store   *idem.Store
	workers int
	ackWait time.Duration
	work    func(context.Context, order) error // what takes its time before an order is booked
	settled func(jetstream.Msg, idem.Action)   // told of each delivery that was settled
}

// consume runs a consumer until ctx is done.
func consume(ctx context.Context, s settings, stdout io.Writer) (err error) {
	conn, js, err := connect(ctx, s)
	if err != nil {
		return err
	}
	defer conn.Close()
	l, err := openLedger(ctx, s.ledger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	store, err := newStore(l, s.ackWait)
	if err != nil {
		return err
	}
	c := &consumer{js: js, ledger: l, store: store, workers: s.workers, ackWait: s.ackWait, settled: newTally(stdout).add}
	c.work = func(ctx context.Context, _ order) error {
		select {
		case <-time.After(s.work):
			return nil
		case <-ctx.Done():
			return idem.NoEffect(ctx.Err()) // nothing has happened: another consumer may start at once
		}
	}
	return c.run(ctx)
}

// run works on deliveries until ctx is done, and returns when each of them is
// settled.
func (c *consumer) run(ctx context.Context) error {
	durable, err := c.js.Consumer(ctx, ordersStream, bookkeeper)
	if err != nil {
		return err
	}
	deliveries, err := durable.Messages(
		jetstream.PullMaxMessages(c.workers),
		// A request for messages can get lost like everything else. If the broker is
		// silent for two heartbeats the client asks again.
		jetstream.PullHeartbeat(time.Second),
		jetstream.WithMessagesErrOnMissingHeartbeat(false),
	)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	free := make(chan struct{}, c.workers)
	for ctx.Err() == nil {
		msg, err := deliveries.Next(jetstream.NextContext(ctx))
		if err != nil && ctx.Err() == nil {
			deliveries.Stop()
			running.Wait()
			return fmt.Errorf("the broker delivers nothing more: %w", err)
		}
		if err != nil {
			break
		}
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			c.settle(msg, c.handle(ctx, msg))
		})
	}
	// What is here and not begun goes back, so that others need not wait until this
	// consumer counts as dead.
	deliveries.Drain()
	for msg, err := deliveries.Next(); err == nil; msg, err = deliveries.Next() {
		c.settle(msg, context.Canceled)
	}
	running.Wait()
	return nil
}

// handle books the order of a delivery, unless that has been done.
func (c *consumer) handle(ctx context.Context, msg jetstream.Msg) error {
	var o order
	if err := json.Unmarshal(msg.Data(), &o); err != nil {
		return fmt.Errorf("%w: it is no order: %w", errPoison, err)
	}
	// Two producers that write the fields in different order mean the same.
	fingerprint, err := idem.FingerprintJSON(msg.Data())
	if err != nil {
		return fmt.Errorf("%w: it is no order: %w", errPoison, err)
	}
	_, err = c.store.Do(ctx, o.ID, fingerprint, func(ctx context.Context, claim *idem.Claim) (idem.Result, error) {
		// An order that fails again and again, or that takes the process with it,
		// is no use to try once more. Attempts are counted, not deliveries alone:
		// those include the ones that met a running duplicate. But somebody who
		// publishes it again, after mending what was wrong, has new attempts.
		if claim.Attempt > maxAttempts && deliveriesOf(msg) > maxAttempts {
			return idem.Result{}, idem.NoEffect(fmt.Errorf("%w: %d attempts have failed", errPoison, claim.Attempt-1))
		}
		// Do extends the claim as long as this function runs. What follows
		// extends the broker's deadline until then, or until the claim is lost.
		stop := keepInProgress(ctx, msg, c.ackWait/3)
		defer stop()
		if err := c.work(ctx, o); err != nil {
			return idem.Result{}, err
		}
		return c.ledger.book(ctx, o, func(tx idem.Backend, r idem.Result) error {
			return c.store.With(tx).Complete(ctx, claim, r)
		})
	})
	return err
}

// keepInProgress tells the broker that a delivery is being worked on, until ctx is
// done or stop is called.
func keepInProgress(ctx context.Context, msg jetstream.Msg, every time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var told sync.WaitGroup
	told.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = msg.InProgress() // if that gets lost the broker delivers again, and is told to wait
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		told.Wait()
	}
}

// settle tells the broker what has become of a delivery. If that fails, or if the
// process dies before, the order is delivered once more, which does no harm.
func (c *consumer) settle(msg jetstream.Msg, err error) {
	s := idem.Settle(err, deliveriesOf(msg))
	if errors.Is(err, errPoison) {
		s = idem.Settlement{Action: idem.DeadLetter}
	}
	var failed error
	switch s.Action {
	case idem.Ack:
		failed = msg.Ack()
	case idem.Retry:
		failed = msg.NakWithDelay(s.After)
	case idem.DeadLetter:
		failed = c.putAside(msg, err)
	}
	if failed != nil {
		log.Printf("the broker was not told %v: %v", s.Action, failed)
		return
	}
	c.settled(msg, s.Action)
}

// putAside publishes the message among the dead letters, with the reason, and
// then takes it out of the queue. Its id keeps it from being there twice if the
// process dies in between.
func (c *consumer) putAside(msg jetstream.Msg, reason error) error {
	meta, err := msg.Metadata()
	if err != nil {
		return err
	}
	text := strings.Join(strings.Fields(reason.Error()), " ") // a header is one line
	letter := &nats.Msg{Subject: deadOrders, Data: msg.Data(), Header: nats.Header{
		"Reason":     {text},
		"Deliveries": {strconv.FormatUint(meta.NumDelivered, 10)},
	}}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	id := fmt.Sprintf("%s-%d", meta.Stream, meta.Sequence.Stream)
	if _, err := c.js.PublishMsg(ctx, letter, jetstream.WithMsgID(id)); err != nil {
		return err
	}
	return msg.TermWithReason(text)
}

// deliveriesOf returns how often the broker has delivered the message.
func deliveriesOf(msg jetstream.Msg) int {
	meta, err := msg.Metadata()
	if err != nil {
		return 1
	}
	return int(meta.NumDelivered)
}
