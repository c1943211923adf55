package bolt

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

// childWrite claims and completes keys from several goroutines, sweeps, and prints
// each key whose completion was acknowledged, until it is killed.
func childWrite(args []string) error {
	path, name := args[0], args[1]
	b, err := Open(path, &Options{OpenTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	store, err := idem.New(b, nil)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	out := bufio.NewWriter(os.Stdout)
	var wg sync.WaitGroup
	var failed error
	ctx := context.Background()
	for g := range 6 {
		wg.Go(func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("%s-%d-%d", name, g, i)
				err := func() error {
					if i%5 == 4 { // something to sweep
						r := completed(key+".1", 200)
						r.TTL = time.Nanosecond
						_, err := b.Swap(ctx, key, "", r)
						return err
					}
					c, _, err := store.Begin(ctx, key, fp)
					if err != nil {
						return err
					}
					if err := store.Complete(ctx, c, idem.Result{Body: []byte(key)}); err != nil {
						return err
					}
					mu.Lock()
					defer mu.Unlock()
					fmt.Fprintln(out, key)
					return out.Flush()
				}()
				if err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	return failed
}

// BB-6, and kill -9 at any instant: what was acknowledged is there, the structure
// is whole, the lock is free.
func TestBB6_KilledWriter(t *testing.T) {
	rounds := 200
	if testing.Short() {
		rounds = 20
	}
	rnd := testenv.Rand(t)
	path := testPath(t)
	var acked []string
	for round := range rounds {
		c := startChild(t, childCommand(t, "write", path, fmt.Sprint(round)))
		// Let it acknowledge a few and kill it somewhere in the next ones.
		for n := 1 + rnd.IntN(60); n > 0; n-- {
			key := c.line()
			if key == "" || strings.HasPrefix(key, "error") {
				t.Fatalf("round %d: the child says %q", round, key)
			}
			acked = append(acked, key)
		}
		_ = c.cmd.Process.Kill()
		for key := c.line(); key != ""; key = c.line() { // acknowledged before the kill
			if strings.Count(key, "-") == 2 {
				acked = append(acked, key)
			}
		}
		c.kill()
		b, err := Open(path, &Options{OpenTimeout: 2 * time.Second})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		last := acked[max(0, len(acked)-100):]
		if round%20 == 19 || round == rounds-1 {
			last = acked
			checkFile(t, b)
		}
		for _, key := range last {
			if r := get(t, b, key); r.Status != idem.Completed || string(r.Result.Body) != key {
				t.Fatalf("round %d: %s was acknowledged, and is %+v", round, key, r)
			}
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d rounds, %d acknowledged records", rounds, len(acked))
}

// A process that is killed while it holds claims does not keep others from the
// file, and its leases run out.
func TestKilledHolderOfClaims(t *testing.T) {
	path := testPath(t)
	c := holdElsewhere(t, path)
	c.kill()
	machine := newFakeClock()
	b := machine.use(open(t, path, nil))
	swap(t, b, "k", "", running("a.1"))
	b.Close()
	again := machine.use(open(t, path, nil))
	store := newStore(t, again, nil)
	if _, _, err := store.Begin(t.Context(), "k", fp); !errors.Is(err, idem.ErrInProgress) {
		t.Errorf("Begin in the next process: %v, want ErrInProgress", err)
	}
	machine.pass(time.Minute)
	if claim, _, err := store.Begin(t.Context(), "k", fp); err != nil || !claim.Takeover {
		t.Errorf("Begin after the lease: %+v, %v; want a takeover", claim, err)
	}
}
