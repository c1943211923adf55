package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Names in the broker.
const (
	ordersStream = "ORDERS"
	newOrders    = "orders.new"
	deadStream   = "DEAD"
	deadOrders   = "dead.orders"
	bookkeeper   = "bookkeeper" // the durable consumer
)

// connect returns a connection, which the caller closes, with the streams and the
// consumer set up.
func connect(ctx context.Context, s settings) (*nats.Conn, jetstream.JetStream, error) {
	conn, err := nats.Connect(s.broker, nats.MaxReconnects(-1))
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the broker %s: %w", s.broker, err)
	}
	js, err := jetstream.New(conn)
	if err == nil {
		err = setUp(ctx, js, s.ackWait)
	}
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("set up the broker: %w", err)
	}
	return conn, js, nil
}

func setUp(ctx context.Context, js jetstream.JetStream, ackWait time.Duration) error {
	_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name:      ordersStream,
		Subjects:  []string{"orders.>"},
		Retention: jetstream.WorkQueuePolicy, // an order that is acknowledged is gone
	})
	if err != nil {
		return err
	}
	_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: deadStream, Subjects: []string{"dead.>"}})
	if err != nil {
		return err
	}
	_, err = js.CreateOrUpdateConsumer(ctx, ordersStream, jetstream.ConsumerConfig{
		Durable:   bookkeeper,
		AckPolicy: jetstream.AckExplicitPolicy,
		AckWait:   ackWait,
		// The broker counts deliveries, those that met a running duplicate too, and
		// drops what has reached its limit. The limit is in consume.go, where
		// attempts are counted.
		MaxDeliver: -1,
		// What waits for its redelivery counts as pending, and must not keep back
		// the orders behind it.
		MaxAckPending: -1,
	})
	return err
}

// startBroker starts a broker in this process, on a free port if port is -1.
func startBroker(host string, port int, dir string) (*server.Server, error) {
	broker, err := server.NewServer(&server.Options{
		Host:      host,
		Port:      port,
		JetStream: true,
		StoreDir:  dir,
		NoLog:     true,
		NoSigs:    true,
	})
	if err != nil {
		return nil, err
	}
	broker.Start()
	if !broker.ReadyForConnections(10 * time.Second) {
		broker.Shutdown()
		return nil, fmt.Errorf("the broker does not listen on %s port %d; is another one running?", host, port)
	}
	return broker, nil
}

// serveBroker runs a broker at the settings' URL until ctx is done.
func serveBroker(ctx context.Context, s settings, stdout io.Writer) error {
	u, err := url.Parse(s.broker)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return fmt.Errorf("%s: the port is missing", s.broker)
	}
	broker, err := startBroker(u.Hostname(), port, filepath.Join(os.TempDir(), "idem-example-broker"))
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "broker at", broker.ClientURL())
	<-ctx.Done()
	broker.Shutdown()
	broker.WaitForShutdown()
	return nil
}

// remaining returns how many copies of orders are not settled for good, and how
// many dead letters there are.
func remaining(ctx context.Context, js jetstream.JetStream) (orders, dead uint64, err error) {
	count := func(stream string) uint64 {
		s, e := js.Stream(ctx, stream)
		if e != nil {
			err = errors.Join(err, fmt.Errorf("stream %s: %w", stream, e))
			return 0
		}
		return s.CachedInfo().State.Msgs
	}
	return count(ordersStream), count(deadStream), err
}
