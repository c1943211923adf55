package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// An order is what the messages are about.
type order struct {
	ID      string `json:"id"` // given by whoever placed it, and the same in every copy
	Account string `json:"account"`
	Cents   int64  `json:"cents"`
	Items   int64  `json:"items"`
}

// nthOrder returns an order for the demo.
func nthOrder(n int) order {
	return order{ID: fmt.Sprintf("order-%d", n), Account: fmt.Sprintf("account-%d", n%17), Cents: int64(n%1000 + 1), Items: int64(n%3 + 1)}
}

// publish publishes each order twice. The copies have different message ids, so
// that the broker, which drops repetitions of an id for some minutes, takes them
// for two messages: as from a producer that was restarted and has sent its
// outbox a second time.
func publish(ctx context.Context, s settings, stdout io.Writer) error {
	conn, js, err := connect(ctx, s)
	if err != nil {
		return err
	}
	defer conn.Close()
	var sent []jetstream.PubAckFuture
	for n := range s.orders {
		for c := range 2 {
			doc, err := json.Marshal(nthOrder(n))
			if err != nil {
				return err
			}
			msg := &nats.Msg{Subject: newOrders, Data: doc}
			ack, err := js.PublishMsgAsync(msg, jetstream.WithMsgID(fmt.Sprintf("order-%d-copy-%d", n, c)),
				jetstream.WithStallWait(time.Minute)) // a few thousand may be on their way at a time
			if err != nil {
				return err
			}
			sent = append(sent, ack)
		}
	}
	for _, ack := range sent {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return fmt.Errorf("publish: %w", err)
		case <-ctx.Done():
			return errors.New("stopped by a signal; publish again")
		}
	}
	fmt.Fprintf(stdout, "published %d orders, each twice\n", s.orders)
	return nil
}
