package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemtest"
	"github.com/idem-go/idem/internal/testpg"
)

// An order is published again and again, in every way, and the consumer killed in
// the middle of it: it is booked once. Each copy is a message of its own, and goes
// through the broker. The processes that are killed find the database in their
// environment.
func TestBookingIsIdempotent(t *testing.T) {
	const envServer = "CONSUMER_TEST_URL"
	for _, storage := range []string{"bolt", "postgres"} {
		t.Run(storage, func(t *testing.T) {
			if storage == "postgres" && os.Getenv(envServer) == "" {
				t.Setenv(envServer, testpg.New(t).URL())
			}
			idemtest.Run(t, idemtest.Operation{
				Setup: func(t testing.TB, e *idemtest.Env) idemtest.Subject {
					at := filepath.Join(e.Dir(), "ledger") // the database outlives the process too
					if storage == "postgres" {
						at = os.Getenv(envServer)
					}
					return consumerUnderTest(t, e, at)
				},
				Payload: func(n int) []byte { return fmt.Append(nil, 100+n) },
			})
		})
	}
}

// consumerUnderTest runs a consumer at a broker of its own, whose files are in e.Dir
// so that a process that is killed leaves nothing behind.
func consumerUnderTest(t testing.TB, e *idemtest.Env, at string) idemtest.Subject {
	ctx := context.Background()
	broker, err := startBroker("127.0.0.1", -1, filepath.Join(e.Dir(), "broker"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		broker.Shutdown()
		broker.WaitForShutdown()
	})
	s := settings{broker: broker.ClientURL(), ackWait: 5 * time.Second, workers: 16} // more than there are callers
	conn, js, err := connect(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	l, err := openLedger(ctx, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	shown := &shownLedger{l, e, e.Wrap(l.backend())}
	store, err := newStore(shown, s.ackWait)
	if err != nil {
		t.Fatal(err)
	}
	p := &publisher{js: js}
	c := &consumer{js: js, ledger: shown, store: store, workers: s.workers, ackWait: s.ackWait, work: noWork, settled: p.settled}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.run(running) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return idemtest.Subject{
		Send: p.send,
		Effects: func() (n int) {
			entries, err := l.entries(ctx)
			if err != nil {
				t.Error(err)
			}
			for _, of := range entries {
				n += of
			}
			return n
		},
	}
}

// shownLedger shows the kit the moment in a transaction at which the entry is
// written and the claim is completed.
type shownLedger struct {
	ledger
	e       *idemtest.Env
	records idem.Backend
}

func (l *shownLedger) backend() idem.Backend { return l.records }

func (l *shownLedger) book(ctx context.Context, o order, complete completion) (idem.Result, error) {
	return l.ledger.book(ctx, o, func(tx idem.Backend, r idem.Result) error {
		return l.e.Effect(ctx, func() error { return complete(tx, r) })
	})
}

// A publisher publishes orders, and hears what becomes of their first delivery. What
// is to be tried again the broker delivers again besides.
type publisher struct {
	js    jetstream.JetStream
	waits sync.Map // from the id of a message to a chan idem.Action
}

// settled is told by the consumer.
func (p *publisher) settled(msg jetstream.Msg, a idem.Action) {
	if first, ok := p.waits.LoadAndDelete(msg.Headers().Get(jetstream.MsgIDHeader)); ok {
		first.(chan idem.Action) <- a
	}
}

func (p *publisher) send(ctx context.Context, r idemtest.Request) (string, error) {
	cents, err := strconv.ParseInt(string(r.Payload), 10, 64)
	if err != nil {
		return "", err
	}
	doc, err := json.Marshal(order{ID: r.Key, Account: "DE01", Cents: cents, Items: 1})
	if err != nil {
		return "", err
	}
	id := rand.Text()
	first := make(chan idem.Action, 1)
	p.waits.Store(id, first)
	if _, err := p.js.Publish(ctx, newOrders, doc, jetstream.WithMsgID(id)); err != nil {
		return "", err
	}
	select {
	case a := <-first:
		switch a {
		case idem.Ack:
			return "", nil
		case idem.DeadLetter:
			return "", fmt.Errorf("put aside: %w", idemtest.ErrConflict)
		}
		return "", errors.New("the broker was asked to deliver the order again")
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
