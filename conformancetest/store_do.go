package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/idem-go/idem"
)

const (
	ruleDo      = "Do runs the operation once for the key and gives its result to every caller."
	ruleWaiter  = "A caller who waits for a running duplicate takes its place if that is released, abandoned or over."
	ruleUnknown = "A panic, a Goexit or an error leaves the outcome unknown: the next attempt is told."
)

var doCases = []testCase{
	{name: "Do/OneRuns", rule: ruleDo, run: storyOneRuns},
	{name: "Do/Waiters", rule: ruleDo, run: storyWaiters},
	{name: "Do/WaitersShare", rule: "However many wait for one key, the storage is asked as if one did.", run: storyWaitersShare},
	{name: "Do/Released", rule: ruleWaiter, run: storyWaiterAfterRelease},
	{name: "Do/Abandoned", rule: ruleWaiter, run: storyWaiterAfterAbandon},
	{name: "Do/Lapsed", rule: ruleWaiter, run: storyWaiterAfterLapse},
	{name: "Do/Panic", rule: ruleUnknown, run: storyPanic},
	{name: "Do/Heartbeat", rule: "While the operation runs its claim is extended.", run: storyHeartbeat},
	{name: "Do/TakenOver", rule: "An operation whose claim was taken over is told by ErrLost, and its result is not recorded.", run: storyTakenOver},
	{name: "RS-4/CallerGone", rule: "What the operation returns is recorded even if its caller is gone.", run: storyCallerGone},
	{name: "OP-4/WaiterGivesUp", rule: "A waiter whose context ends gets an error that is ErrInProgress and the context's.", run: storyWaiterGivesUp},
	{name: "Call/JSON", rule: "Call gives every caller with the same request the response that the first one got.", run: storyCall},
}

func storyOneRuns(e *env) {
	const callers = 32
	stores := e.stores(4)
	for round := range rounds(8) {
		key := fmt.Sprintf("k%d", round)
		var runs, fresh atomic.Int64
		together(callers, func(i int) {
			out, err := stores[i%4].Do(e.ctx, key, payload, func(context.Context, *idem.Claim) (idem.Result, error) {
				return text(fmt.Sprintf("run %d of %s", runs.Add(1), key)), nil
			})
			e.is("Do", err, nil)
			if !out.Result.Equal(text("run 1 of "+key)) || out.Attempt != 1 {
				e.errorf("Do gave %+v", out)
			}
			if !out.Replayed {
				fresh.Add(1)
			}
		})
		if runs.Load() != 1 || fresh.Load() != 1 {
			e.fatalf("the operation ran %d times, and %d callers were told that theirs had run; want 1, 1", runs.Load(), fresh.Load())
		}
	}
}

// running starts a Do and returns when its operation runs. finish ends the
// operation and returns what Do gave.
func (e *env) running(s *idem.Store, key string, r idem.Result, opErr error) (finish func() error) {
	e.t.Helper()
	runs, end, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := s.Do(e.ctx, key, payload, func(context.Context, *idem.Claim) (idem.Result, error) {
			close(runs)
			<-end
			return r, opErr
		})
		ended <- err
	}()
	select {
	case <-runs:
	case err := <-ended:
		e.fatalf("Do of a fresh key did not run the operation: %v", err)
	}
	return func() (err error) {
		close(end)
		e.promptly("Do whose operation has ended", func() { err = <-ended })
		return err
	}
}

// counting returns a Store on b and the number of its callers that were refused
// because an attempt is running: those who wait.
func (e *env) counting(b idem.Backend) (*idem.Store, *atomic.Int64) {
	e.t.Helper()
	refused := new(atomic.Int64)
	return e.store(b, &idem.Options{Lease: lease, Observe: func(_ context.Context, event idem.Event) {
		if event.Op == "begin" && errors.Is(event.Err, idem.ErrInProgress) {
			refused.Add(1)
		}
	}}), refused
}

// storyWaiters lets duplicates wait, on the same handle and on others, through
// the storage's Watch where it has one.
func storyWaiters(e *env) {
	const waiters = 24
	s, waitHere := e.counting(e.b)
	peer, waitThere := e.counting(e.peer())
	finish := e.running(s, "k", text("slow"), nil)
	answers := make(chan idem.Outcome, waiters)
	for i := range waiters {
		go func() {
			out, err := []*idem.Store{s, peer}[i%2].Do(e.ctx, "k", payload, e.never)
			e.is("Do that waits", err, nil)
			answers <- out
		}()
	}
	e.eventually("the duplicates wait", func() bool { return waitHere.Load()+waitThere.Load() == waiters })
	_, err := peer.Do(e.ctx, "k", otherPayload, e.never)
	e.is("Do with another payload", err, idem.ErrMismatch)
	e.is("Do", finish(), nil)
	e.promptly("Do that waits for an operation that has ended", func() {
		for range waiters {
			if out := <-answers; !out.Replayed || !out.Result.Equal(text("slow")) {
				e.errorf("Do that waited gave %+v", out)
			}
		}
	})
}

func storyWaitersShare(e *env) {
	const waiters = 100
	f := &faulty{b: e.b}
	s := e.store(f, nil)
	finish := e.running(e.store(e.b, nil), "k", text("slow"), nil)
	answers := make(chan error, waiters)
	for range waiters {
		go func() {
			_, err := s.Do(e.ctx, "k", payload, e.never)
			answers <- err
		}()
	}
	// Each caller asks once whether the key is free; then they wait together.
	e.eventually("all callers have asked", func() bool { return f.calls() >= waiters })
	before, begun := f.calls(), time.Now()
	e.eventually("some time has passed", func() bool { return time.Since(begun) > 150*time.Millisecond })
	asked, took := f.calls()-before, time.Since(begun)
	if most := 20 + int(took/(10*time.Millisecond)); asked > most {
		e.errorf("%d waiters of one key asked the storage %d times in %v, want %d at most", waiters, asked, took, most)
	}
	e.is("Do", finish(), nil)
	e.promptly("Do that waits for an operation that has ended", func() {
		for range waiters {
			e.is("Do that waits", <-answers, nil)
		}
	})
}

// takesOver lets a duplicate wait for an operation that ends without a result,
// and returns the claim with which it runs the operation itself.
func (e *env) takesOver(first *idem.Store, b idem.Backend, key string, opErr error) *idem.Claim {
	e.t.Helper()
	second, waiting := e.counting(b)
	finish := e.running(first, key, idem.Result{}, opErr)
	ended := make(chan error, 1)
	var own *idem.Claim
	go func() {
		_, err := second.Do(e.ctx, key, payload, func(_ context.Context, c *idem.Claim) (idem.Result, error) {
			own = c
			return text("second"), nil
		})
		ended <- err
	}()
	e.eventually("the duplicate waits", func() bool { return waiting.Load() > 0 })
	if err := finish(); !errors.Is(err, opErr) && err.Error() != opErr.Error() {
		e.errorf("Do gave the error %v, want the operation's", err)
	}
	e.promptly("Do that waits for an operation that has ended", func() { e.is("Do that waits", <-ended, nil) })
	e.replay(first, key, text("second"))
	if own == nil {
		e.fatalf("the duplicate did not run the operation")
	}
	return own
}

var errOperation = errors.New("the operation failed")

func storyWaiterAfterRelease(e *env) {
	s := e.store(e.b, nil)
	for i, b := range e.handles(2) {
		c := e.takesOver(s, b, fmt.Sprintf("k%d", i), idem.NoEffect(errOperation))
		if c.Takeover || c.Attempt != 2 {
			e.errorf("after a release the claim has attempt %d, takeover %v; want 2, false", c.Attempt, c.Takeover)
		}
	}
}

func storyWaiterAfterAbandon(e *env) {
	s := e.store(e.b, nil)
	for i, b := range e.handles(2) {
		c := e.takesOver(s, b, fmt.Sprintf("k%d", i), errOperation)
		if !c.Takeover || c.Attempt != 2 {
			e.errorf("after an error the claim has attempt %d, takeover %v; want 2, true", c.Attempt, c.Takeover)
		}
	}
}

// storyWaiterAfterLapse waits for an attempt that has crashed, in real time.
func storyWaiterAfterLapse(e *env) {
	crashed := e.store(e.b, &idem.Options{Lease: 200 * time.Millisecond})
	for i, s := range e.stores(2) {
		key := fmt.Sprintf("k%d", i)
		e.claim(crashed, key, payload)
		e.promptly("Do that waits for a crashed attempt", func() {
			out, err := s.Do(e.ctx, key, payload, func(_ context.Context, c *idem.Claim) (idem.Result, error) {
				if !c.Takeover || c.Attempt != 2 {
					e.errorf("after a crash the claim has attempt %d, takeover %v; want 2, true", c.Attempt, c.Takeover)
				}
				return text("second"), nil
			})
			e.is("Do", err, nil)
			if out.Replayed || out.Attempt != 2 {
				e.errorf("Do gave %+v", out)
			}
		})
	}
}

func storyPanic(e *env) {
	s := e.store(e.b, nil)
	for what, crash := range map[string]func(){"panic": func() { panic("the operation's own value") }, "Goexit": runtime.Goexit} {
		gone := make(chan any)
		go func() {
			defer func() { gone <- recover() }()
			_, _ = s.Do(e.ctx, what, payload, func(context.Context, *idem.Claim) (idem.Result, error) {
				crash()
				return idem.Result{}, nil
			})
		}()
		e.promptly("Do after a "+what, func() {
			if value := <-gone; what == "panic" && value != "the operation's own value" {
				e.errorf("the panic came out as %v", value)
			}
		})
		if r := e.lookup(s, what); !r.Lapsed() {
			e.errorf("after a %s the record is %v, want a lapsed one", what, show(r))
		}
		e.refused(s, what, otherPayload, idem.ErrMismatch)
		if c := e.claim(s, what, payload); !c.Takeover || c.Attempt != 2 {
			e.errorf("after a %s the claim has attempt %d, takeover %v; want 2, true", what, c.Attempt, c.Takeover)
		}
	}
}

// storyHeartbeat runs until the claim was extended twice.
func storyHeartbeat(e *env) {
	s := e.store(e.b, &idem.Options{Lease: 900 * time.Millisecond})
	peer := e.store(e.peer(), nil)
	_, err := s.Do(e.ctx, "k", payload, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
		tokens := make(map[string]bool)
		e.eventually("the claim is extended twice", func() bool {
			r := e.lookup(peer, "k")
			tokens[r.Token] = true
			return len(tokens) >= 3
		})
		if ctx.Err() == nil {
			e.refused(peer, "k", payload, idem.ErrInProgress)
		}
		return text("done"), nil
	})
	e.is("Do that took longer than its lease", err, nil)
	e.replay(peer, "k", text("done"))
}

// storyTakenOver takes the key from an operation that runs, as if its process
// had been stopped for longer than its lease.
func storyTakenOver(e *env) {
	s := e.store(e.b, &idem.Options{Lease: 600 * time.Millisecond})
	peer := e.store(e.peer(), nil)
	out, err := s.Do(e.ctx, "k", payload, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
		now := e.get(e.b, "k")
		theirs := newRecord(idem.Completed)
		theirs.Fingerprint, theirs.Attempt, theirs.Result = payload, 2, text("theirs")
		for got := e.swap(e.b, "k", now.Token, theirs); got.Token != theirs.Token && e.ctx.Err() == nil; {
			got = e.swap(e.b, "k", got.Token, theirs) // an extension came first
		}
		e.promptly("the context of an operation whose claim was taken over", func() { <-ctx.Done() })
		e.is("the cause of that", context.Cause(ctx), idem.ErrLost)
		return text("ours"), nil
	})
	e.is("Do", err, idem.ErrLost)
	e.is("Do", err, idem.ErrNotRecorded)
	if !out.Result.Equal(text("ours")) {
		e.errorf("Do gave %+v, want the operation's own result with the error", out)
	}
	e.replay(peer, "k", text("theirs"))
}

func storyCallerGone(e *env) {
	s := e.store(e.b, nil)
	ctx, hangUp := context.WithCancel(e.ctx)
	out, err := s.Do(ctx, "k", payload, func(work context.Context, c *idem.Claim) (idem.Result, error) {
		hangUp()
		<-work.Done()
		return text("done"), nil
	})
	e.is("Do whose caller is gone", err, nil)
	if !out.Result.Equal(text("done")) {
		e.errorf("Do gave %+v", out)
	}
	e.replay(e.store(e.peer(), nil), "k", text("done"))

	ctx, hangUp = context.WithCancel(e.ctx)
	_, err = s.Do(ctx, "unclear", payload, func(work context.Context, c *idem.Claim) (idem.Result, error) {
		hangUp()
		<-work.Done()
		return idem.Result{}, work.Err()
	})
	e.is("Do whose operation was cancelled", err, context.Canceled)
	if c := e.claim(s, "unclear", payload); !c.Takeover {
		e.errorf("after an operation that was cancelled the claim has no Takeover")
	}
}

func storyWaiterGivesUp(e *env) {
	stores := e.stores(2)
	e.claim(stores[0], "k", payload)
	before := e.lookup(stores[0], "k")
	for _, s := range stores {
		e.promptly("Do with a deadline", func() {
			err := e.within(50*time.Millisecond, func(ctx context.Context) error {
				out, err := s.Do(ctx, "k", payload, e.never)
				if out.Replayed || out.Attempt != 0 {
					e.errorf("Do that gave up gave %+v", out)
				}
				return err
			})
			e.is("Do that gave up", err, idem.ErrInProgress)
			e.is("Do that gave up", err, context.DeadlineExceeded)
		})
	}
	_, err := e.store(e.b, &idem.Options{NoWait: true}).Do(e.ctx, "k", payload, e.never)
	e.is("Do with NoWait", err, idem.ErrInProgress)
	e.unchanged(stores[1], "k", before)
}

func storyCall(e *env) {
	type request struct {
		Account string
		Amount  int64
	}
	type response struct {
		Receipt string
		Lines   []string
	}
	stores := e.stores(2)
	var runs atomic.Int64
	pay := func(_ context.Context, r request) (response, error) {
		return response{Receipt: fmt.Sprintf("%s-%d", r.Account, r.Amount), Lines: []string{fmt.Sprint(runs.Add(1)), "ä\x00\u2028"}}, nil
	}
	const beyondFloats = 9007199254740993
	for i := range 4 {
		got, err := idem.Call(e.ctx, stores[i%2], "k", request{"A", beyondFloats}, pay)
		e.is("Call", err, nil)
		if got.Receipt != fmt.Sprintf("A-%d", int64(beyondFloats)) || len(got.Lines) != 2 || got.Lines[0] != "1" || got.Lines[1] != "ä\x00\u2028" {
			e.errorf("Call gave %+v", got)
		}
	}
	_, err := idem.Call(e.ctx, stores[0], "k", request{"A", beyondFloats - 1}, pay)
	e.is("Call with another request", err, idem.ErrMismatch)
	if runs.Load() != 1 {
		e.errorf("the operation ran %d times, want 1", runs.Load())
	}
}
