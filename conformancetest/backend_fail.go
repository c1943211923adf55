package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idem-go/idem"
)

const (
	ruleContext   = "A call whose context is done returns promptly with an error that wraps the context's."
	ruleUnchanged = "A call whose context was done before it began changes nothing."
	ruleFailure   = "An error means that the storage failed and that the outcome of a Swap is unknown"
)

var failCases = []testCase{
	{name: "ContextDone", rule: ruleContext, run: testContextDone},
	{name: "ContextEnds", rule: ruleContext, run: testContextEnds},
	{name: "ContextEndsBehindTx", rule: ruleContext, needs: needInTx, run: testContextEndsBehindTx},
	{name: "ContextDoneUnchanged", rule: ruleUnchanged, timed: true, run: testContextDoneUnchanged},
	{name: "Broken", rule: ruleFailure, needs: needBreak, run: testBroken},
}

// doneContexts returns contexts that are done, each with its error.
func (e *env) doneContexts() map[context.Context]error {
	cancelled, cancel := context.WithCancel(e.ctx)
	cancel()
	caused, cancelCause := context.WithCancelCause(e.ctx)
	cancelCause(errors.New("the caller has hung up"))
	late, stop := context.WithDeadline(e.ctx, time.Now().Add(-time.Hour))
	stop() // the deadline was first
	return map[context.Context]error{cancelled: context.Canceled, caused: context.Canceled, late: context.DeadlineExceeded}
}

// calls returns a call of each method. Both Swaps would succeed.
func (e *env) calls(absent, present string, token string) map[string]func(context.Context) error {
	calls := map[string]func(context.Context) error{
		"Get of an absent key":  func(ctx context.Context) error { _, err := e.b.Get(ctx, absent); return err },
		"Get":                   func(ctx context.Context) error { _, err := e.b.Get(ctx, present); return err },
		"Swap of an absent key": func(ctx context.Context) error { _, err := e.b.Swap(ctx, absent, "", full(idem.Completed)); return err },
		"Swap": func(ctx context.Context) error {
			_, err := e.b.Swap(ctx, present, token, full(idem.Completed))
			return err
		},
		"Swap that finds a record": func(ctx context.Context) error {
			_, err := e.b.Swap(ctx, present, "", full(idem.Completed))
			return err
		},
		"Sweep": func(ctx context.Context) error { _, err := e.b.Sweep(ctx, 1000); return err },
	}
	if l, ok := e.b.(idem.Lister); ok {
		calls["List"] = func(ctx context.Context) error { _, _, err := l.List(ctx, idem.Query{}); return err }
	}
	return calls
}

func testContextDone(e *env) {
	r := e.put("k", newRecord(idem.InProgress))
	for ctx, want := range e.doneContexts() {
		for what, call := range e.calls("absent", "k", r.Token) {
			e.promptly(what+" with a context that is done", func() {
				if err := call(ctx); !errors.Is(err, want) {
					e.errorf("%s with a context that is done: the error is %v, want one that wraps %q", what, err, want)
				}
			})
		}
	}
}

func testContextDoneUnchanged(e *env) {
	r := newRecord(idem.InProgress)
	stored := e.clock.during(func() { e.put("k", r) })
	gone := newRecord(idem.Completed)
	gone.TTL = time.Hour
	e.put("gone", gone)
	e.clock.pass(2 * time.Hour)
	for ctx := range e.doneContexts() {
		for what, call := range e.calls("absent", "k", r.Token) {
			e.promptly(what+" with a context that is done", func() { _ = call(ctx) })
		}
	}
	e.wantAge("k", stored, r)
	e.wantStored("absent", idem.Record{})
	if n := e.sweep(1000); n > 1 {
		e.errorf("Sweep deleted %d records, want 1 at most", n)
	}
	e.wantAge("k", stored, r)
	e.wantStored("absent", idem.Record{})
}

// testContextEnds cancels calls at any point of their way. Each ends as an
// error of its context or as a success, and a success is stored.
func testContextEnds(e *env) {
	rnd := e.random()
	var ended int
	for i := range rounds(200) {
		key := fmt.Sprintf("k%d", i)
		r := full(idem.Completed)
		ctx, cancel := context.WithTimeout(e.ctx, time.Duration(rnd.IntN(400))*time.Microsecond)
		var got idem.Record
		var err error
		e.promptly("Swap with a context that ends", func() { got, err = e.b.Swap(ctx, key, "", r) })
		cancel()
		switch stored := e.get(e.b, key); {
		case err == nil:
			e.want("Swap that succeeded before its context ended", got, r)
			e.want("Get after a Swap that succeeded", stored, r)
		case !errors.Is(err, context.DeadlineExceeded):
			e.errorf("Swap with a context that ended: the error is %v, want one that wraps %q", err, context.DeadlineExceeded)
		case stored.Token != "":
			e.want("Get after a Swap that was cancelled and took effect", stored, r)
			ended++
		default:
			ended++
		}
	}
	e.logf("%d Swaps were cancelled", ended)
	e.put("after", newRecord(idem.InProgress)) // and the backend is as good as before
}

// testContextEndsBehindTx holds a key in an open transaction, where that is
// possible, and gives up waiting for it.
func testContextEndsBehindTx(e *env) {
	key := "k"
	err := e.inTx(func(tx idem.Backend) error {
		if _, err := tx.Swap(e.ctx, key, "", newRecord(idem.InProgress)); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(e.ctx, 100*time.Millisecond)
		defer cancel()
		e.promptly("Swap with a deadline, of a key that a transaction has written", func() {
			if _, err := e.b.Swap(ctx, key, "", newRecord(idem.Completed)); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				e.errorf("Swap with a deadline behind a transaction: the error is %v, want one that wraps %q", err, context.DeadlineExceeded)
			}
		})
		return errRollback
	})
	if !errors.Is(err, errRollback) {
		e.logf("the transaction failed: %v", err)
	}
	e.put("after", newRecord(idem.InProgress))
}

func testBroken(e *env) {
	r := e.put("k", newRecord(idem.InProgress))
	for range 2 {
		e.live()
		restore := e.h.Break(e.t, e.raw)
		for what, call := range e.calls("absent", "k", r.Token) {
			ctx, cancel := context.WithTimeout(e.ctx, time.Second)
			e.promptly(what+" of a storage that fails", func() {
				if err := call(ctx); err == nil {
					e.errorf("%s of a storage that fails returned no error", what)
				}
			})
			cancel()
		}
		restore()
		// A Swap may have been applied, or be applied late; what is stored is one
		// of the records.
		now := e.get(e.b, "k")
		if now.Token == "" {
			e.errorf("the record is gone after the storage failed")
		}
		next := newRecord(idem.InProgress)
		for now.Token != next.Token && e.ctx.Err() == nil {
			got := e.swap(e.b, "k", now.Token, next)
			if got.Token == now.Token {
				e.fatalf("Swap with the token of the record that is there was refused")
			}
			now = got
		}
		r = next
	}
}
