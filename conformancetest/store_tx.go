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
	ruleOneTx   = "Claim, effect and result in one transaction commit together or not at all."
	ruleDoTx    = "DoTx has one effect, which commits with the result, whatever becomes of the replies to commits."
	ruleTxDone  = "Complete in the transaction of the effect: both commit, or neither."
	ruleTxLost  = "Complete in a transaction whose claim was lost is ErrLost, so that the effect is rolled back."
	ruleTxClaim = "A transaction that holds a key excludes others, and leaves no trace if it rolls back."
)

// The effect of these stories is a record of its own, written in the same
// transaction.
var storeTxCases = []testCase{
	{name: "EverythingInOne", rule: ruleOneTx, needs: needInTx, run: storyTxEverything},
	{name: "Do", rule: ruleOneTx, needs: needInTx, run: storyTxDo},
	{name: "DoTx/OneRuns", rule: ruleDoTx, needs: needInTx, run: storyDoTx},
	{name: "DoTx/CommitReplyLost", rule: ruleDoTx, needs: needInTx, run: storyDoTxReplyLost},
	{name: "CompleteInTx", rule: ruleTxDone, needs: needInTx, run: storyTxComplete},
	{name: "CompleteLost", rule: ruleTxLost, needs: needInTx, timed: true, run: storyTxLost},
	{name: "KF-1/OtherPayload", rule: ruleMismatch, needs: needInTx, run: storyTxMismatch},
	{name: "PE-10/Duplicates", rule: ruleTxClaim, needs: needInTx, run: storyTxDuplicates},
	{name: "PG-1/ClaimRace", rule: ruleTxClaim, needs: needInTx, run: storyTxRace},
}

// effect writes the effect of an operation in a transaction.
func (e *env) effect(tx idem.Backend, name string) error {
	r := newRecord(idem.Completed)
	got, err := tx.Swap(e.ctx, "effect "+name, "", r)
	if err == nil && got.Token != r.Token {
		err = fmt.Errorf("the effect %q is there already", name)
	}
	return err
}

// wantEffect reports if the effect has happened, or not, against what is wanted.
func (e *env) wantEffect(name string, want bool) {
	e.t.Helper()
	if got := e.get(e.b, "effect "+name).Token != ""; got != want {
		e.errorf("the effect of %q has happened: %v, want %v", name, got, want)
	}
}

func storyTxEverything(e *env) {
	s := e.store(e.b, nil)
	run := func(end error) (attempt int, err error) {
		err = e.inTx(func(tx idem.Backend) error {
			c, done, err := s.With(tx).Begin(e.ctx, "k", payload)
			if c == nil {
				e.fatalf("Begin in a transaction gave %s, want a claim", outcome(c, done, err))
			}
			attempt = c.Attempt
			if err := e.effect(tx, "k"); err != nil {
				return err
			}
			if err := s.With(tx).Complete(e.ctx, c, text("done")); err != nil {
				return err
			}
			return end
		})
		return attempt, err
	}
	for range 2 {
		_, err := run(errRollback)
		e.is("a transaction that is rolled back", err, errRollback)
		e.wantEffect("k", false)
		e.want("Lookup after a rollback", e.lookup(s, "k"), idem.Record{})
	}
	attempt, err := run(nil)
	e.is("the transaction", err, nil)
	if attempt != 1 {
		e.errorf("after rollbacks the claim is attempt %d, want 1", attempt)
	}
	e.wantEffect("k", true)
	e.replay(s, "k", text("done"))
	err = e.inTx(func(tx idem.Backend) error {
		e.replay(s.With(tx), "k", text("done"))
		return nil
	})
	e.is("a transaction with a replay", err, nil)
}

func storyTxDo(e *env) {
	s := e.store(e.b, nil)
	do := func(opErr error) (out idem.Outcome, err error) {
		err = e.inTx(func(tx idem.Backend) error {
			out, err = s.With(tx).Do(e.ctx, "k", payload, func(context.Context, *idem.Claim) (idem.Result, error) {
				if err := e.effect(tx, "k"); err != nil {
					return idem.Result{}, err
				}
				return text("done"), opErr
			})
			return err
		})
		return out, err
	}
	_, err := do(errOperation)
	e.is("Do in a transaction, whose operation fails", err, errOperation)
	e.wantEffect("k", false)
	e.want("Lookup after a rollback", e.lookup(s, "k"), idem.Record{})
	for again := range 2 {
		out, err := do(nil)
		e.is("Do in a transaction", err, nil)
		if out.Replayed != (again > 0) || out.Attempt != 1 || !out.Result.Equal(text("done")) {
			e.errorf("Do in a transaction gave %+v", out)
		}
	}
	e.wantEffect("k", true)
}

// doTx runs DoTx, in whose transaction the effect of that name is written.
// commit sees how each transaction ended, and says how it is reported.
func (e *env) doTx(s *idem.Store, key, name string, between crossing, commit func(error) error) (idem.Outcome, error) {
	return s.DoTx(e.ctx, key, payload, func(ctx context.Context, body idem.TxBody) error {
		return commit(e.inTx(func(tx idem.Backend) error {
			return body(ctx, tx, func(context.Context, *idem.Claim) (idem.Result, error) {
				err := e.effect(tx, name)
				if between != nil {
					between.meet()
				}
				return text("done"), err
			})
		}))
	})
}

func storyDoTx(e *env) {
	const callers = 8
	stores := e.stores(2)
	between := make(crossing)
	for round := range rounds(8) {
		key := fmt.Sprintf("k%d", round)
		var fresh atomic.Int64
		together(callers, func(i int) {
			out, err := e.doTx(stores[i%2], key, fmt.Sprintf("%s by %d", key, i), between, func(err error) error { return err })
			e.is("DoTx", err, nil)
			if err == nil && (!out.Result.Equal(text("done")) || out.Attempt != 1) {
				e.errorf("DoTx gave %+v", out)
			}
			if err == nil && !out.Replayed {
				fresh.Add(1)
			}
		})
		effects := 0
		for i := range callers {
			if e.get(e.b, fmt.Sprintf("effect %s by %d", key, i)).Token != "" {
				effects++
			}
		}
		if effects != 1 || fresh.Load() != 1 {
			e.errorf("%d callers of DoTx had their effect, and %d were told that theirs had run; want 1, 1", effects, fresh.Load())
		}
		e.replay(stores[1], key, text("done"))
	}
}

func storyDoTxReplyLost(e *env) {
	s := e.store(e.b, nil)
	lost := 0
	out, err := e.doTx(s, "k", "k", nil, func(err error) error {
		if err == nil && lost == 0 {
			lost++
			return errLine
		}
		return err
	})
	e.is("DoTx whose commit was not answered", err, nil)
	if lost != 1 || out.Replayed || !out.Result.Equal(text("done")) {
		e.errorf("after %d commits that were not answered DoTx gave %+v", lost, out)
	}
	e.wantEffect("k", true)
	e.replay(s, "k", text("done"))
}

// storyTxComplete claims first and completes with the effect; a transaction
// that is rolled back is run again with the same claim.
func storyTxComplete(e *env) {
	stores := e.stores(2)
	c := e.claim(stores[0], "k", payload)
	complete := func(end error) error {
		return e.inTx(func(tx idem.Backend) error {
			if err := e.effect(tx, "k"); err != nil {
				return err
			}
			if err := stores[0].With(tx).Complete(e.ctx, c, text("done")); err != nil {
				return err
			}
			return end
		})
	}
	for range 2 {
		e.is("a transaction that is rolled back", complete(errRollback), errRollback)
		e.wantEffect("k", false)
		e.refused(stores[1], "k", payload, idem.ErrInProgress)
	}
	e.is("Extend between two tries", stores[0].Extend(e.ctx, c), nil)
	e.is("the transaction", complete(nil), nil)
	e.wantEffect("k", true)
	e.replay(stores[1], "k", text("done"))
	e.is("Complete again, outside", stores[0].Complete(e.ctx, c, text("done")), nil)
	e.is("Release after that", stores[0].Release(e.ctx, c), nil)
	e.replay(stores[1], "k", text("done"))
}

func storyTxLost(e *env) {
	stores := e.stores(2)
	stale := e.claim(stores[0], "k", payload)
	e.clock.pass(lease)
	c := e.claim(stores[1], "k", payload)
	before := e.lookup(stores[1], "k")
	err := e.inTx(func(tx idem.Backend) error {
		if err := e.effect(tx, "stale"); err != nil {
			return err
		}
		return stores[0].With(tx).Complete(e.ctx, stale, text("stale"))
	})
	e.is("a transaction whose claim was lost", err, idem.ErrLost)
	e.wantEffect("stale", false)
	e.unchanged(stores[1], "k", before)
	err = e.inTx(func(tx idem.Backend) error {
		if err := e.effect(tx, "present"); err != nil {
			return err
		}
		return stores[1].With(tx).Complete(e.ctx, c, text("present"))
	})
	e.is("the transaction of the present holder", err, nil)
	e.wantEffect("present", true)
	e.replay(stores[0], "k", text("present"))
}

// storyTxMismatch goes on in a transaction after it was refused a key.
func storyTxMismatch(e *env) {
	s := e.store(e.b, nil)
	e.done(s, "completed", payload, text("done"))
	e.claim(s, "live", payload)
	e.is("Abandon", s.Abandon(e.ctx, e.claim(s, "lapsed", payload)), nil)
	err := e.inTx(func(tx idem.Backend) error {
		bound := s.With(tx)
		for _, key := range []string{"completed", "live", "lapsed"} {
			e.refused(bound, key, otherPayload, idem.ErrMismatch)
		}
		e.refused(bound, "live", payload, idem.ErrInProgress)
		_, err := bound.Do(e.ctx, "live", payload, e.never)
		e.is("Do in a transaction, of a running operation", err, idem.ErrInProgress)
		e.replay(bound, "completed", text("done"))
		if c := e.claim(bound, "lapsed", payload); !c.Takeover || c.Attempt != 2 {
			e.errorf("the claim in a transaction is attempt %d, takeover %v; want 2, true", c.Attempt, c.Takeover)
		}
		return e.effect(tx, "k")
	})
	e.is("a transaction that was refused keys", err, nil)
	e.wantEffect("k", true)
	e.refused(s, "lapsed", payload, idem.ErrInProgress)
}

// storyTxDuplicates asks for a key while the transaction that completes it is
// open. Nobody gets a claim, and nobody waits for longer than he wants to.
func storyTxDuplicates(e *env) {
	stores := e.stores(2)
	c := e.claim(stores[0], "k", payload)
	err := e.inTx(func(tx idem.Backend) error {
		if err := stores[0].With(tx).Complete(e.ctx, c, text("done")); err != nil {
			return err
		}
		e.promptly("Begin beside a transaction", func() {
			together(8, func(i int) {
				err := e.within(200*time.Millisecond, func(ctx context.Context) error {
					c, done, err := stores[i%2].Begin(ctx, "k", payload)
					if c != nil || done != nil {
						e.errorf("Begin before the completion was committed gave %s", outcome(c, done, err))
					}
					return err
				})
				if !errors.Is(err, idem.ErrInProgress) && !errors.Is(err, idem.ErrUnavailable) {
					e.errorf("Begin beside a transaction: the error is %v", err)
				}
			})
		})
		return nil
	})
	e.is("the transaction", err, nil)
	e.replay(stores[1], "k", text("done"))
}

// storyTxRace begins a key while a transaction that has claimed it is open, and
// then ends that either way. One of them has the key at the end.
func storyTxRace(e *env) {
	stores := e.stores(2)
	for _, end := range []error{nil, errRollback} {
		key := fmt.Sprintf("end %v", end)
		type answer struct {
			c   *idem.Claim
			err error
		}
		answers := make(chan answer, 1)
		err := e.inTx(func(tx idem.Backend) error {
			c, done, err := stores[0].With(tx).Begin(e.ctx, key, payload)
			if c == nil {
				e.fatalf("Begin in a transaction gave %s", outcome(c, done, err))
			}
			go func() {
				c, _, err := stores[1].Begin(e.ctx, key, payload)
				answers <- answer{c, err}
			}()
			return end
		})
		var other answer
		e.promptly("Begin beside a transaction that has ended", func() { other = <-answers })
		switch {
		case err == nil && other.c != nil:
			e.errorf("a transaction that claimed the key has committed, and another caller has the key too")
		case err == nil:
			e.is("Begin beside a transaction that has claimed the key", other.err, idem.ErrInProgress)
		case other.c == nil:
			e.errorf("the transaction was rolled back (%v), and Begin beside it failed: %v", err, other.err)
		case other.c.Attempt != 1:
			e.errorf("after a rollback the claim is attempt %d, want 1", other.c.Attempt)
		}
	}
}
