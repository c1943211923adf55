package conformancetest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/idem-go/idem"
)

const ruleManyDo = "DoAll runs each operation once, whoever else runs it, and gives every item its result."

var manyDoCases = []testCase{
	{name: "Many/Do", rule: ruleManyDo, run: storyManyDo},
	{name: "Many/DoReplyLost", rule: ruleManyDo, run: storyManyDoReplyLost},
}

var manyTxCases = []testCase{
	{name: "Many", rule: ruleOneTx, needs: needInTx, run: storyManyTx},
}

// storyManyDo has DoAll and Do after the same keys.
func storyManyDo(e *env) {
	const keys, callers = 12, 6
	stores := e.stores(2)
	for round := range rounds(3) {
		all := names(fmt.Sprintf("round %d key ", round), keys)
		var runs [keys]atomic.Int32
		ran := func(key string) idem.Result {
			runs[slices.Index(all, key)].Add(1)
			return text("result of " + key)
		}
		together(callers, func(n int) {
			mine := slices.Concat(all[n*2:], all[:n*2])
			if n%2 == 1 {
				slices.Reverse(mine)
			}
			if n == callers-1 {
				for _, key := range mine {
					out, err := stores[n%2].Do(e.ctx, key, payload, func(_ context.Context, c *idem.Claim) (idem.Result, error) { return ran(c.Key), nil })
					e.is("Do beside batches", err, nil)
					if !out.Result.Equal(text("result of " + key)) {
						e.errorf("Do(%q) gave %+v", key, out)
					}
				}
				return
			}
			ends := stores[n%2].DoAll(e.ctx, items(mine...), func(_ context.Context, tasks []*idem.Task) error {
				for _, t := range tasks {
					if mine[t.Item] != t.Claim.Key {
						e.errorf("a task of item %d has the claim of %q, want that of %q", t.Item, t.Claim.Key, mine[t.Item])
					}
					t.End(ran(t.Claim.Key), nil)
				}
				return nil
			})
			for i, end := range ends {
				e.is("DoAll", end.Err, nil)
				if !end.Result.Equal(text("result of " + mine[i])) {
					e.errorf("DoAll gave %q the outcome %+v", mine[i], end.Outcome)
				}
			}
		})
		for k := range keys {
			if n := runs[k].Load(); n != 1 {
				e.errorf("one operation ran %d times, want once", n)
			}
		}
	}
}

func storyManyDoReplyLost(e *env) {
	for how, line := range e.lines() {
		for i, fates := range [][]fate{{replyLost, arrives, replyLost}, {arrives, replyLost, replyLost}, {requestLost, arrives, requestLost}, {requestLost, requestLost, replyLost}} {
			b, f := line()
			keys := names(fmt.Sprintf("%s %d ", how, i), 4)
			f.next(fates...)
			var runs atomic.Int32
			for again := range 2 {
				ends := e.store(b, nil).DoAll(e.ctx, items(keys...), func(_ context.Context, tasks []*idem.Task) error {
					for _, t := range tasks {
						runs.Add(1)
						t.End(text("done"), nil)
					}
					return nil
				})
				for _, end := range ends {
					e.is("DoAll over a bad line", end.Err, nil)
					if !end.Result.Equal(text("done")) || end.Replayed != (again > 0) || end.Attempt != 1 {
						e.errorf("DoAll over a bad line gave %+v", end.Outcome)
					}
				}
			}
			if n := runs.Load(); n != 4 {
				e.errorf("over a bad line 4 operations ran %d times", n)
			}
		}
	}
}

// storyManyTx claims and completes a batch in a transaction.
func storyManyTx(e *env) {
	s := e.store(e.b, nil)
	e.done(s, "done", payload, text("done"))
	e.claim(s, "running", payload)
	asked := append(items("b", "running", "a", "done", "a"), idem.Item{Key: "done", Fingerprint: otherPayload})
	for _, end := range []error{errRollback, nil} {
		err := e.inTx(func(tx idem.Backend) error {
			ends := s.With(tx).DoAll(e.ctx, asked, func(_ context.Context, tasks []*idem.Task) error {
				for _, t := range tasks {
					if err := e.effect(tx, t.Claim.Key); err != nil {
						return err
					}
					t.End(text("result of "+t.Claim.Key), nil)
				}
				return nil
			})
			for i, want := range []error{nil, idem.ErrInProgress, nil, nil, nil, idem.ErrMismatch} {
				e.is(fmt.Sprintf("DoAll in a transaction, item %d", i), ends[i].Err, want)
			}
			if !ends[2].Result.Equal(ends[4].Result) || ends[2].Replayed || !ends[4].Replayed || !ends[3].Replayed {
				e.errorf("DoAll in a transaction gave %+v", ends)
			}
			return end
		})
		e.is("the transaction", err, end)
		for _, key := range []string{"a", "b"} {
			e.wantEffect(key, end == nil)
			if end != nil {
				e.want("Lookup after a rollback", e.lookup(s, key), idem.Record{})
			} else {
				e.replay(s, key, text("result of "+key))
			}
		}
	}
}
