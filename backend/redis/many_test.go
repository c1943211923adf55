package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/faultproxy"
	"github.com/idem-go/idem/internal/testredis"
)

func itemsOf(prefix string, n int) []idem.Item {
	items := make([]idem.Item, n)
	for i := range items {
		items[i] = idem.Item{Key: fmt.Sprintf("%s-%d", prefix, i), Fingerprint: fp}
	}
	return items
}

func claimAll(t testing.TB, s *idem.Store, items []idem.Item) []idem.Completion {
	t.Helper()
	done := make([]idem.Completion, len(items))
	for i, b := range s.BeginAll(within(t, time.Minute), items) {
		if b.Claim == nil || b.Claim.Attempt != 1 {
			t.Fatalf("%q: %+v", items[i].Key, b)
		}
		done[i] = idem.Completion{Claim: b.Claim, Result: idem.Result{Body: []byte(items[i].Key)}}
	}
	return done
}

// A batch is one round trip, a large one a few; in a transaction two and none,
// until Exec.
func TestManyKeysAreOneRoundTrip(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	b := newBackend(t, client, nil)
	s := newStore(t, b, nil)
	claimAll(t, s, itemsOf("first", 2)) // the storage is made, and the script is loaded
	h := &trips{begun: make(chan struct{}, 1000), gate: make(chan struct{})}
	close(h.gate)
	client.AddHook(h)
	ctx := within(t, time.Minute)
	want := func(what string, trips int32) {
		t.Helper()
		if n := h.n.Swap(0); n != trips {
			t.Errorf("%s took %d round trips, want %d", what, n, trips)
		}
	}
	for _, size := range []int{2, 100, 500} {
		done := claimAll(t, s, itemsOf(fmt.Sprint("batch of ", size), size))
		claimed := h.n.Swap(0)
		if err := errors.Join(s.CompleteAll(ctx, done)...); err != nil {
			t.Fatal(err)
		}
		completed, most := h.n.Swap(0), int32((size+part-1)/part)
		if most > 1 {
			most += lanesUsual // which may have to connect first
		}
		if claimed < 1 || claimed > most || completed < 1 || completed > most {
			t.Errorf("%d keys were claimed in %d round trips and completed in %d, want at most %d", size, claimed, completed, most)
		}
	}
	err := client.Watch(ctx, func(tx *goredis.Tx) error {
		p := tx.TxPipeline()
		h.n.Store(0)
		bound := s.With(b.WithTx(tx, p))
		done := claimAll(t, bound, itemsOf("in a transaction", 100))
		want("claiming 100 keys in a transaction", 2) // WATCH, and what is there
		if err := errors.Join(bound.CompleteAll(ctx, done)...); err != nil {
			return err
		}
		want("completing them", 0)
		_, err := p.Exec(ctx)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range s.BeginAll(ctx, itemsOf("in a transaction", 100)) {
		if b.Done == nil || string(b.Done.Result.Body) != fmt.Sprintf("in a transaction-%d", i) {
			t.Errorf("%d: %+v", i, b)
		}
	}
}

// Once replays are likely, a batch is read before it is claimed, and what is
// missing is claimed all the same.
func TestManyReplaysAreRead(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	b := newBackend(t, client, nil)
	s := newStore(t, b, nil)
	ctx := within(t, time.Minute)
	items := itemsOf("k", 50)
	if err := errors.Join(s.CompleteAll(ctx, claimAll(t, s, items))...); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for i, b := range s.BeginAll(ctx, items) {
			if b.Done == nil || string(b.Done.Result.Body) != items[i].Key {
				t.Fatalf("%d: %+v", i, b)
			}
		}
	}
	if !b.replays.likely() {
		t.Error("150 replays in a row have not made another one likely")
	}
	begun := s.BeginAll(ctx, append(itemsOf("fresh", 10), items...))
	for i, b := range begun {
		if (b.Claim != nil) != (i < 10) || (b.Done != nil) != (i >= 10) {
			t.Errorf("%d: %+v", i, b)
		}
	}
}

// A record that is damaged is its own caller's alone, in a transaction too.
func TestManyWithADamagedRecord(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	b := newBackend(t, client, nil)
	s := newStore(t, b, nil)
	ctx := within(t, time.Minute)
	if err := client.Set(ctx, b.Key("k-1"), "damaged", 0).Err(); err != nil {
		t.Fatal(err)
	}
	check := func(what string, begun []idem.Begun) {
		t.Helper()
		for i, b := range begun {
			if i == 1 && !errors.Is(b.Err, idem.ErrCorrupt) || i != 1 && b.Claim == nil {
				t.Errorf("%s, item %d: %+v", what, i, b)
			}
		}
	}
	err := client.Watch(ctx, func(tx *goredis.Tx) error {
		check("in a transaction", s.With(b.WithTx(tx, tx.TxPipeline())).BeginAll(ctx, itemsOf("k", 3)))
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	check("by itself", s.BeginAll(ctx, itemsOf("k", 3)))
}

// Whatever is lost of a batch, it recognises what it has stored.
func TestManyLostReplies(t *testing.T) {
	for mode, fate := range map[string]faultproxy.Fate{"request": faultproxy.LoseRequest, "reply": faultproxy.LoseReply, "both": faultproxy.CutBoth} {
		t.Run(mode, func(t *testing.T) {
			proxy, client := proxied(t, &goredis.Options{MaxRetries: -1})
			s := newStore(t, newBackend(t, client, nil), nil)
			lose := func() {
				lost := false // requests come one at a time
				proxy.Judge(func(request []byte) faultproxy.Fate {
					if lost || !bytes.Contains(request, []byte("evalsha")) {
						return faultproxy.Pass
					}
					lost = true
					return fate
				})
			}
			for i := range 10 {
				lose()
				done := claimAll(t, s, itemsOf(fmt.Sprint("round ", i), 50))
				lose()
				ends := s.DoAll(within(t, time.Minute), itemsOf(fmt.Sprint("done ", i), 50), func(_ context.Context, tasks []*idem.Task) error {
					lose()
					for _, task := range tasks {
						task.End(idem.Result{Body: []byte("done")}, nil)
					}
					return nil
				})
				proxy.Judge(nil)
				for _, end := range ends {
					if end.Err != nil || end.Replayed || end.Attempt != 1 {
						t.Errorf("DoAll: %+v", end)
					}
				}
				err := idem.ErrUnavailable
				for tries := 0; errors.Is(err, idem.ErrUnavailable) && tries < 5; tries++ { // connections may be dead
					err = errors.Join(s.CompleteAll(within(t, time.Minute), done)...)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
}
