package idem_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/internal/testenv"
)

// Do in a consumer: its error decides what the broker is told.
func ExampleSettle() {
	store, _ := idem.New(memory.New(), &idem.Options{Scope: "mail", NoWait: true})
	deliver := func(id, body string) {
		_, err := store.Do(context.Background(), id, idem.FingerprintOf([]byte(body)), func(context.Context, *idem.Claim) (idem.Result, error) {
			fmt.Println("sending", body)
			return idem.Result{}, nil
		})
		fmt.Println(idem.Settle(err, 1).Action)
	}
	deliver("message-1", "hello")
	deliver("message-1", "hello")   // delivered again
	deliver("message-1", "goodbye") // another message with its id
	// Output:
	// sending hello
	// ack
	// ack
	// dead-letter
}

// PE-16: a handler that fails has not seen the message: its redelivery runs.
func TestPE16_AFailedMessageIsNotSeen(t *testing.T) {
	for _, failure := range []error{errBroken, idem.NoEffect(errBroken)} {
		s := open(t, nil, nil)
		runs := 0
		handle := func(context.Context, *idem.Claim) (idem.Result, error) {
			if runs++; runs == 1 {
				return idem.Result{}, failure
			}
			return result1, nil
		}
		_, err := s.Do(context.Background(), "message-1", payloadA, handle)
		if got := idem.Settle(err, 1); got.Action != idem.Retry || got.After <= 0 {
			t.Errorf("a failed delivery is settled with %+v", got)
		}
		out, err := s.Do(context.Background(), "message-1", payloadA, handle)
		if got := idem.Settle(err, 2); got.Action != idem.Ack || out.Replayed || runs != 2 {
			t.Errorf("its redelivery: %+v, %v after %d runs", out, err, runs)
		}
	}
}

// OP-1: a broker that delivers at least once, consumers that die, fail
// and stall: one effect for each message, none lost, none for ever in a loop.
func TestOP1_ConsumersOfABroker(t *testing.T) {
	const messages = 300
	r := testenv.Rand(t) // not in the bubble, where time begins with the same seed
	synctest.Test(t, func(t *testing.T) {
		store := open(t, nil, &idem.Options{Scope: "orders", Lease: lease, NoWait: true})
		effects := make([]int, messages)
		acknowledged := make([]bool, messages)
		deadLetters := 0
		type delivery struct {
			message  int
			poisoned bool // the key of the message with another body
			at       time.Time
			count    int // of deliveries that were settled
		}
		var queue []delivery
		for m := range messages {
			for range 1 + r.IntN(3) { // each may come several times anyway
				queue = append(queue, delivery{message: m, at: time.Now()})
			}
		}
		rounds := 0
		for ; len(queue) > 0 && rounds < 20*messages; rounds++ {
			i := r.IntN(len(queue))
			d := queue[i]
			queue = append(queue[:i], queue[i+1:]...)
			time.Sleep(time.Until(d.at))
			body := fmt.Sprint("order ", d.message)
			if d.poisoned {
				body = "another order"
			}
			err := consume(store, fmt.Sprint("message-", d.message), body, r, &effects[d.message])
			if err == errDied {
				// The broker hears nothing and delivers again, at once and later.
				queue = append(queue, delivery{d.message, d.poisoned, time.Now(), d.count}, delivery{d.message, d.poisoned, time.Now().Add(2 * lease), d.count})
				continue
			}
			d.count++
			switch settle := idem.Settle(err, d.count); settle.Action {
			case idem.Ack:
				if !acknowledged[d.message] && d.message%50 == 0 {
					queue = append(queue, delivery{message: d.message, poisoned: true, at: time.Now()})
				}
				acknowledged[d.message] = true
				if effects[d.message] == 0 {
					t.Fatalf("message %d was acknowledged and has had no effect", d.message)
				}
			case idem.DeadLetter:
				deadLetters++
				if !d.poisoned {
					t.Fatalf("message %d is dead-lettered: %v", d.message, err)
				}
			case idem.Retry:
				d.at = time.Now().Add(settle.After)
				queue = append(queue, d)
			}
		}
		if len(queue) > 0 {
			t.Fatalf("%d deliveries still go round after %d", len(queue), rounds)
		}
		for m := range messages {
			if effects[m] != 1 || !acknowledged[m] {
				t.Errorf("message %d: %d effects, acknowledged %v", m, effects[m], acknowledged[m])
			}
		}
		if deadLetters != messages/50 {
			t.Errorf("%d dead letters, want %d", deadLetters, messages/50)
		}
	})
}

var errDied = errors.New("the process died")

// consume handles one delivery. The handler fails without effect, fails in a way
// that leaves its outcome open, or dies before the effect; whoever takes over
// asks what has happened, here the counter.
func consume(store *idem.Store, id, body string, r *rand.Rand, effects *int) error {
	ctx := context.Background()
	fate := r.IntN(10)
	fp := idem.FingerprintOf([]byte(body))
	if fate == 0 {
		if c, _, _ := store.Begin(ctx, id, fp); c != nil {
			return errDied // holding the claim
		}
	}
	_, err := store.Do(ctx, id, fp, func(_ context.Context, c *idem.Claim) (idem.Result, error) {
		if c.Takeover && *effects > 0 {
			return idem.Result{}, nil
		}
		switch fate {
		case 1:
			return idem.Result{}, idem.NoEffect(errors.New("database is restarting"))
		case 2:
			*effects++
			return idem.Result{}, errors.New("the reply to the effect was lost")
		}
		*effects++
		return idem.Result{}, nil
	})
	return err
}
