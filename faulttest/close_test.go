package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

// Reliability row 39: the connections are closed while calls run. Each call ends,
// with its answer or with ErrUnavailable, and what was acknowledged is there. That
// nothing is left running is checked at the end of all tests.
func TestRow39_CloseDuringCalls(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, storage string, after *idem.Store) {
		rnd := testenv.Rand(t)
		rounds := max(5, times(100))
		interrupted := 0
		for round := range rounds {
			s, closeAll, err := openServer(t.Context(), storage)
			if err != nil {
				t.Fatal(err)
			}
			acked, failed := callUntilClosed(t, s, fmt.Sprintf("round-%d", round), rnd, closeAll)
			interrupted += failed
			for _, key := range acked {
				r, err := after.Lookup(t.Context(), key)
				if err != nil || r.Status != idem.Completed || !r.Result.Equal(resultOf(key)) {
					t.Fatalf("%q was completed, and is %v (%v)", key, r.Status, err)
				}
			}
		}
		if interrupted < rounds {
			t.Errorf("only %d calls met the end in %d rounds", interrupted, rounds)
		}
		reportProcesses(t, "connections closed during calls", rounds)
	})
}

// callUntilClosed claims and completes keys from several goroutines until closeAll
// makes them fail, and returns the keys that were completed.
func callUntilClosed(t *testing.T, s *idem.Store, prefix string, rnd *rand.Rand, closeAll func()) (acked []string, failed int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	enough := make(chan struct{})
	var once sync.Once
	least := 1 + rnd.IntN(40) // completions before the end
	for worker := range 8 {
		wg.Go(func() {
			for n := 0; ; n++ {
				key := fmt.Sprintf("%s-%d-%d", prefix, worker, n)
				c, _, err := s.Begin(ctx, key, own)
				if err == nil {
					err = s.Complete(ctx, c, resultOf(key))
				}
				mu.Lock()
				if err != nil {
					failed++
					mu.Unlock()
					once.Do(func() { close(enough) })
					if !errors.Is(err, idem.ErrUnavailable) || ctx.Err() != nil {
						t.Errorf("a call whose connection was closed = %v, want ErrUnavailable before its deadline", err)
					}
					return
				}
				acked = append(acked, key)
				done := len(acked) >= least
				mu.Unlock()
				if done {
					once.Do(func() { close(enough) })
				}
			}
		})
	}
	<-enough
	closeAll()
	wg.Wait()
	return acked, failed
}
