package idem_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// Run an operation once per key: the retry gets the same answer.
func Example() {
	ctx := context.Background()
	store, err := idem.New(memory.New(), nil)
	if err != nil {
		panic(err)
	}
	order := []byte(`{"order": 4711, "amount": 100}`)
	for range 2 { // the second call is the retry of a caller who saw no answer
		out, err := store.Do(ctx, "order-4711", idem.FingerprintOf(order),
			func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
				fmt.Println("charging the card")
				return idem.Result{Code: 201, Body: []byte("receipt 1")}, nil
			})
		fmt.Printf("%d %s replayed=%v err=%v\n", out.Result.Code, out.Result.Body, out.Replayed, err)
	}
	// Output:
	// charging the card
	// 201 receipt 1 replayed=false err=<nil>
	// 201 receipt 1 replayed=true err=<nil>
}

// Requests and responses that are JSON need no encoding of your own.
func ExampleCall() {
	type Payment struct{ Amount int }
	type Receipt struct{ Number int }

	store, _ := idem.New(memory.New(), nil)
	charge := func(ctx context.Context, p Payment) (Receipt, error) {
		fmt.Println("charging", p.Amount)
		return Receipt{Number: 1}, nil
	}
	for _, p := range []Payment{{100}, {100}, {250}} {
		r, err := idem.Call(context.Background(), store, "order-4711", p, charge)
		if errors.Is(err, idem.ErrMismatch) {
			fmt.Println("conflict:", err)
			continue
		}
		fmt.Println("receipt", r.Number, err)
	}
	// Output:
	// charging 100
	// receipt 1 <nil>
	// receipt 1 <nil>
	// conflict: idem: begin "order-4711": key was used with another payload (attempt 1 with the first payload is completed; use a new key for another operation)
}

// Handle the outcomes one by one, without Do. This program has no heartbeat: its
// work has to end within the lease.
func ExampleStore_Begin() {
	ctx := context.Background()
	store, _ := idem.New(memory.New(), nil)
	handle := func(key string, body []byte) {
		claim, done, err := store.Begin(ctx, key, idem.FingerprintOf(body))
		switch {
		case claim != nil:
			defer store.Release(ctx, claim) // does nothing after Complete
			err := store.Complete(ctx, claim, idem.Result{Code: 201, Body: []byte("created")})
			fmt.Println("ran:", err)
		case done != nil:
			fmt.Printf("replay: %d %s\n", done.Result.Code, done.Result.Body)
		case errors.Is(err, idem.ErrInProgress):
			fmt.Println("busy: come back later")
		case errors.Is(err, idem.ErrMismatch):
			fmt.Println("conflict")
		default:
			fmt.Println("not run:", err) // fail closed
		}
	}
	handle("k", []byte("a"))
	handle("k", []byte("a"))
	handle("k", []byte("b"))
	handle("", []byte("a"))
	// Output:
	// ran: <nil>
	// replay: 201 created
	// conflict
	// not run: idem: begin: bad key: the key is empty; the caller has to name the operation, and name it the same in every retry
}

// Under Hold an operation whose outcome is unknown waits for a decision.
func ExampleStore_Resolve() {
	ctx := context.Background()
	store, _ := idem.New(memory.New(), &idem.Options{OnLapse: idem.Hold})
	fp := idem.FingerprintOf([]byte("payment"))
	pay := func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
		if err := store.Checkpoint(ctx, c, []byte("asking the bank, reference "+c.ChildKey("pay")[:8])); err != nil {
			return idem.Result{}, idem.NoEffect(err) // nothing has been sent
		}
		return idem.Result{}, errors.New("the bank did not answer")
	}
	_, err := store.Do(ctx, "order-1", fp, pay)
	fmt.Println(err)
	_, err = store.Do(ctx, "order-1", fp, pay)
	var held *idem.Error
	if errors.As(err, &held) && errors.Is(err, idem.ErrUnresolved) {
		fmt.Printf("attempt %d is open: %s\n", held.Record.Attempt, held.Record.Checkpoint)
		// Somebody looks it up at the bank: it was paid.
		err = store.Resolve(ctx, "order-1", held.Record.Attempt, idem.Result{Code: 200, Body: []byte("paid")})
		fmt.Println(err)
	}
	out, err := store.Do(ctx, "order-1", fp, pay)
	fmt.Printf("%s %v\n", out.Result.Body, err)
	// Output:
	// the bank did not answer
	// attempt 1 is open: asking the bank, reference om3ywfpw
	// <nil>
	// paid <nil>
}

// ... or that it did not happen.
func ExampleStore_Forget() {
	ctx := context.Background()
	store, _ := idem.New(memory.New(), &idem.Options{OnLapse: idem.Hold})
	fp := idem.FingerprintOf([]byte("payment"))
	claim, _, _ := store.Begin(ctx, "order-1", fp)
	_ = store.Abandon(ctx, claim)

	_, _, err := store.Begin(ctx, "order-1", fp)
	fmt.Println(errors.Is(err, idem.ErrUnresolved))
	fmt.Println(store.Forget(ctx, "order-1", 1))
	claim, _, err = store.Begin(ctx, "order-1", fp)
	fmt.Println(claim.Attempt, claim.Takeover, err)
	// Output:
	// true
	// <nil>
	// 2 false <nil>
}

// Reclaim an open attempt to find out what it did, with its checkpoint at hand.
func ExampleStore_Reclaim() {
	ctx := context.Background()
	store, _ := idem.New(memory.New(), &idem.Options{OnLapse: idem.Hold})
	claim, _, _ := store.Begin(ctx, "order-1", idem.Fingerprint{})
	_ = store.Checkpoint(ctx, claim, []byte("bank reference 99"))
	_ = store.Abandon(ctx, claim)

	found, err := store.Reclaim(ctx, "order-1", 1)
	fmt.Printf("attempt %d looks up %s, err %v\n", found.Attempt, found.Checkpoint, err)
	fmt.Println(store.Complete(ctx, found, idem.Result{Code: 200}))
	// Output:
	// attempt 2 looks up bank reference 99, err <nil>
	// <nil>
}

// A claim travels as text: a worker completes what an API server began.
func ExampleClaim_MarshalText() {
	ctx := context.Background()
	store, _ := idem.New(memory.New(), nil)
	claim, _, _ := store.Begin(ctx, "export-7", idem.Fingerprint{})
	message, _ := claim.MarshalText() // put it in the queue

	var received idem.Claim
	fmt.Println(received.UnmarshalText(message))
	fmt.Println(store.Complete(ctx, &received, idem.Result{Body: []byte("7.csv")}))
	fmt.Println(store.Extend(ctx, claim)) // the server's copy learns that it is over
	// Output:
	// <nil>
	// <nil>
	// idem: extend "export-7": claim is lost (attempt 1 is completed)
}

// A worker runs an operation that an API server has claimed, with the claim kept
// alive meanwhile. A copy that comes later gets the result.
func ExampleStore_Run() {
	ctx := context.Background()
	store, _ := idem.New(memory.New(), nil)
	claim, _, _ := store.Begin(ctx, "export-7", idem.Fingerprint{})
	message, _ := claim.MarshalText() // put it in the queue

	for range 2 {
		var received idem.Claim
		_ = received.UnmarshalText(message)
		out, err := store.Run(ctx, &received, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
			fmt.Println("exporting")
			return idem.Result{Body: []byte("7.csv")}, nil
		})
		fmt.Printf("%s replayed=%v err=%v\n", out.Result.Body, out.Replayed, err)
	}
	// Output:
	// exporting
	// 7.csv replayed=false err=<nil>
	// 7.csv replayed=true err=<nil>
}

// Long work tells how far it has got. Whoever takes over goes on from there.
func ExampleStore_Checkpoint() {
	ctx := context.Background()
	store, _ := idem.New(memory.New(), nil)
	step := func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
		if string(c.Checkpoint) == "page 40" {
			fmt.Println("going on after", string(c.Checkpoint))
			return idem.Result{Body: []byte("100 pages")}, nil
		}
		_ = store.Checkpoint(ctx, c, []byte("page 40"))
		return idem.Result{}, errors.New("the connection broke")
	}
	_, err := store.Do(ctx, "import", idem.Fingerprint{}, step)
	fmt.Println(err)
	out, err := store.Do(ctx, "import", idem.Fingerprint{}, step)
	fmt.Println(string(out.Result.Body), err)
	// Output:
	// the connection broke
	// going on after page 40
	// 100 pages <nil>
}

// Say that nothing happened, and the key is free for a corrected retry.
func ExampleNoEffect() {
	store, _ := idem.New(memory.New(), nil)
	register := func(name string) {
		_, err := store.Do(context.Background(), "registration-1", idem.FingerprintOf([]byte(name)),
			func(context.Context, *idem.Claim) (idem.Result, error) {
				if name == "" {
					return idem.Result{}, idem.NoEffect(errors.New("the name is missing"))
				}
				return idem.Result{Code: 201}, nil
			})
		fmt.Println(err)
	}
	register("")
	register("Ada")
	// Output:
	// the name is missing
	// <nil>
}

// Tenants have a scope each: their keys never meet.
func ExampleStore_Scoped() {
	ctx := context.Background()
	store, _ := idem.New(memory.New(), nil)
	for _, tenant := range []string{"acme", "globex"} {
		claim, _, err := store.Scoped(tenant).Begin(ctx, "order-1", idem.Fingerprint{})
		fmt.Println(tenant, claim.Attempt, err)
	}
	// Output:
	// acme 1 <nil>
	// globex 1 <nil>
}

// A daily job is keyed by its local date, planned time and zone, so that the
// hour that comes twice in autumn is one run; an hourly one by its instant in
// UTC.
func ExampleStore_Do_scheduled() {
	store, _ := idem.New(memory.New(), nil)
	run := func(key string) {
		out, err := store.Do(context.Background(), key, idem.Fingerprint{}, func(context.Context, *idem.Claim) (idem.Result, error) {
			return idem.Result{}, nil
		})
		fmt.Printf("%s replayed=%v %v\n", key, out.Replayed, err)
	}
	// The clock in Berlin shows 02:30 twice on this day, in summer and in
	// winter time.
	for _, started := range []time.Time{
		time.Date(2026, 10, 25, 2, 30, 0, 0, time.FixedZone("CEST", 2*3600)),
		time.Date(2026, 10, 25, 2, 30, 0, 0, time.FixedZone("CET", 1*3600)),
	} {
		run("report " + started.Format("2006-01-02") + " 02:30 Europe/Berlin")
		run("import " + started.UTC().Truncate(time.Hour).Format(time.RFC3339))
	}
	// Output:
	// report 2026-10-25 02:30 Europe/Berlin replayed=false <nil>
	// import 2026-10-25T00:00:00Z replayed=false <nil>
	// report 2026-10-25 02:30 Europe/Berlin replayed=true <nil>
	// import 2026-10-25T01:00:00Z replayed=false <nil>
}

// Look at what is stored, without asking for the key.
func ExampleStore_Lookup() {
	ctx := context.Background()
	store, _ := idem.New(memory.New(), nil)
	claim, _, _ := store.Begin(ctx, "order-1", idem.Fingerprint{})
	running, _ := store.Lookup(ctx, "order-1")
	_ = store.Complete(ctx, claim, idem.Result{Code: 201})
	done, _ := store.Lookup(ctx, "order-1")
	none, _ := store.Lookup(ctx, "order-2")
	fmt.Println(running.Status, done.Status, done.Result.Code, none.Status)
	// Output:
	// in-progress completed 201 absent
}

// A person wants his data gone before the retention ends. The operation still runs
// once.
func ExampleStore_Erase() {
	ctx := context.Background()
	store, _ := idem.New(memory.New(), nil)
	register := func(context.Context, *idem.Claim) (idem.Result, error) {
		fmt.Println("registered")
		return idem.Result{Code: 201, Body: []byte("Ada Lovelace, London")}, nil
	}
	first, _ := store.Do(ctx, "registration-1", idem.Fingerprint{}, register)
	fmt.Println(first.Result.Code, string(first.Result.Body))
	fmt.Println(store.Erase(ctx, "registration-1"))
	again, _ := store.Do(ctx, "registration-1", idem.Fingerprint{}, register)
	fmt.Println(again.Result.Code, string(again.Result.Body), again.Replayed, again.Result.Omitted)
	// Output:
	// registered
	// 201 Ada Lovelace, London
	// <nil>
	// 201  true true
}

// Count what duplicates do.
func ExampleOptions_observe() {
	replays := 0
	store, _ := idem.New(memory.New(), &idem.Options{
		Observe: func(_ context.Context, e idem.Event) {
			if e.Op == "do" && e.Replayed {
				replays++
			}
		},
	})
	for range 3 {
		_, _ = store.Do(context.Background(), "k", idem.Fingerprint{}, func(context.Context, *idem.Claim) (idem.Result, error) {
			return idem.Result{}, nil
		})
	}
	fmt.Println(replays, "replays")
	// Output:
	// 2 replays
}
