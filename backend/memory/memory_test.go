package memory

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
)

// PE-12: a store without a janitor does not grow for ever.
func TestPE12_ExpiredRecordsAreFreedByNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, b := context.Background(), New()
		put := func(n int) {
			for i := range n {
				key := fmt.Sprintf("%v-%d", time.Now().UnixNano(), i)
				r := idem.Record{Token: "a.1", Status: idem.Completed, TTL: time.Hour}
				if _, err := b.Swap(ctx, key, "", r); err != nil {
					t.Fatal(err)
				}
			}
		}
		put(10_001)
		if len(b.records) != 10_001 {
			t.Fatalf("%d records stored, want 10,001: there is a ceiling", len(b.records))
		}
		time.Sleep(time.Hour)
		put(20_000)
		// Each write looks at two records and the old ones are at first a third
		// of all, so nearly all of them are met.
		if len(b.records) > 22_000 {
			t.Errorf("%d records stored, want about 20,000: expired ones are not freed", len(b.records))
		}
		if _, err := b.Sweep(ctx, 1<<30); err != nil || len(b.records) != 20_000 {
			t.Errorf("Sweep: %v; it left %d records, want 20,000", err, len(b.records))
		}
	})
}

// A record that is swept has no token any more.
func TestSweepWakesWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, b := context.Background(), New()
		if _, err := b.Swap(ctx, "k", "", idem.Record{Token: "a.1", TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
		woken := make(chan error, 1)
		go func() { woken <- b.Watch(ctx, "k", "a.1") }()
		synctest.Wait()
		time.Sleep(time.Hour)
		if n, err := b.Sweep(ctx, 10); n != 1 || err != nil {
			t.Fatalf("Sweep = %d, %v", n, err)
		}
		if err := <-woken; err != nil {
			t.Error(err)
		}
	})
}

// Watchers that give up leave nothing behind, and those that remain are woken.
func TestWatchersThatGiveUpLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		if _, err := b.Swap(context.Background(), "k", "", idem.Record{Token: "a.1", TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
		impatient, cancel := context.WithCancel(context.Background())
		woken := make(chan error, 1)
		for range 10 {
			go b.Watch(impatient, "k", "a.1")
		}
		go func() { woken <- b.Watch(context.Background(), "k", "a.1") }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		if w := b.watchers["k"]; w == nil || w.n != 1 {
			t.Fatalf("watchers of k: %+v, want the one that is left", w)
		}
		if _, err := b.Swap(context.Background(), "k", "a.1", idem.Record{Token: "a.2", TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
		if err := <-woken; err != nil {
			t.Errorf("Watch = %v", err)
		}
		if len(b.watchers) != 0 {
			t.Errorf("%d watched keys left, want none", len(b.watchers))
		}
	})
}
