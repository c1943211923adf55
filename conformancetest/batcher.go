package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/idem-go/idem"
)

const (
	ruleBatchEach    = "SwapAll does with each of the swaps what Swap would, and returns what Swap would return, one for each and in their order."
	ruleBatchPart    = "A swap that is refused or fails keeps no other from taking effect, unless it ends the transaction that they are part of."
	ruleBatchSame    = "Swaps of one key in one call take effect in their order."
	ruleBatchRepeat  = "SwapAll is idempotent by token, swap by swap: repeated because its reply was lost it finds what it has stored, and succeeds."
	ruleBatchCircle  = "Calls with the same keys never wait for each other in a circle, whatever the order of the keys."
	ruleBatchContext = "A SwapAll whose context is done returns promptly, with an error that wraps the context's for each swap whose outcome is unknown; if it was done before, nothing changes."
	ruleBatchTx      = "SwapAll in a transaction is visible to others when the transaction commits, and never if it rolls back."
)

var batchCases = []testCase{
	{name: "Each", rule: ruleBatchEach, needs: needBatcher, run: testBatchEach},
	{name: "Expired", rule: ruleBatchEach, needs: needBatcher, timed: true, run: testBatchExpired},
	{name: "Sizes", rule: ruleBatchEach, needs: needBatcher, run: testBatchSizes},
	{name: "Refused", rule: ruleBatchPart, needs: needBatcher, run: testBatchRefused},
	{name: "SameKey", rule: ruleBatchSame, needs: needBatcher, run: testBatchSameKey},
	{name: "Repeat", rule: ruleBatchRepeat, needs: needBatcher, run: testBatchRepeat},
	{name: "Circle", rule: ruleBatchCircle, needs: needBatcher, run: testBatchCircle},
	{name: "OneOwner", rule: ruleOneByOne, needs: needBatcher, run: testBatchOneOwner},
	{name: "ContextDone", rule: ruleBatchContext, needs: needBatcher, run: testBatchContextDone},
	{name: "ContextEnds", rule: ruleBatchContext, needs: needBatcher, run: testBatchContextEnds},
}

var batchTxCases = []testCase{
	{name: "Batch", rule: ruleBatchTx, needs: needInTx, run: testBatchTx},
}

// swapAll returns what b has stored after the swaps.
func (e *env) swapAll(b idem.Backend, swaps []idem.Swap) []idem.Record {
	e.t.Helper()
	swapped := b.(idem.Batcher).SwapAll(e.ctx, swaps)
	if len(swapped) != len(swaps) {
		e.fatalf("SwapAll of %d swaps returned %d answers", len(swaps), len(swapped))
	}
	got := make([]idem.Record, len(swaps))
	for i, s := range swapped {
		if s.Err != nil {
			e.fatalf("SwapAll: swap %d, of %q, failed: %v", i, short(swaps[i].Key), s.Err)
		}
		got[i] = s.Record
	}
	return got
}

// A batchStep is a swap with what is to come of it.
type batchStep struct {
	what string
	swap idem.Swap
	want idem.Record // that is returned, and stored afterwards
}

// steps does the swaps in one call and checks each.
func (e *env) steps(b idem.Backend, steps []batchStep) {
	e.t.Helper()
	swaps := make([]idem.Swap, len(steps))
	for i, s := range steps {
		swaps[i] = s.swap
	}
	for i, got := range e.swapAll(b, swaps) {
		e.want("SwapAll, "+steps[i].what, got, steps[i].want)
	}
	for _, s := range steps {
		e.want("Get after SwapAll, "+s.what, e.get(b, s.swap.Key), s.want)
	}
}

// mixed puts records into the storage and returns swaps of all kinds, in no
// order that a storage could mistake for its own.
func (e *env) mixed(prefix string) []batchStep {
	e.t.Helper()
	there := e.put(prefix+"there", newRecord(idem.InProgress))
	replaced := e.put(prefix+"replaced", newRecord(idem.InProgress))
	changed := e.put(prefix+"changed", newRecord(idem.Completed))
	repeated := e.put(prefix+"repeated", newRecord(idem.InProgress))
	created, next, last := full(idem.Completed), full(idem.Completed), newRecord(idem.Released)
	return []batchStep{
		{"a key that is taken", idem.Swap{Key: prefix + "there", New: newRecord(idem.InProgress)}, there},
		{"an absent key", idem.Swap{Key: prefix + "new", New: created}, created},
		{"an absent key with an old token", idem.Swap{Key: prefix + "absent", Old: "no.such", New: newRecord(idem.InProgress)}, idem.Record{}},
		{"a replacement", idem.Swap{Key: prefix + "replaced", Old: replaced.Token, New: next}, next},
		{"a wrong token", idem.Swap{Key: prefix + "changed", Old: replaced.Token, New: newRecord(idem.Completed)}, changed},
		{"a repetition", idem.Swap{Key: prefix + "repeated", New: repeated}, repeated},
		{"another absent key", idem.Swap{Key: prefix + "a last one", New: last}, last},
	}
}

func testBatchEach(e *env) {
	if got := e.swapAll(e.b, nil); len(got) != 0 {
		e.errorf("SwapAll of nothing returned %d answers", len(got))
	}
	e.steps(e.b, e.mixed(""))
	one := newRecord(idem.InProgress)
	e.steps(e.b, []batchStep{{"alone", idem.Swap{Key: "one", New: one}, one}})
}

func testBatchExpired(e *env) {
	r := newRecord(idem.Completed)
	r.TTL = time.Hour
	e.put("expired", r)
	e.put("expired too", r)
	e.clock.pass(2 * time.Hour)
	next := newRecord(idem.InProgress)
	e.steps(e.b, []batchStep{
		{"an expired record", idem.Swap{Key: "expired", New: next}, next},
		{"the token of an expired record", idem.Swap{Key: "expired too", Old: r.Token, New: newRecord(idem.InProgress)}, idem.Record{}},
	})
}

// testBatchSizes has more swaps, and more bytes, than go into one of anything.
func testBatchSizes(e *env) {
	var steps []batchStep
	const n = 600
	for i := range n {
		r := newRecord(idem.InProgress)
		if i%10 == 0 {
			r = newRecord(idem.Completed)
			r.Result.Body = make([]byte, 20_000)
		}
		steps = append(steps, batchStep{"one of many", idem.Swap{Key: fmt.Sprintf("k%d", i*7919%n), New: r}, r})
	}
	e.steps(e.b, steps)
}

func testBatchRefused(e *env) {
	taken := e.put("taken", newRecord(idem.InProgress))
	var steps []batchStep
	for i := range 20 {
		r := newRecord(idem.InProgress)
		steps = append(steps,
			batchStep{"a key that is taken", idem.Swap{Key: "taken", New: newRecord(idem.InProgress)}, taken},
			batchStep{"beside one that is refused", idem.Swap{Key: fmt.Sprintf("free %d", i), New: r}, r},
			batchStep{"an absent key", idem.Swap{Key: "absent", Old: "no.such", New: newRecord(idem.InProgress)}, idem.Record{}})
	}
	e.steps(e.b, steps)
}

func testBatchSameKey(e *env) {
	first, second, third := newRecord(idem.InProgress), newRecord(idem.InProgress), newRecord(idem.Completed)
	other := newRecord(idem.Completed)
	got := e.swapAll(e.b, []idem.Swap{
		{Key: "k", New: first},
		{Key: "k", New: second}, // comes too late
		{Key: "other", New: other},
		{Key: "k", Old: first.Token, New: third},
		{Key: "k", Old: first.Token, New: second}, // comes too late
		{Key: "k", Old: third.Token, New: third},
	})
	for i, want := range []idem.Record{first, first, other, third, third, third} {
		e.want(fmt.Sprintf("SwapAll with one key several times, swap %d", i), got[i], want)
	}
	e.wantStored("k", third)
	e.wantStored("other", other)
}

func testBatchRepeat(e *env) {
	steps := e.mixed("")
	e.steps(e.b, steps)
	e.steps(e.b, steps)
	// As much of it as has arrived is not written again.
	more := newRecord(idem.InProgress)
	e.steps(e.peer(), append(steps, batchStep{"one that had not arrived", idem.Swap{Key: "more", New: more}, more}))
}

// testBatchCircle has batches of the same keys in orders that are the reverse of
// each other. It is the call that has to come back, whoever gets which key.
func testBatchCircle(e *env) {
	const keys = 20
	handles := e.handles(2)
	now := make([]idem.Record, keys)
	for i := range keys {
		now[i] = e.put(fmt.Sprintf("k%d", i), newRecord(idem.InProgress))
	}
	for range rounds(10) {
		var took [4][keys]string // the token with which a caller took a key
		together(4, func(n int) {
			swaps := make([]idem.Swap, keys)
			for i := range keys {
				k := i
				if n%2 == 1 {
					k = keys - 1 - i
				}
				swaps[i] = idem.Swap{Key: fmt.Sprintf("k%d", k), Old: now[k].Token, New: newRecord(idem.InProgress)}
			}
			for i, got := range e.swapAll(handles[n%2], swaps) {
				if got.Token == swaps[i].New.Token {
					k := i
					if n%2 == 1 {
						k = keys - 1 - i
					}
					took[n][k] = got.Token
				}
			}
		})
		for k := range keys {
			owners := 0
			now[k] = e.get(e.b, fmt.Sprintf("k%d", k))
			for n := range took {
				if took[n][k] == "" {
					continue
				}
				if owners++; took[n][k] != now[k].Token {
					e.errorf("a swap of a batch was told that it is stored, and another record is")
				}
			}
			if owners != 1 {
				e.errorf("of 4 batches %d have swapped one key, want 1", owners)
			}
		}
	}
}

// testBatchOneOwner has batches and single callers after the same keys.
func testBatchOneOwner(e *env) {
	const keys = 6
	handles := e.handles(2)
	for round := range rounds(8) {
		var owners [keys]atomic.Int32
		name := func(k int) string { return fmt.Sprintf("round %d key %d", round, k) }
		together(6, func(n int) {
			b := handles[n%2]
			swaps := make([]idem.Swap, keys)
			for i := range keys {
				swaps[i] = idem.Swap{Key: name((i*5 + n) % keys), New: newRecord(idem.InProgress)}
			}
			got := make([]idem.Record, keys)
			if n < 4 {
				got = e.swapAll(b, swaps)
			} else {
				for i, s := range swaps {
					got[i] = e.swap(b, s.Key, s.Old, s.New)
				}
			}
			for i := range keys {
				if got[i].Token == swaps[i].New.Token {
					owners[(i*5+n)%keys].Add(1)
				}
			}
		})
		for k := range keys {
			if n := owners[k].Load(); n != 1 {
				e.errorf("%d callers own one key, want 1", n)
			}
		}
	}
}

func testBatchContextDone(e *env) {
	r := e.put("k", newRecord(idem.InProgress))
	swaps := []idem.Swap{
		{Key: "absent", New: newRecord(idem.InProgress)},
		{Key: "k", Old: r.Token, New: newRecord(idem.Completed)},
	}
	for ctx, want := range e.doneContexts() {
		var swapped []idem.Swapped
		e.promptly("SwapAll with a context that is done", func() { swapped = e.b.(idem.Batcher).SwapAll(ctx, swaps) })
		if len(swapped) != len(swaps) {
			e.fatalf("SwapAll of %d swaps returned %d answers", len(swaps), len(swapped))
		}
		for _, s := range swapped {
			if !errors.Is(s.Err, want) {
				e.errorf("SwapAll with a context that was done: the error is %v, want one that wraps %q", s.Err, want)
			}
		}
		e.wantStored("absent", idem.Record{})
		e.wantStored("k", r)
	}
}

// testBatchContextEnds cancels calls on their way. Each swap is then stored or
// not, and none is told that it is stored and is not.
func testBatchContextEnds(e *env) {
	for round := range rounds(10) {
		ctx, cancel := context.WithCancel(e.ctx)
		swaps := make([]idem.Swap, 20)
		for i := range swaps {
			swaps[i] = idem.Swap{Key: fmt.Sprintf("round %d key %d", round, i), New: newRecord(idem.InProgress)}
		}
		var swapped []idem.Swapped
		together(2, func(n int) {
			if n == 0 {
				if round%2 == 0 {
					e.get(e.b, "k") // takes about as long as a part of the call
				}
				cancel()
				return
			}
			e.promptly("SwapAll whose context ends", func() { swapped = e.b.(idem.Batcher).SwapAll(ctx, swaps) })
		})
		if len(swapped) != len(swaps) {
			e.fatalf("SwapAll of %d swaps returned %d answers", len(swaps), len(swapped))
		}
		for i, s := range swapped {
			switch {
			case s.Err == nil:
				e.want("SwapAll whose context ends", s.Record, swaps[i].New)
				e.wantStored(swaps[i].Key, swaps[i].New)
			case !errors.Is(s.Err, context.Canceled):
				e.errorf("SwapAll whose context ends: the error is %v, want one that wraps %q", s.Err, context.Canceled)
			}
		}
	}
}

func testBatchTx(e *env) {
	for _, end := range []error{errRollback, nil} {
		what := "a commit"
		if end != nil {
			what = "a rollback"
		}
		steps := e.mixed(what + " ")
		before := make([]idem.Record, len(steps))
		for i, s := range steps {
			before[i] = e.get(e.b, s.swap.Key)
		}
		err := e.inTx(func(tx idem.Backend) error {
			if _, ok := tx.(idem.Batcher); !ok {
				for _, s := range steps {
					e.want("Swap, "+s.what, e.swap(tx, s.swap.Key, s.swap.Old, s.swap.New), s.want)
				}
				return end
			}
			e.steps(tx, steps)
			for i, s := range steps {
				if r, seen := e.outside(s.swap.Key); seen {
					e.want("Get by others before "+what, r, before[i])
				}
			}
			return end
		})
		if !errors.Is(err, end) {
			e.fatalf("the transaction that ends with %s: %v", what, err)
		}
		for i, s := range steps {
			if end != nil {
				s.want = before[i]
			}
			e.want("Get after "+what+", "+s.what, e.get(e.b, s.swap.Key), s.want)
		}
	}
}
