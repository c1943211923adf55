package conformancetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idem-go/idem"
)

const (
	ruleOneClaim  = "Of all callers with one key one gets the claim; the others write nothing and are told that it is in progress, or get the result."
	ruleImmutable = "A completed record is immutable until it expires; replays do not move its expiry."
	ruleMismatch  = "A key that is in use with another payload is refused with ErrMismatch, whatever its state, and nothing changes."
	ruleReleased  = "Release frees the key at once, for any payload."
	ruleNoClaim   = "Calls on a claim that was not granted are errors that are ErrLost, and write nothing."
	ruleFence     = "The fence is larger for every claim of the key."
)

var claimCases = []testCase{
	{name: "CL-1/ManyCallers", rule: ruleOneClaim, run: storyManyCallers},
	{name: "CL-3/FinishedStays", rule: ruleImmutable, timed: true, run: storyFinishedStays},
	{name: "KF-1/OtherPayload", rule: ruleMismatch, timed: true, run: storyOtherPayload},
	{name: "KF-1/LostRace", rule: ruleMismatch, run: storyOtherPayloadRace},
	{name: "KF-1/SamePayload", rule: "The fingerprint belongs to the key for the record's whole life: the same payload is never a mismatch.", timed: true, run: storySamePayload},
	{name: "PE-9/InFlight", rule: ruleMismatch, run: storyInFlight},
	{name: "FL-1/Release", rule: ruleReleased, run: storyRelease},
	{name: "FL-1/ReleaseDeferred", rule: "Release and Abandon do nothing once the claim has ended.", run: storyReleaseDeferred},
	{name: "OP-4/ZeroClaims", rule: ruleNoClaim, run: storyZeroClaims},
	{name: "PE-13/Fence", rule: ruleFence, timed: true, run: storyFence},
	{name: "ClaimText", rule: "A claim travels as text, and copies of it are one attempt.", run: storyClaimText},
}

func storyManyCallers(e *env) {
	const callers = 64
	stores := e.stores(4)
	for round := range rounds(12) {
		key := fmt.Sprintf("key-%d", round)
		want := text("result of " + key)

		// A reader sees no state but absent, in progress and completed.
		stop := make(chan struct{})
		var reading sync.WaitGroup
		reading.Go(func() {
			last := idem.Status(0)
			for {
				r := e.lookup(stores[1], key)
				switch {
				case r.Status < last:
					e.errorf("Lookup returned %v after a record that was %v", show(r), last)
				case r.Status != 0 && (r.Fingerprint != payload || r.Attempt != 1):
					e.errorf("Lookup returned %v with the fingerprint %v", show(r), r.Fingerprint)
				case r.Status == idem.Completed && !r.Result.Equal(want):
					e.errorf("Lookup returned the result %+v", r.Result)
				}
				last = r.Status
				select {
				case <-stop:
					return
				default:
				}
			}
		})

		var claims [callers]*idem.Claim
		together(callers, func(i int) {
			c, done, err := stores[i%4].Begin(e.ctx, key, payload)
			if claims[i] = c; c == nil && !errors.Is(err, idem.ErrInProgress) {
				e.errorf("Begin of a key that nobody has completed gave %s", outcome(c, done, err))
			}
		})
		var c *idem.Claim
		granted := 0
		for _, claim := range claims {
			if claim != nil {
				c = claim
				granted++
			}
		}
		if granted != 1 {
			close(stop)
			reading.Wait()
			e.fatalf("%d of %d callers got the claim, want 1", granted, callers)
		}
		before := e.lookup(stores[2], key)

		// The result arrives while everybody asks once more.
		var replayed atomic.Int64
		together(callers, func(i int) {
			if i == 0 {
				e.is("Complete", stores[3].Complete(e.ctx, c, want), nil)
				return
			}
			c, done, err := stores[i%4].Begin(e.ctx, key, payload)
			switch {
			case done != nil && done.Result.Equal(want):
				replayed.Add(1)
			case errors.Is(err, idem.ErrInProgress):
				if now, ok := errors.AsType[*idem.Error](err); ok && now.Record.Token != before.Token {
					e.errorf("a caller who was refused has written: the record is %v, it was %v", show(now.Record), show(before))
				}
			default:
				e.errorf("Begin beside Complete gave %s", outcome(c, done, err))
			}
		})
		close(stop)
		reading.Wait()
		for _, s := range stores {
			e.replay(s, key, want)
		}
	}
}

func storyFinishedStays(e *env) {
	stores := e.stores(2)
	want := text("the one result")
	e.done(stores[0], "k", payload, want)
	before := e.lookup(stores[0], "k")
	completed := e.clock.now()

	shorter := e.store(e.b, &idem.Options{Lease: time.Millisecond, Retention: idem.MaxRetention, OnLapse: idem.Hold})
	foreign := e.claim(stores[0].Scoped("elsewhere"), "k", payload)
	for i := range rounds(40) {
		for _, s := range append(stores, shorter) {
			e.replay(s, "k", want)
			e.refused(s, "k", otherPayload, idem.ErrMismatch)
		}
		for what, c := range map[string]*idem.Claim{"no claim": nil, "a zero claim": {}, "a claim with a key only": {Key: "k", Attempt: 1}, "a claim of another scope": foreign} {
			e.is("Complete with "+what, stores[0].Complete(e.ctx, c, text("forged")), idem.ErrLost)
			e.is("Extend with "+what, stores[0].Extend(e.ctx, c), idem.ErrLost)
			e.is("Release with "+what, stores[0].Release(e.ctx, c), idem.ErrLost)
		}
		e.is("Forget of a completed attempt", stores[0].Forget(e.ctx, "k", 1), idem.ErrCompleted)
		if e.h.InTx != nil {
			err := e.inTx(func(tx idem.Backend) error {
				e.replay(stores[0].With(tx), "k", want)
				e.refused(stores[0].With(tx), "k", otherPayload, idem.ErrMismatch)
				return nil
			})
			e.is("a transaction that was told the result", err, nil)
		}
		if i == 0 {
			e.clock.pass(6 * time.Hour)
		}
		e.sweep(100)
	}
	e.unchanged(stores[1], "k", before)
	if got, passed := e.lookup(stores[1], "k").Age, e.clock.now()-completed; got < 6*time.Hour-e.clock.slack || got > passed+before.Age+e.clock.slack {
		e.errorf("the record is %v old after %v", got, passed)
	}
	e.clock.pass(retention)
	e.claim(stores[0], "k", otherPayload)
}

// inStates brings a key of each state about and returns the keys, which say the
// state.
func (e *env) inStates(s *idem.Store) []string {
	e.t.Helper()
	e.claim(s, "lapsed", payload)
	late := e.claim(s, "taken", payload)
	e.claim(s, "completed after a takeover", payload)
	e.clock.pass(lease)
	e.claim(s, "taken", payload)
	e.is("Complete of a claim that was taken over", s.Complete(e.ctx, late, text("late")), idem.ErrLost)
	e.done(s, "completed after a takeover", payload, text("result"))
	e.done(s, "completed", payload, text("result"))
	abandoned := e.claim(s, "abandoned", payload)
	e.is("Abandon", s.Abandon(e.ctx, abandoned), nil)
	extended := e.claim(s, "extended", payload)
	e.is("Extend", s.Extend(e.ctx, extended), nil)
	noted := e.claim(s, "noted", payload)
	e.is("Checkpoint", s.Checkpoint(e.ctx, noted, []byte("note")), nil)
	e.claim(s, "live", payload)
	return []string{"live", "extended", "noted", "lapsed", "abandoned", "taken", "completed", "completed after a takeover"}
}

func storyOtherPayload(e *env) {
	stores := e.stores(2)
	for _, key := range e.inStates(stores[0]) {
		before := e.lookup(stores[0], key)
		begin := func(what string, s *idem.Store) {
			refusal := e.refusal(s, key, otherPayload, idem.ErrMismatch)
			if refusal.Record.Result.Body != nil || refusal.Record.Checkpoint != nil {
				e.errorf("%s of the key that is %s, with another payload, was told the first one's answer", what, key)
			}
			if errors.Is(refusal, idem.ErrInProgress) {
				e.errorf("%s of the key that is %s, with another payload, gave an error that is ErrInProgress too", what, key)
			}
		}
		begin("Begin", stores[0])
		begin("Begin by a peer", stores[1])
		begin("Begin under Hold", e.store(e.b, &idem.Options{OnLapse: idem.Hold}))
		if e.h.InTx != nil {
			err := e.inTx(func(tx idem.Backend) error {
				begin("Begin in a transaction", stores[0].With(tx))
				return nil
			})
			e.is("a transaction that was refused a key", err, nil)
		}
		_, err := stores[1].Do(e.ctx, key, otherPayload, e.never)
		e.is("Do of the key that is "+key+", with another payload", err, idem.ErrMismatch)
		e.unchanged(stores[1], key, before)
	}
}

func storySamePayload(e *env) {
	stores := e.stores(2)
	for _, key := range e.inStates(stores[0]) {
		switch key {
		case "live", "extended", "noted", "taken":
			e.refused(stores[1], key, payload, idem.ErrInProgress)
		case "lapsed", "abandoned":
			if c := e.claim(stores[1], key, payload); !c.Takeover || c.Attempt != 2 {
				e.errorf("Begin of the key that is %s gave attempt %d, takeover %v; want 2, true", key, c.Attempt, c.Takeover)
			}
		default:
			e.replay(stores[1], key, text("result"))
		}
	}
}

// storyOtherPayloadRace lets callers with two payloads race for a key.
func storyOtherPayloadRace(e *env) {
	const callers = 16
	stores := e.stores(2)
	for round := range rounds(20) {
		key := fmt.Sprintf("k%d", round)
		var errs [callers]error
		var winner atomic.Int64
		winner.Store(-1)
		together(callers, func(i int) {
			fp := []idem.Fingerprint{payload, otherPayload}[i%2]
			c, _, err := stores[i/2%2].Begin(e.ctx, key, fp)
			if errs[i] = err; c != nil && !winner.CompareAndSwap(-1, int64(i)) {
				e.errorf("two callers got the claim")
			}
		})
		won := int(winner.Load())
		if won < 0 {
			e.fatalf("no caller got the claim: %v", errs)
		}
		for i, err := range errs {
			switch {
			case i == won:
			case i%2 == won%2:
				e.is("Begin that lost a race against the same payload", err, idem.ErrInProgress)
			default:
				e.is("Begin that lost a race against another payload", err, idem.ErrMismatch)
			}
		}
	}
}

func storyInFlight(e *env) {
	s := e.store(e.b, nil)
	c := e.claim(s, "k", payload)
	for range 3 {
		e.refused(s, "k", payload, idem.ErrInProgress)
		if refusal := e.refusal(s, "k", otherPayload, idem.ErrMismatch); refusal.RetryAfter() != 0 {
			e.errorf("a caller with another payload is told to come back after %v", refusal.RetryAfter())
		}
	}
	e.is("Complete", s.Complete(e.ctx, c, text("done")), nil)
	e.replay(s, "k", text("done"))
}

func storyRelease(e *env) {
	stores := e.stores(2)
	c := e.claim(stores[0], "k", payload)
	e.is("Release", stores[0].Release(e.ctx, c), nil)
	if r := e.lookup(stores[1], "k"); r.Status != idem.Released && r.Status != 0 {
		e.errorf("Lookup after Release returned %v", show(r))
	}
	next := e.claim(stores[1], "k", otherPayload)
	if next.Attempt != 2 || next.Takeover {
		e.errorf("Begin after Release gave attempt %d, takeover %v; want 2, false", next.Attempt, next.Takeover)
	}
	e.is("Complete after one's own Release", stores[0].Complete(e.ctx, c, text("late")), idem.ErrLost)
	e.is("Extend after one's own Release", stores[0].Extend(e.ctx, c), idem.ErrLost)
	e.is("Release again", stores[0].Release(e.ctx, c), nil)
	e.is("Complete", stores[1].Complete(e.ctx, next, text("done")), nil)
	e.refused(stores[0], "k", payload, idem.ErrMismatch)

	// Complete after Release, when nobody has claimed since.
	c = e.claim(stores[0], "lonely", payload)
	e.is("Release", stores[0].Release(e.ctx, c), nil)
	e.is("Complete after one's own Release", stores[0].Complete(e.ctx, c, text("late")), idem.ErrLost)
	e.claim(stores[0], "lonely", payload)
}

func storyReleaseDeferred(e *env) {
	s := e.store(e.b, nil)
	c := e.done(s, "completed", payload, text("done"))
	before := e.lookup(s, "completed")
	e.is("Release after Complete", s.Release(e.ctx, c), nil)
	e.is("Abandon after Complete", s.Abandon(e.ctx, c), nil)
	e.unchanged(s, "completed", before)
	e.is("Complete again, with the same result", s.Complete(e.ctx, c, text("done")), nil)
	e.is("Complete again, with another result", s.Complete(e.ctx, c, text("another")), idem.ErrCompleted)
	e.is("Extend after Complete", s.Extend(e.ctx, c), idem.ErrLost)
	e.is("Checkpoint after Complete", s.Checkpoint(e.ctx, c, []byte("note")), idem.ErrLost)
	e.unchanged(s, "completed", before)

	c = e.claim(s, "abandoned", payload)
	e.is("Abandon", s.Abandon(e.ctx, c), nil)
	before = e.lookup(s, "abandoned")
	if !before.Lapsed() || before.Fingerprint != payload {
		e.errorf("Lookup after Abandon returned %v with the fingerprint %v", show(before), before.Fingerprint)
	}
	e.is("Release after Abandon", s.Release(e.ctx, c), nil)
	e.is("Abandon again", s.Abandon(e.ctx, c), nil)
	e.unchanged(s, "abandoned", before)
	e.is("Complete after Abandon", s.Complete(e.ctx, c, text("after all")), nil)
	e.replay(s, "abandoned", text("after all"))
}

func storyZeroClaims(e *env) {
	f := &faulty{b: e.b}
	s := e.store(f, nil)
	e.done(s, "k", payload, text("done"))
	running := e.claim(s, "running", payload)
	for _, fp := range []idem.Fingerprint{payload, otherPayload} {
		for _, key := range []string{"k", "running", ""} {
			c, _, _ := s.Begin(e.ctx, key, fp)
			if c != nil {
				e.fatalf("Begin of %q gave a claim", key)
			}
			asked := f.calls()
			for what, err := range map[string]error{
				"Complete": s.Complete(e.ctx, c, text("forged")), "Release": s.Release(e.ctx, c), "Abandon": s.Abandon(e.ctx, c),
				"Extend": s.Extend(e.ctx, c), "Checkpoint": s.Checkpoint(e.ctx, c, nil),
				"Complete of a zero claim": s.Complete(e.ctx, new(idem.Claim), text("forged")), "Release of a zero claim": s.Release(e.ctx, new(idem.Claim)),
			} {
				e.is(what+" without a claim", err, idem.ErrLost)
			}
			if f.calls() != asked {
				e.errorf("calls without a claim have reached the storage")
			}
		}
	}
	e.replay(s, "k", text("done"))
	e.is("Complete of the claim that was granted", s.Complete(e.ctx, running, text("done")), nil)
}

func storyFence(e *env) {
	stores := e.stores(2)
	last := int64(0)
	next := func(what string, i int) *idem.Claim {
		c := e.claim(stores[i%2], "k", payload)
		if c.Fence <= last {
			e.errorf("the fence after %s is %d, it was %d", what, c.Fence, last)
		}
		last = c.Fence
		return c
	}
	c := next("nothing", 0)
	for i := range 2 {
		e.is("Release", stores[i%2].Release(e.ctx, c), nil)
		c = next("Release", i)
		e.is("Extend", stores[i%2].Extend(e.ctx, c), nil)
		e.is("Abandon", stores[i%2].Abandon(e.ctx, c), nil)
		next("Abandon", i+1)
		e.clock.pass(lease)
		c = next("a takeover", i)
		e.is("Complete", stores[i%2].Complete(e.ctx, c, text("done")), nil)
		e.clock.pass(retention)
		if i == 0 { // and once without a Sweep
			e.sweep(100)
		}
		c = next("expiry", i)
	}
}

func storyClaimText(e *env) {
	stores := e.stores(2)
	c := e.claim(stores[0].Scoped("tenant"), "k", payload)
	carried, err := c.MarshalText()
	if err != nil {
		e.fatalf("MarshalText failed: %v", err)
	}
	var worker idem.Claim
	if err := worker.UnmarshalText(carried); err != nil {
		e.fatalf("UnmarshalText failed: %v", err)
	}
	there := stores[1].Scoped("tenant")
	e.is("Extend by a worker", there.Extend(e.ctx, &worker), nil)
	e.is("Extend by the server that has claimed", stores[0].Scoped("tenant").Extend(e.ctx, c), nil)
	e.is("Complete by a worker", there.Complete(e.ctx, &worker, text("done")), nil)
	e.is("Complete by the server, with the same result", stores[0].Scoped("tenant").Complete(e.ctx, c, text("done")), nil)
	e.replay(stores[0].Scoped("tenant"), "k", text("done"))
}
