package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
)

// Four processes share a file: each operation runs once, whoever is asked for it,
// and its change is made once.
func TestSharedByProcesses(t *testing.T) {
	const processes, keys = 4, 150
	path := testPath(t)
	b := open(t, path, &Options{Shared: true, OpenTimeout: time.Minute})
	var wg sync.WaitGroup
	ran := make([]int, processes)
	for p := range processes {
		c := startChild(t, childCommand(t, "share", path, fmt.Sprint(keys)))
		wg.Go(func() {
			for line := c.line(); line != ""; line = c.line() {
				if _, err := fmt.Sscanf(line, "ran %d", &ran[p]); err != nil {
					t.Errorf("process %d says %q", p, line)
				}
			}
		})
	}
	wg.Wait()
	total := 0
	for p, n := range ran {
		total += n
		t.Logf("process %d ran %d operations", p, n)
	}
	if total != 2*keys {
		t.Errorf("%d operations ran, want %d", total, 2*keys)
	}
	store := newStore(t, b, nil)
	for i := range keys {
		for _, key := range []string{fmt.Sprintf("tx-%d", i), fmt.Sprintf("plain-%d", i)} {
			if _, done, err := store.Begin(t.Context(), key, fp); err != nil || done == nil || done.Attempt != 1 {
				t.Fatalf("%s: %+v, %v", key, done, err)
			}
		}
		if n := counted(t, b, fmt.Sprintf("tx-%d", i)); n != 1 {
			t.Errorf("tx-%d: the change was made %d times", i, n)
		}
	}
	checkFile(t, b)
}

func childShare(args []string) error {
	b, err := Open(args[0], &Options{Shared: true, OpenTimeout: time.Minute})
	if err != nil {
		return err
	}
	store, err := idem.New(b, nil)
	if err != nil {
		return err
	}
	var keys, ran int
	if _, err := fmt.Sscan(args[1], &keys); err != nil {
		return err
	}
	ctx := context.Background()
	for i := range keys {
		_, err := b.Do(ctx, store, fmt.Sprintf("tx-%d", i), fp, func(_ context.Context, tx *bbolt.Tx, c *idem.Claim) (idem.Result, error) {
			ran++
			n, err := count(tx, c.Key)
			return idem.Result{Code: n}, err
		})
		if err != nil {
			return err
		}
		_, err = store.Do(ctx, fmt.Sprintf("plain-%d", i), fp, func(context.Context, *idem.Claim) (idem.Result, error) {
			ran++
			return idem.Result{Code: 1}, nil
		})
		if err != nil {
			return err
		}
	}
	fmt.Println("ran", ran)
	return b.Close()
}

// While somebody uses the file longer than a caller waits, the caller is told so.
func TestSharedHeld(t *testing.T) {
	path := testPath(t)
	b := open(t, path, &Options{Shared: true, OpenTimeout: 100 * time.Millisecond})
	swap(t, b, "k", "", completed("a.1", 10))
	holder, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, getErr := b.Get(t.Context(), "k")
	_, swapErr := b.Swap(t.Context(), "other", "", running("b.1"))
	for name, err := range map[string]error{"Get": getErr, "Swap": swapErr} {
		if !errors.Is(err, idem.ErrLocked) {
			t.Errorf("%s = %v, want ErrLocked", name, err)
		}
		mentions(t, err, path)
	}
	if !definite(swapErr) {
		t.Errorf("the error of a Swap that did not get the file leaves its outcome open: %v", swapErr)
	}
	prompt(t, start, 200*time.Millisecond, "waiting for the file")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := b.Get(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, idem.ErrLocked) {
		t.Errorf("Get = %v", err)
	}
	swap(t, holder, "new", "", running("c.1"))
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	if r := get(t, b, "new"); r.Token != "c.1" {
		t.Errorf("what the holder has stored: %+v", r)
	}
	if r := get(t, b, "other"); r.Token != "" {
		t.Errorf("the Swap that failed was applied later: %+v", r)
	}
}

// A file that is gone, or is another one, between two calls is not taken for the
// storage.
func TestSharedFileExchanged(t *testing.T) {
	for name, exchange := range map[string]func(path string) error{
		"deleted": os.Remove,
		"emptied": func(path string) error { return os.Truncate(path, 0) },
		"replaced": func(path string) error {
			b, err := Open(path+"2", nil)
			return errors.Join(err, b.Close(), os.Rename(path+"2", path))
		},
		"restored": func(path string) error { return os.Rename(path+".copy", path) },
	} {
		t.Run(name, func(t *testing.T) {
			path := testPath(t)
			b := open(t, path, &Options{Shared: true})
			swap(t, b, "k", "", completed("a.1", 10))
			writeFile(t, path+".copy", readFile(t, path))
			swap(t, b, "k2", "", completed("b.1", 10))
			if err := exchange(path); err != nil {
				t.Fatal(err)
			}
			if r, err := b.Get(t.Context(), "k2"); !errors.Is(err, idem.ErrStoreLost) {
				t.Errorf("Get = %+v, %v; want ErrStoreLost", r, err)
			}
			if r, err := b.Swap(t.Context(), "k2", "", running("c.1")); !errors.Is(err, idem.ErrStoreLost) {
				t.Errorf("Swap = %+v, %v; want ErrStoreLost", r, err)
			}
		})
	}
}
