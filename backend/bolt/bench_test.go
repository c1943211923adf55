package bolt

import (
	"context"
	"testing"

	"github.com/idem-go/idem"
)

func BenchmarkReplay(b *testing.B) {
	backend := open(b, testPath(b), nil)
	store := newStore(b, backend, nil)
	ctx := context.Background()
	keys := make([]string, 100000)
	r := idem.Record{Token: "0123456789.0123456789", Status: idem.Completed, Attempt: 1, Fingerprint: fp, TTL: 1 << 50, Result: idem.Result{Code: 200, Body: make([]byte, 256)}}
	done := make(chan error)
	for g := range 200 {
		go func() {
			var err error
			for i := g; i < len(keys); i += 200 {
				keys[i] = "order-" + idem.NewKey()
				_, e := backend.Swap(ctx, keys[i], "", r)
				if e != nil {
					err = e
				}
			}
			done <- err
		}()
	}
	for range 200 {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	i := 0
	for b.Loop() {
		i++
		if _, rec, err := store.Begin(ctx, keys[i*7919%len(keys)], fp); err != nil || rec == nil {
			b.Fatal(err, rec)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	backend := open(b, testPath(b), nil)
	ctx := context.Background()
	backend.Swap(ctx, "k", "", idem.Record{Token: "0123456789.0123456789", Status: idem.Completed, Attempt: 1, Fingerprint: fp, TTL: 1 << 50, Result: idem.Result{Code: 200, Body: make([]byte, 256)}})
	for b.Loop() {
		if _, err := backend.Get(ctx, "k"); err != nil {
			b.Fatal(err)
		}
	}
}
