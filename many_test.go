package idem_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// A batcher is a memory that notes the calls by which it is written to, and can
// answer them in a way of its own.
type batcher struct {
	*memory.Backend
	answer func(call int, do func() []idem.Swapped) []idem.Swapped

	mu    sync.Mutex
	many  []int // the swaps of each SwapAll
	alone int   // Swaps
	keys  []string
}

func newBatcher() *batcher { return &batcher{Backend: memory.New()} }

func (b *batcher) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	b.mu.Lock()
	b.alone++
	b.mu.Unlock()
	return b.Backend.Swap(ctx, key, old, new)
}

func (b *batcher) SwapAll(ctx context.Context, swaps []idem.Swap) []idem.Swapped {
	b.mu.Lock()
	b.many = append(b.many, len(swaps))
	call := len(b.many)
	b.keys = nil
	for _, s := range swaps {
		b.keys = append(b.keys, s.Key)
	}
	b.mu.Unlock()
	do := func() []idem.Swapped { return b.Backend.SwapAll(ctx, swaps) }
	if b.answer != nil {
		return b.answer(call, do)
	}
	return do()
}

// swapsOf takes the calls since the last time.
func (b *batcher) swapsOf() (many []int, alone int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	many, alone = b.many, b.alone
	b.many, b.alone = nil, 0
	return many, alone
}

func itemsOf(n int) []idem.Item {
	items := make([]idem.Item, n)
	for i := range items {
		items[i] = idem.Item{Key: fmt.Sprintf("k%d", (i*7)%n), Fingerprint: payloadA}
	}
	return items
}

// What CI can hold exactly are counts: a batch is one call of the storage, in the
// order of its keys.
func TestManyIsOneCallOfTheStorage(t *testing.T) {
	b := newBatcher()
	s := open(t, b, nil)
	ctx := context.Background()
	items := itemsOf(101)
	var claims []*idem.Claim
	var done []idem.Completion
	for i, begun := range s.BeginAll(ctx, items) {
		if begun.Claim == nil || begun.Claim.Key != items[i].Key || begun.Done != nil || begun.Err != nil {
			t.Fatalf("item %d: %+v", i, begun)
		}
		claims = append(claims, begun.Claim)
		done = append(done, idem.Completion{Claim: begun.Claim, Result: result1})
	}
	if !slices.IsSorted(b.keys) {
		t.Errorf("the storage was asked in the order %q", b.keys)
	}
	for _, call := range []func() []error{
		func() []error { return nil },
		func() []error { return s.ExtendAll(ctx, claims) },
		func() []error { return s.CompleteAll(ctx, done) },
	} {
		if err := errors.Join(call()...); err != nil {
			t.Error(err)
		}
		if many, alone := b.swapsOf(); !slices.Equal(many, []int{101}) || alone != 0 {
			t.Errorf("%v batches and %d swaps, want one batch of 101", many, alone)
		}
	}
	for i, begun := range s.BeginAll(ctx, items) {
		if begun.Done == nil || !begun.Done.Result.Equal(result1) {
			t.Errorf("item %d: %+v, want the result", i, begun)
		}
	}
	b.swapsOf()
	// There is nothing to ask about claims that have ended.
	if err := errors.Join(slices.Concat(s.ReleaseAll(ctx, claims), s.AbandonAll(ctx, claims))...); err != nil {
		t.Error(err)
	}
	if many, alone := b.swapsOf(); many != nil || alone != 0 {
		t.Errorf("claims that have ended were asked about: %v, %d", many, alone)
	}
	if s.BeginAll(ctx, nil) == nil || len(s.CompleteAll(ctx, nil)) != 0 || len(s.DoAll(ctx, nil, nil)) != 0 {
		t.Error("nothing is not answered by nothing")
	}
}

// A storage that takes swaps one by one is asked side by side, but in a
// transaction one after the other, in the order of the keys, and not after one
// that has failed.
func TestManyWithoutABatcher(t *testing.T) {
	synctest.Test(t, testManyWithoutABatcher)
}

func testManyWithoutABatcher(t *testing.T) {
	var mu sync.Mutex
	running, most := 0, 0
	var keys []string
	mem := memory.New()
	b := &swapper{mem, nil}
	b.swap = func(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
		mu.Lock()
		running++
		most = max(most, running)
		keys = append(keys, key)
		mu.Unlock()
		time.Sleep(time.Second) // which passes when all have come in
		mu.Lock()
		running--
		mu.Unlock()
		return mem.Swap(ctx, key, old, new)
	}
	s := open(t, b, nil)
	for i, begun := range s.BeginAll(context.Background(), itemsOf(200)) {
		if begun.Claim == nil {
			t.Fatalf("item %d: %+v", i, begun)
		}
	}
	if most != 64 {
		t.Errorf("%d swaps ran side by side, want 64", most)
	}
	most, keys = 0, nil
	fresh := itemsOf(20)
	for i := range fresh {
		fresh[i].Key += " in a transaction"
	}
	s.With(b).BeginAll(context.Background(), fresh)
	if most != 1 || len(keys) != 20 || !slices.IsSorted(keys) {
		t.Errorf("in a transaction %d swaps ran side by side, in the order %q", most, keys)
	}

	f := newFaulty(memory.New(), func(_ string, n int, _ idem.Record) fate {
		if n == 2 {
			return lost
		}
		return fine
	})
	failed := 0
	for _, begun := range open(t, f, nil).With(f).BeginAll(context.Background(), itemsOf(10)) {
		if errors.Is(begun.Err, errBroken) && errors.Is(begun.Err, idem.ErrUnavailable) {
			failed++
		}
	}
	if failed != 8 || f.count("Swap") != 3 {
		t.Errorf("%d of 10 items failed with %d swaps, want 8 with 3", failed, f.count("Swap"))
	}
}

// Whoever asks for many keys learns of each what Observe is told of one.
func TestManyIsObservedItemByItem(t *testing.T) {
	var ops []string
	s := open(t, nil, &idem.Options{Scope: "shop", Observe: func(_ context.Context, e idem.Event) {
		what := "ok"
		for _, class := range []error{idem.ErrMismatch, idem.ErrKey, idem.ErrInProgress} {
			if errors.Is(e.Err, class) {
				what = class.Error()
			}
		}
		ops = append(ops, fmt.Sprintf("%s %q %d %v %s %s", e.Op, e.Key, e.Attempt, e.Replayed, what, e.Scope))
	}})
	ctx := context.Background()
	begun := s.BeginAll(ctx, []idem.Item{{"a", payloadA}, {"", payloadA}, {"a", payloadB}})
	s.CompleteAll(ctx, []idem.Completion{{begun[0].Claim, result1}})
	s.DoAll(ctx, []idem.Item{{"a", payloadA}, {"b", payloadA}}, func(_ context.Context, tasks []*idem.Task) error {
		tasks[0].End(result2, nil)
		return nil
	})
	want := []string{
		`begin "a" 1 false ok shop`, `begin "" 0 false bad key shop`, `begin "a" 1 false key was used with another payload shop`,
		`complete "a" 1 false ok shop`,
		`begin "a" 1 true ok shop`, `begin "b" 1 false ok shop`, `complete "b" 1 false ok shop`,
		`do "a" 1 true ok shop`, `do "b" 1 false ok shop`,
	}
	if !slices.Equal(ops, want) {
		t.Errorf("got\n%q\nwant\n%q", ops, want)
	}
}

// A batch that the storage answers in part is repeated for the rest only, and
// what surely failed is not repeated.
func TestManyRepeatsWhatWasNotAnswered(t *testing.T) {
	b := newBatcher()
	b.answer = func(call int, do func() []idem.Swapped) []idem.Swapped {
		swapped := do()
		switch call {
		case 1:
			for i := 5; i < 10; i++ {
				swapped[i] = idem.Swapped{Err: errBroken}
			}
			swapped[0] = idem.Swapped{Err: idem.NoEffect(errBroken)}
		case 2:
			swapped = swapped[:3] // it says nothing about the rest
		}
		return swapped
	}
	s := open(t, b, nil)
	refused := 0
	for _, begun := range s.BeginAll(context.Background(), itemsOf(10)) {
		if errors.Is(begun.Err, errBroken) {
			refused++
		} else if begun.Claim == nil || begun.Claim.Attempt != 1 {
			t.Errorf("%+v, want the claim that was stored", begun)
		}
	}
	if many, alone := b.swapsOf(); refused != 1 || !slices.Equal(many, []int{10, 5, 2}) || alone != 0 {
		t.Errorf("%d refused, batches of %v and %d swaps alone; want 1, [10 5 2], 0", refused, many, alone)
	}
}

// A context that is done asks nothing.
func TestManyWithADoneContext(t *testing.T) {
	b := newBatcher()
	s := open(t, b, nil)
	ctx, cancel := context.WithCancel(context.Background())
	claims := []*idem.Claim{begin(t, s, "x", payloadA), begin(t, s, "y", payloadA)}
	cancel()
	b.swapsOf()
	for _, begun := range s.BeginAll(ctx, itemsOf(3)) {
		if !errors.Is(begun.Err, context.Canceled) || !errors.Is(begun.Err, idem.ErrUnavailable) {
			t.Errorf("BeginAll: %+v", begun)
		}
	}
	for _, err := range s.ExtendAll(ctx, claims) {
		if !errors.Is(err, context.Canceled) || !errors.Is(err, idem.ErrUnavailable) {
			t.Errorf("ExtendAll: %v", err)
		}
	}
	for _, end := range s.DoAll(ctx, itemsOf(3), func(context.Context, []*idem.Task) error { t.Error("it ran"); return nil }) {
		if !errors.Is(end.Err, context.Canceled) {
			t.Errorf("DoAll: %v", end.Err)
		}
	}
	if many, alone := b.swapsOf(); many != nil || alone != 0 {
		t.Errorf("the storage was asked: %v, %d", many, alone)
	}
}

// InTurn keeps the order of swaps of one key.
func TestInTurn(t *testing.T) {
	var calls [][]string
	swapped := idem.InTurn([]idem.Swap{{Key: "a"}, {Key: "b", Old: "1"}, {Key: "b", Old: "2"}, {Key: "c"}, {Key: "b", Old: "3"}}, func(swaps []idem.Swap) []idem.Swapped {
		var keys []string
		out := make([]idem.Swapped, len(swaps))
		for i, s := range swaps {
			keys = append(keys, s.Key+s.Old)
			out[i].Record.Token = s.Key + s.Old
		}
		calls = append(calls, keys)
		return out
	})
	if got := fmt.Sprint(calls); got != "[[a b1 c] [b2] [b3]]" {
		t.Errorf("called with %v", got)
	}
	for i, want := range []string{"a", "b1", "b2", "c", "b3"} {
		if swapped[i].Record.Token != want {
			t.Errorf("answer %d is that of %q, want of %q", i, swapped[i].Record.Token, want)
		}
	}
}
