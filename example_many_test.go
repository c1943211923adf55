package idem_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// A consumer handles what it has fetched as one batch. One message is there twice,
// one fails, and the whole batch is delivered again.
func ExampleStore_DoAll() {
	type message struct{ id, body string }
	store, _ := idem.New(memory.New(), &idem.Options{Scope: "mail"})
	attempts := 0
	consume := func(fetched []message) {
		items := make([]idem.Item, len(fetched))
		for i, m := range fetched {
			items[i] = idem.Item{Key: m.id, Fingerprint: idem.FingerprintOf([]byte(m.body))}
		}
		ends := store.DoAll(context.Background(), items, func(_ context.Context, tasks []*idem.Task) error {
			for _, t := range tasks {
				if m := fetched[t.Item]; m.id == "m3" && attempts == 0 {
					attempts++
					t.End(idem.Result{}, idem.NoEffect(errors.New("no such mailbox yet")))
				} else {
					fmt.Println("sending", m.body)
					t.End(idem.Result{}, nil)
				}
			}
			return nil
		})
		for i, end := range ends {
			fmt.Println(fetched[i].id, idem.Settle(end.Err, 1).Action, "replayed:", end.Replayed)
		}
	}
	batch := []message{{"m1", "hello"}, {"m2", "how are you"}, {"m1", "hello"}, {"m3", "goodbye"}}
	consume(batch)
	fmt.Println("again")
	consume(batch)
	// Output:
	// sending hello
	// sending how are you
	// m1 ack replayed: false
	// m2 ack replayed: false
	// m1 ack replayed: true
	// m3 retry replayed: false
	// again
	// sending goodbye
	// m1 ack replayed: true
	// m2 ack replayed: true
	// m1 ack replayed: true
	// m3 ack replayed: false
}

// The parts of DoAll one by one, for a program that ends its claims elsewhere. It
// has to be done within the lease, or to call ExtendAll.
func ExampleStore_BeginAll() {
	ctx := context.Background()
	store, _ := idem.New(memory.New(), nil)
	items := []idem.Item{{Key: "row-1"}, {Key: "row-2"}, {Key: ""}}
	for range 2 {
		var done []idem.Completion
		for i, b := range store.BeginAll(ctx, items) {
			switch {
			case b.Claim != nil:
				fmt.Printf("importing %s\n", b.Claim.Key)
				done = append(done, idem.Completion{Claim: b.Claim, Result: idem.Result{Body: fmt.Appendf(nil, "entry %d", i)}})
			case b.Done != nil:
				fmt.Printf("%s is %s\n", items[i].Key, b.Done.Result.Body)
			case errors.Is(b.Err, idem.ErrKey):
				fmt.Printf("item %d has no usable key\n", i)
			default:
				fmt.Println(b.Err)
			}
		}
		if err := errors.Join(store.CompleteAll(ctx, done)...); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// importing row-1
	// importing row-2
	// item 2 has no usable key
	// row-1 is entry 0
	// row-2 is entry 1
	// item 2 has no usable key
}
