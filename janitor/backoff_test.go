package janitor_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/janitor"
)

// A claim that cannot be decided is tried again less and less often; others do
// not wait for it.
func TestBackOffForEachClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		store := open(t, b, &idem.Options{OnLapse: idem.Hold})
		lapse(t, store, "hopeless", "")
		var mu sync.Mutex
		var tries []time.Time
		var seen reports
		begun := time.Now()
		stop := start(t, b, &janitor.Options{
			Observe: seen.add,
			Recover: func(_ context.Context, c *idem.Claim) (idem.Result, error) {
				if c.Key != "hopeless" {
					return idem.Result{Code: 1}, nil
				}
				mu.Lock()
				defer mu.Unlock()
				tries = append(tries, time.Now())
				return idem.Result{}, errors.New("unknown")
			},
		})
		for i := range 40 {
			time.Sleep(10 * time.Minute)
			lapse(t, store, fmt.Sprint(i), "")
			time.Sleep(2 * time.Minute)
			if r := lookup(t, store, fmt.Sprint(i)); r.Status != idem.Completed {
				t.Errorf("claim %d has waited: %v", i, r.Status)
			}
		}
		open := time.Since(begun)
		stop()
		// 1, 2, 4, ... 32 minutes, and then 60.
		if len(tries) < 10 {
			t.Fatalf("%d tries in 8 hours", len(tries))
		}
		wait := time.Minute
		for i := range tries[1:] {
			if d := tries[i+1].Sub(tries[i]); d < wait-45*time.Second || d > wait+90*time.Second {
				t.Errorf("try %d came %v after the one before, want %v", i+2, d, wait)
			}
			wait = min(2*wait, time.Hour)
		}
		if last := seen.last(); last.Unresolved != 1 || last.Oldest < open-5*time.Minute || last.Oldest > open {
			t.Errorf("the last report: %+v; want the claim that is open for %v", last, open)
		}
	})
}

// What a person, a request or another janitor has decided meanwhile is forgotten.
func TestDecidedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		store := open(t, b, &idem.Options{OnLapse: idem.Hold})
		lapse(t, store, "k", "")
		var seen reports
		stop := start(t, b, &janitor.Options{
			Observe: seen.add,
			Recover: func(context.Context, *idem.Claim) (idem.Result, error) { return idem.Result{}, errors.New("unknown") },
		})
		defer stop()
		time.Sleep(2 * time.Minute)
		if last := seen.last(); last.Unresolved != 1 {
			t.Fatalf("%+v", last)
		}
		if err := store.Forget(context.Background(), "k", lookup(t, store, "k").Attempt); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if last := seen.last(); last.Unresolved != 0 || last.Oldest != 0 {
			t.Errorf("%+v", last)
		}
		time.Sleep(24 * time.Hour)
		lapse(t, store, "k", "")
		time.Sleep(2 * time.Minute)
		if last := seen.last(); last.Unresolved != 1 || last.Oldest > 2*time.Minute {
			t.Errorf("the next operation of the key: %+v", last)
		}
	})
}

// The back-off is of one operation, not of its key: the next one begins anew.
func TestBackOffBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		store := open(t, b, &idem.Options{OnLapse: idem.Hold})
		lapse(t, store, "k", "")
		const failures = 6
		tries := 0
		var freed, next time.Time
		var seen reports
		stop := start(t, b, &janitor.Options{
			Observe: seen.add,
			Recover: func(_ context.Context, c *idem.Claim) (idem.Result, error) {
				switch tries++; tries {
				case failures + 1:
					freed = time.Now()
					// The next operation dies before the janitor looks again.
					go func() {
						time.Sleep(time.Second)
						lapse(t, store, "k", "")
					}()
					return idem.Result{}, idem.NoEffect(errors.New("nothing happened"))
				case failures + 2:
					if d := time.Since(freed); d > 2*time.Minute {
						t.Errorf("the next operation was looked at after %v", d)
					}
					next = time.Now()
				case failures + 3:
					if d := time.Since(next); d > 2*time.Minute {
						t.Errorf("it was looked at again after %v, as if it had failed %d times", d, tries-1)
					}
				}
				return idem.Result{}, errors.New("unknown")
			},
		})
		time.Sleep(24 * time.Hour)
		stop()
		if tries < failures+3 {
			t.Errorf("%d tries", tries)
		}
		if last := seen.last(); last.Unresolved != 1 || last.Oldest > time.Since(freed) {
			t.Errorf("%+v, want the operation of %v ago", last, time.Since(freed))
		}
	})
}
