package bolt

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
)

func swapsOf(n int) []idem.Swap {
	swaps := make([]idem.Swap, n)
	for i := range swaps {
		swaps[i] = idem.Swap{Key: fmt.Sprintf("k%d", i*7%n), New: running(fmt.Sprintf("t%d.1", i))}
	}
	return swaps
}

// A batch is one commit, and none if there is nothing to write.
func TestSwapAllIsOneCommit(t *testing.T) {
	db := openDB(t, testPath(t))
	b := newOn(t, db, nil)
	commits := func() (n int) {
		if err := db.View(func(tx *bbolt.Tx) error { n = tx.ID(); return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	swaps := swapsOf(500)
	for round, want := range []int{1, 0} {
		before := commits()
		for i, s := range b.SwapAll(t.Context(), swaps) {
			if s.Err != nil || s.Record.Token != swaps[i].New.Token {
				t.Errorf("swap %d: %+v", i, s)
			}
		}
		if n := commits() - before; n != want {
			t.Errorf("round %d: 500 swaps took %d commits, want %d", round, n, want)
		}
	}
	checkFile(t, b)
}

// A batch that waits for the writer is given up as a whole, without effect.
func TestSwapAllLeavesTheQueue(t *testing.T) {
	db := openDB(t, testPath(t))
	b := newOn(t, db, nil)
	tx, err := db.Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan []idem.Swapped)
	go func() { left <- b.SwapAll(ctx, swapsOf(50)) }()
	queued(t, b, 50)
	cancel()
	for _, s := range <-left {
		if !errors.Is(s.Err, context.Canceled) || !definite(s.Err) {
			t.Errorf("%+v, want the context's error and no effect", s)
		}
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	swap(t, b, "after", "", running("a.1"))
	for i := range 50 {
		if r, err := b.Get(t.Context(), fmt.Sprintf("k%d", i)); err != nil || r.Token != "" {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// After Close, and on a file that may not be written, each swap says so.
func TestSwapAllWithoutAWriter(t *testing.T) {
	path := testPath(t)
	b, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	swap(t, b, "there", "", running("a.1"))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for _, s := range b.SwapAll(t.Context(), swapsOf(3)) {
		if !errors.Is(s.Err, errClosed) || !definite(s.Err) {
			t.Errorf("after Close: %+v", s)
		}
	}
	reader, err := Open(path, &Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	got := reader.SwapAll(t.Context(), []idem.Swap{{Key: "there", New: running("b.1")}, {Key: "absent", New: running("b.1")}})
	if got[0].Err != nil || got[0].Record.Token != "a.1" || !errors.Is(got[1].Err, errReadOnly) || !definite(got[1].Err) {
		t.Errorf("read-only: %+v", got)
	}
}
