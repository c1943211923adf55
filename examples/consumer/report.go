package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/idem-go/idem"
)

// tallyEvery is how many deliveries a line of a tally is about.
const tallyEvery = 25

// tallyLine is how a tally tells of them, and how demo reads it.
const tallyLine = "settled %d: %d ack, %d retry, %d dead-letter\n"

// A tally counts how deliveries were settled.
type tally struct {
	mu    sync.Mutex
	w     io.Writer
	count map[idem.Action]int
	all   int
}

func newTally(w io.Writer) *tally { return &tally{w: w, count: map[idem.Action]int{}} }

func (t *tally) add(_ jetstream.Msg, a idem.Action) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count[a]++
	if t.all++; t.all%tallyEvery == 0 {
		fmt.Fprintf(t.w, tallyLine, t.all, t.count[idem.Ack], t.count[idem.Retry], t.count[idem.DeadLetter])
	}
}

// report tells what is in the ledger and what the broker has left. It is an error
// if an order is booked twice.
func report(ctx context.Context, s settings, stdout io.Writer) (err error) {
	conn, js, err := connect(ctx, s)
	if err != nil {
		return err
	}
	defer conn.Close()
	left, dead, err := remaining(ctx, js)
	if err != nil {
		return err
	}
	l, err := openLedger(ctx, s.ledger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	booked, err := l.entries(ctx)
	if err != nil {
		return err
	}
	entries, twice := 0, 0
	for _, n := range booked {
		entries += n
		if n > 1 {
			twice++
		}
	}
	fmt.Fprintf(stdout, "ledger: %d entries for %d orders\n", entries, len(booked))
	fmt.Fprintf(stdout, "broker: %d messages left, %d dead letters\n", left, dead)
	if twice > 0 {
		return fmt.Errorf("%d orders are booked more than once", twice)
	}
	return nil
}
