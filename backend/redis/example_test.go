package redis_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	idemredis "github.com/idem-go/idem/backend/redis"
)

// addr is where Redis listens.
var addr = "localhost:6379"

func Example() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	backend, err := idemredis.New(client, nil)
	if err != nil {
		log.Fatal(err) // the server cannot be reached, or cannot be trusted with claims
	}
	store, err := idem.New(backend, &idem.Options{Scope: "orders"})
	if err != nil {
		log.Fatal(err)
	}
	body := []byte(`{"item":"book"}`)
	out, err := store.Do(ctx, "order-4711", idem.FingerprintOf(body),
		func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
			return idem.Result{Code: 201, Body: []byte("shipped")}, nil
		})
	fmt.Println(string(out.Result.Body), out.Replayed, err)
}

// What the business does in Redis, and the completion, in one transaction.
func ExampleBackend_WithTx() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	backend, err := idemredis.New(client, nil)
	if err != nil {
		log.Fatal(err)
	}
	store, err := idem.New(backend, nil)
	if err != nil {
		log.Fatal(err)
	}

	fp := idem.FingerprintOf([]byte("100"))
	claim, done, err := store.Begin(ctx, "deposit-17", fp)
	if err != nil {
		log.Fatal(err)
	}
	if done != nil {
		fmt.Println("done before:", string(done.Result.Body))
		return
	}
	defer store.Abandon(ctx, claim) // does nothing after a completion

	book := func(tx *redis.Tx) error {
		p := tx.TxPipeline()
		p.IncrBy(ctx, "balance", 100)
		err := store.With(backend.WithTx(tx, p)).Complete(ctx, claim, idem.Result{Body: []byte("booked")})
		if err != nil {
			return err // nothing has happened
		}
		_, err = p.Exec(ctx)
		return err
	}
	for {
		err = client.Watch(ctx, book)
		if !errors.Is(err, redis.TxFailedErr) {
			break
		}
	}
	if err != nil {
		// Whether it has happened is unknown. It must not be queued again before
		// that is known.
		r, lookupErr := store.Lookup(ctx, "deposit-17")
		if lookupErr != nil || r.Status != idem.Completed {
			log.Fatal(err)
		}
	}
	fmt.Println("booked")
}

// The storage is set up by a person, so that a server that comes back empty is not
// taken for a new one.
func ExampleBackend_Init() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	backend, err := idemredis.New(client, &idemredis.Options{MustExist: true, SkipCheck: true})
	if err != nil {
		log.Fatal(err)
	}
	if err := backend.Check(ctx); errors.Is(err, idem.ErrStoreLost) {
		// The first time, or after a person has seen to the operations of before.
		err = backend.Init(ctx)
		fmt.Println("initialised:", err)
	}
}
