package bolt

import (
	"context"
	"crypto/rand"
	"sync"
	"testing"

	"github.com/idem-go/idem"
)

// BenchmarkReplay is a Begin of completed keys.
func BenchmarkReplay(b *testing.B) {
	backend := open(b, testPath(b), nil)
	store := newStore(b, backend, nil)
	ctx := context.Background()
	keys := make([]string, 10_000)
	var wg sync.WaitGroup
	for i := range keys {
		keys[i] = "order-" + rand.Text()
		wg.Go(func() {
			if _, err := backend.Swap(ctx, keys[i], "", completed("a.1", 256)); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
	i := 0
	for b.Loop() {
		i++
		if _, done, err := store.Begin(ctx, keys[i*7919%len(keys)], fp); err != nil || done == nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGet is what a read costs in the backend alone.
func BenchmarkGet(b *testing.B) {
	backend := open(b, testPath(b), nil)
	ctx := context.Background()
	if _, err := backend.Swap(ctx, "k", "", completed("a.1", 256)); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := backend.Get(ctx, "k"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPair is a Begin and a Complete of fresh keys, by one caller.
func BenchmarkPair(b *testing.B) {
	store := newStore(b, open(b, testPath(b), nil), nil)
	ctx := context.Background()
	body := make([]byte, 256)
	for b.Loop() {
		c, _, err := store.Begin(ctx, "order-"+rand.Text(), fp)
		if err == nil {
			err = store.Complete(ctx, c, idem.Result{Code: 201, Body: body})
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
