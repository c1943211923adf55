package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

// A bench has a broker and a ledger, and runs consumers one after another.
type bench struct {
	t      *testing.T
	js     jetstream.JetStream
	ledger ledger
	wait   time.Duration // AckWait; the lease is no shorter than 2 s
	ids    int

	brokerURL, ledgerPath string

	mu      sync.Mutex
	settled map[idem.Action]int
}

func newBench(t *testing.T, ackWait time.Duration) *bench {
	t.Helper()
	t.Parallel() // most of the time these tests wait for deadlines of the broker
	dir := testenv.Dir(t)
	broker, err := startBroker("127.0.0.1", -1, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		broker.Shutdown()
		broker.WaitForShutdown()
	})
	conn, js, err := connect(t.Context(), settings{broker: broker.ClientURL(), ackWait: ackWait})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	b := &bench{t: t, js: js, wait: ackWait, settled: map[idem.Action]int{}, brokerURL: broker.ClientURL(), ledgerPath: filepath.Join(dir, "ledger")}
	b.open()
	return b
}

// open opens the ledger.
func (b *bench) open() {
	b.t.Helper()
	var err error
	if b.ledger, err = openLedger(b.t.Context(), b.ledgerPath); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = b.ledger.close() })
}

// send publishes a message with an id of its own.
func (b *bench) send(doc string) {
	b.t.Helper()
	b.ids++
	if _, err := b.js.Publish(b.t.Context(), newOrders, []byte(doc), jetstream.WithMsgID(fmt.Sprint(b.ids))); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) sendOrder(o order) {
	doc, _ := json.Marshal(o)
	b.send(string(doc))
}

// consumer returns a consumer that works on two orders at a time.
func (b *bench) consumer(work func(context.Context, order) error) *consumer {
	b.t.Helper()
	store, err := newStore(b.ledger, max(b.wait, 2*time.Second))
	if err != nil {
		b.t.Fatal(err)
	}
	return &consumer{js: b.js, ledger: b.ledger, store: store, workers: 2, ackWait: b.wait, work: work, settled: func(_ jetstream.Msg, a idem.Action) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.settled[a]++
	}}
}

// runUntil runs a consumer until something has happened.
func (b *bench) runUntil(c *consumer, what string, happened func() bool) {
	b.t.Helper()
	ctx, stop := context.WithTimeout(b.t.Context(), time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- c.run(ctx) }()
	for !happened() && ctx.Err() == nil {
		look := time.NewTimer(10 * time.Millisecond)
		select {
		case <-look.C:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		b.t.Errorf("waited in vain: %s", what)
	}
	stop()
	if err := <-ended; err != nil {
		b.t.Error(err)
	}
}

// empty reports whether the broker has nothing left.
func (b *bench) empty() bool {
	left, _, err := remaining(b.t.Context(), b.js)
	return err == nil && left == 0
}

// booked is what the ledger has to contain.
func (b *bench) booked(want map[string]int) {
	b.t.Helper()
	got, err := b.ledger.entries(b.t.Context())
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		b.t.Errorf("booked %v, %v, want %v", got, err, want)
	}
}

func noWork(context.Context, order) error { return nil }

// OP-1: a message that is delivered again while its first delivery is worked on is
// not acknowledged for that, and not dead-lettered either, however often it comes.
func TestOP1_RedeliveredWhileTheFirstRuns(t *testing.T) {
	b := newBench(t, 300*time.Millisecond)
	b.sendOrder(nthOrder(1))
	runs := 0
	finish := make(chan struct{})
	c := b.consumer(func(context.Context, order) error {
		runs++
		<-finish
		return nil
	})
	c.ackWait = time.Hour // it does not tell the broker that it is working
	b.runUntil(c, "the end of the order", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.settled[idem.Retry] == 2 {
			if b.settled[idem.Ack] > 0 {
				t.Error("a running order was acknowledged")
			}
			close(finish)
			b.settled[idem.Retry]++
		}
		return b.settled[idem.Ack] > 0 && b.empty()
	})
	if runs != 1 || b.settled[idem.DeadLetter] != 0 {
		t.Errorf("%d runs, settled %v", runs, b.settled)
	}
	b.booked(map[string]int{"order-1": 1})
}

// The broker's deadline is extended with the lease: an order that takes many times
// as long is delivered once.
func TestLongWorkIsDeliveredOnce(t *testing.T) {
	b := newBench(t, 2*time.Second)
	b.sendOrder(nthOrder(1))
	c := b.consumer(func(ctx context.Context, _ order) error {
		select {
		case <-time.After(5 * time.Second): // the work takes that long
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	b.runUntil(c, "the end of the order", b.empty)
	if b.settled[idem.Ack] != 1 || b.settled[idem.Retry] != 0 {
		t.Errorf("settled %v, want one delivery", b.settled)
	}
	b.booked(map[string]int{"order-1": 1})
}

// deaf is a consumer's process that dies between the effect and the
// acknowledgement: the broker hears nothing of what it has done.
func (c *consumer) deaf(ctx context.Context, orders int, t *testing.T) {
	durable, err := c.js.Consumer(ctx, ordersStream, bookkeeper)
	if err != nil {
		t.Fatal(err)
	}
	batch, err := durable.Fetch(orders, jetstream.FetchMaxWait(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for msg := range batch.Messages() {
		if err := c.handle(ctx, msg); err != nil {
			t.Error(err)
		}
		n++
	}
	if n != orders {
		t.Fatalf("%d orders were delivered, want %d", n, orders)
	}
}

// OP-1: dead between effect and acknowledgement, or the acknowledgement lost: each
// order is delivered again, replayed and acknowledged.
func TestOP1_LostAcknowledgements(t *testing.T) {
	b := newBench(t, 500*time.Millisecond)
	want := map[string]int{}
	for n := range 100 {
		b.sendOrder(nthOrder(n))
		want[nthOrder(n).ID] = 1
	}
	b.consumer(noWork).deaf(t.Context(), 100, t)
	b.booked(want)
	b.runUntil(b.consumer(func(context.Context, order) error {
		t.Error("an order ran again")
		return nil
	}), "all orders acknowledged", b.empty)
	if b.settled[idem.Ack] != 100 {
		t.Errorf("settled %v, want 100 acknowledgements", b.settled)
	}
	b.booked(want)
}

// OP-2: the key is the order's number. Two messages, and fields in another order,
// are still one order; and the same number in another consumer's scope is not.
func TestOP2_TheKeyIsTheOrders(t *testing.T) {
	b := newBench(t, time.Second)
	b.send(`{"id":"A1","account":"a","cents":100,"items":1}`)
	b.send(`{"id":"A1","account":"a","cents":100,"items":1}`)
	b.send(`{"items": 1, "cents": 100, "account": "a", "id": "A1"}`)
	var runs atomic.Int64
	c := b.consumer(func(context.Context, order) error {
		runs.Add(1)
		return nil
	})
	b.runUntil(c, "three deliveries", b.empty)
	if runs.Load() != 1 || b.settled[idem.Ack] != 3 {
		t.Errorf("%d runs, settled %v", runs.Load(), b.settled)
	}
	b.booked(map[string]int{"A1": 1})
	mail, err := idem.New(b.ledger.backend(), &idem.Options{Scope: "mailer"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := mail.Lookup(t.Context(), "A1"); err != nil || r.Status != 0 {
		t.Errorf("what is booked counts as mailed: %+v, %v", r, err)
	}
}

// PE-16: an order whose handler fails is not taken for done: it runs again.
func TestPE16_AFailedOrderRunsAgain(t *testing.T) {
	for name, failure := range map[string]error{"outcome unknown": errors.New("reply lost"), "without effect": idem.NoEffect(errors.New("refused"))} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, time.Second)
			b.sendOrder(nthOrder(1))
			var runs atomic.Int64
			c := b.consumer(func(context.Context, order) error {
				if runs.Add(1) == 1 {
					return failure
				}
				return nil
			})
			b.runUntil(c, "the second run", b.empty)
			if runs.Load() != 2 || b.settled[idem.Ack] != 1 || b.settled[idem.Retry] != 1 {
				t.Errorf("%d runs, settled %v", runs.Load(), b.settled)
			}
			b.booked(map[string]int{"order-1": 1})
		})
	}
}

// A consumer that is stopped gives back what it has not finished, at once: here the
// broker would wait for an hour.
func TestStoppingGivesBack(t *testing.T) {
	b := newBench(t, time.Hour)
	for n := range 10 {
		b.sendOrder(nthOrder(n))
	}
	var begun atomic.Int64
	stopped := b.consumer(func(ctx context.Context, _ order) error {
		begun.Add(1)
		<-ctx.Done()
		return idem.NoEffect(ctx.Err())
	})
	b.runUntil(stopped, "two orders begun", func() bool { return begun.Load() == 2 })
	b.booked(map[string]int{})
	b.runUntil(b.consumer(noWork), "the other consumer's end", b.empty)
	entries, err := b.ledger.entries(t.Context())
	if err != nil || len(entries) != 10 {
		t.Errorf("booked %v, %v", entries, err)
	}
}

// What no redelivery mends ends among the dead letters, with the reason, and the
// rest is booked.
func TestDeadLetters(t *testing.T) {
	b := newBench(t, time.Second)
	b.send(`{"id":"A1","account":"a","cents":100,"items":1}`)
	b.runUntil(b.consumer(noWork), "A1", b.empty)
	b.send(`{"id":"A1","account":"a","cents":999,"items":1}`)
	b.send(`no order`)
	b.send(`{"account":"a","cents":100,"items":1}`)
	b.send(`{"id":"` + strings.Repeat("x", 300) + `","items":1}`)
	b.send(`{"id":"A2","account":"broken","cents":100,"items":1}`)
	b.send(`{"id":"A3","account":"a","cents":100,"items":1}`)
	var tries atomic.Int64
	work := func(_ context.Context, o order) error {
		if o.Account == "broken" {
			tries.Add(1)
			return errors.New("this account always fails")
		}
		return nil
	}
	b.runUntil(b.consumer(work), "the broken account given up", b.empty)
	if tries.Load() != maxAttempts {
		t.Errorf("%d tries, want %d", tries.Load(), maxAttempts)
	}
	b.booked(map[string]int{"A1": 1, "A3": 1})
	b.deadLetters(
		"key was used with another payload",
		"put aside: it is no order",
		"the key is empty",
		"the key has 300 bytes",
		"put aside: 3 attempts have failed",
	)
	// Published again, once the fault is mended, it has new attempts.
	b.send(`{"id":"A2","account":"broken","cents":100,"items":1}`)
	b.runUntil(b.consumer(noWork), "A2", b.empty)
	b.booked(map[string]int{"A1": 1, "A2": 1, "A3": 1})
}

// deadLetters reads the dead letters, which have to be there for these reasons.
func (b *bench) deadLetters(reasons ...string) {
	b.t.Helper()
	ctx := b.t.Context()
	reader, err := b.js.CreateConsumer(ctx, deadStream, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
	if err != nil {
		b.t.Fatal(err)
	}
	batch, err := reader.FetchNoWait(100)
	if err != nil {
		b.t.Fatal(err)
	}
	var got []string
	for msg := range batch.Messages() {
		got = append(got, msg.Headers().Get("Reason"))
	}
	for _, reason := range reasons {
		n := 0
		for _, text := range got {
			if strings.Contains(text, reason) {
				n++
			}
		}
		if n != 1 {
			b.t.Errorf("%d dead letters say %q:\n%s", n, reason, strings.Join(got, "\n"))
		}
	}
	if len(got) != len(reasons) {
		b.t.Errorf("%d dead letters, want %d", len(got), len(reasons))
	}
}

// An order that takes its consumer with it, again and again, does not do so for
// ever, and the orders beside it are booked.
func TestPoisonThatKillsItsConsumer(t *testing.T) {
	b := newBench(t, time.Second)
	b.sendOrder(order{ID: "poison", Account: "a", Cents: 100}) // without items
	for n := range 10 {
		b.sendOrder(nthOrder(n))
	}
	if err := b.ledger.close(); err != nil {
		t.Fatal(err)
	}
	deaths := 0
	for !b.empty() {
		if deaths > maxAttempts {
			t.Fatalf("the consumer died %d times", deaths)
		}
		if stderr := b.process(); stderr != "" {
			deaths++
			if !strings.Contains(stderr, "integer divide by zero") {
				t.Fatal(stderr)
			}
		}
	}
	if deaths != maxAttempts {
		t.Errorf("the consumer died %d times, want %d", deaths, maxAttempts)
	}
	b.open()
	entries, err := b.ledger.entries(t.Context())
	if err != nil || len(entries) != 10 || entries["poison"] != 0 {
		t.Errorf("booked %v, %v", entries, err)
	}
	b.deadLetters("put aside: 3 attempts have failed")
}

// process runs a consumer in a process of its own, until it dies or the broker has
// nothing left. It returns what it died of, or nothing.
func (b *bench) process() (stderr string) {
	b.t.Helper()
	c := exec.Command(os.Args[0], "consume", "-broker", b.brokerURL, "-ledger", b.ledgerPath, "-ack-wait", b.wait.String())
	var text bytes.Buffer
	c.Stderr = &text
	if err := c.Start(); err != nil {
		b.t.Fatal(err)
	}
	died := make(chan error, 1)
	go func() { died <- c.Wait() }()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for range look.C {
		select {
		case err := <-died:
			return fmt.Sprint(err, "\n", text.String())
		default:
		}
		if b.empty() {
			if err := c.Process.Signal(syscall.SIGTERM); err != nil {
				b.t.Error(err)
			}
			if err := <-died; err != nil {
				b.t.Errorf("%v: %s", err, text.String())
			}
			return ""
		}
	}
	return ""
}
