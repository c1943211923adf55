package idemtest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemtest"
)

// A single situation: the database executes the claim, and its reply is lost.
func ExampleFaulty() {
	backend, faults := idemtest.Faulty(memory.New())
	store, _ := idem.New(backend, nil)

	faults.Nth(1, idemtest.ReplyLost)
	out, err := store.Do(context.Background(), "order-1", idem.Fingerprint{}, func(context.Context, *idem.Claim) (idem.Result, error) {
		return idem.Result{Body: []byte("charged")}, nil
	})
	fmt.Printf("%s %v\n", out.Result.Body, err)
	for _, c := range faults.Calls() {
		fmt.Println(c.N, c.Method, c.Record.Status, c.Fault.Err)
	}
	// Output:
	// charged <nil>
	// 1 Swap in-progress idemtest: the storage was made to fail
	// 2 Swap in-progress <nil>
	// 3 Swap completed <nil>
}

// A lease and a retention end without anybody waiting for them.
func ExampleAging() {
	ctx := context.Background()
	backend, clock := idemtest.Aging(memory.New())
	store, _ := idem.New(backend, nil)

	_, _, _ = store.Begin(ctx, "order-1", idem.Fingerprint{}) // and then the process dies
	clock.Lapse()
	claim, _, _ := store.Begin(ctx, "order-1", idem.Fingerprint{})
	fmt.Println("attempt", claim.Attempt, "takeover", claim.Takeover)

	_ = store.Complete(ctx, claim, idem.Result{})
	clock.Advance(idem.MinRetention)
	claim, _, _ = store.Begin(ctx, "order-1", idem.Fingerprint{})
	fmt.Println("attempt", claim.Attempt, "takeover", claim.Takeover)
	// Output:
	// attempt 2 takeover true
	// attempt 1 takeover false
}

// Many callers in the same moment.
func ExampleBarrier() {
	store, _ := idem.New(memory.New(), &idem.Options{NoWait: true})
	barrier := idemtest.NewBarrier(10)
	var mu sync.Mutex
	claims, refused := 0, 0
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			_ = barrier.Wait(context.Background())
			claim, _, err := store.Begin(context.Background(), "order-1", idem.Fingerprint{})
			mu.Lock()
			defer mu.Unlock()
			if claim != nil {
				claims++
			}
			if errors.Is(err, idem.ErrInProgress) {
				refused++
			}
		})
	}
	all.Wait()
	fmt.Println(claims, "claim,", refused, "refused")
	// Output: 1 claim, 9 refused
}
