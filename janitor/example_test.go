package janitor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/janitor"
)

// Sweep now and then, in the background of the program.
func ExampleRun() {
	backend := memory.New()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- janitor.Run(ctx, backend, nil) }()

	stop() // at the end of the program
	fmt.Println(<-ended)
	// Output:
	// <nil>
}

// Find out what became of charges whose process died, by asking the payment
// provider.
func ExampleOptions_recover() {
	ctx := context.Background()
	backend := memory.New()
	store, _ := idem.New(backend, &idem.Options{OnLapse: idem.Hold})

	// What the provider has: the first process died after its call, the second
	// before.
	provider := map[string]string{}
	for _, order := range []string{"order-1", "order-2", "order-3"} {
		claim, _, _ := store.Begin(ctx, order, idem.Fingerprint{})
		_ = store.Checkpoint(ctx, claim, []byte("about to charge"))
		switch order {
		case "order-1":
			provider[claim.ChildKey("charge")] = "receipt 1"
		case "order-3":
			provider[claim.ChildKey("charge")] = "pending"
		}
		_ = store.Abandon(ctx, claim) // as the end of the lease does
	}

	report, err := janitor.Sweep(ctx, backend, &janitor.Options{
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Recover: func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
			switch receipt := provider[c.ChildKey("charge")]; receipt {
			case "":
				return idem.Result{}, idem.NoEffect(errors.New("the provider knows of no charge"))
			case "pending":
				return idem.Result{}, errors.New("the provider does not know yet")
			default:
				return idem.Result{Code: 201, Body: []byte(receipt)}, nil
			}
		},
	})
	fmt.Println(report.Recovered, "recovered,", report.Freed, "freed,", report.Unresolved, "unresolved")
	fmt.Println(err)
	for _, order := range []string{"order-1", "order-2", "order-3"} {
		r, _ := store.Lookup(ctx, order)
		fmt.Printf("%s is %v %q\n", order, r.Status, r.Result.Body)
	}
	// Output:
	// 1 recovered, 1 freed, 1 unresolved
	// idem: recover "order-3": the provider does not know yet
	// order-1 is completed "receipt 1"
	// order-2 is released ""
	// order-3 is in-progress ""
}
