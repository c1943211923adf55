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
	ruleOwnClaim = "Nobody is locked out by his own claim whose reply was lost."
	ruleRecorded = "Complete whose reply was lost may be called again: the result is recorded once, and the operation does not run again."
	ruleAgain    = "Every call on a claim may be repeated after an error that left its outcome unknown."
	ruleClosed   = "If the storage fails the operation does not run: ErrUnavailable is neither a claim nor a replay."
)

var faultCases = []testCase{
	{name: "PE-5/ClaimReplyLost", rule: ruleOwnClaim, run: storyClaimReplyLost},
	{name: "PE-5/ClaimGivenUp", rule: ruleOwnClaim, run: storyClaimGivenUp},
	{name: "PE-5/ClaimRefused", rule: ruleClosed, run: storyClaimRefused},
	{name: "PE-2/CompleteRequestLost", rule: ruleRecorded, run: storyCompleteRequestLost},
	{name: "PE-6/CompleteReplyLost", rule: ruleRecorded, run: storyCompleteReplyLost},
	{name: "PE-6/DoReplyLost", rule: ruleRecorded, run: storyDoReplyLost},
	{name: "PE-6/ExtendReplyLost", rule: ruleAgain, run: storyExtendReplyLost},
	{name: "PE-6/ReleaseReplyLost", rule: ruleAgain, run: storyReleaseReplyLost},
	{name: "PE-6/ResolveReplyLost", rule: ruleAgain, run: storyResolveReplyLost},
	{name: "PE-1/CancelledAnywhere", rule: "An operation that is cancelled at any step runs once in all, and its result is not lost.", run: storyCancelled},
	{name: "FL-4/StorageDown", rule: ruleClosed, needs: needBreak, run: storyStorageDown},
}

func storyClaimReplyLost(e *env) {
	peer := e.store(e.peer(), nil)
	for i, fates := range [][]fate{
		{replyLost}, {requestLost}, {replyLost, replyLost}, {requestLost, replyLost, requestLost}, {replyLost, requestLost},
	} {
		key := fmt.Sprintf("k%d", i)
		f := &faulty{b: e.b}
		s := e.store(f, nil)
		f.next(fates...)
		c := e.claim(s, key, payload)
		if c.Attempt != 1 || c.Takeover {
			e.errorf("the claim whose reply was lost is attempt %d, takeover %v; want 1, false", c.Attempt, c.Takeover)
		}
		e.refused(peer, key, payload, idem.ErrInProgress)
		e.is("Complete", s.Complete(e.ctx, c, text("done")), nil)
		e.replay(peer, key, text("done"))
	}
}

// storyClaimGivenUp has a caller who leaves before the storage answers. The
// claim that may be his is given back.
func storyClaimGivenUp(e *env) {
	peer := e.store(e.peer(), nil)
	for what, lost := range map[string]fate{"replies": replyLost, "requests": requestLost} {
		key := "lost " + what
		f := &faulty{b: e.b}
		f.all(lost)
		err := e.within(100*time.Millisecond, func(ctx context.Context) error {
			c, done, err := e.store(f, nil).Begin(ctx, key, payload)
			if c != nil || done != nil {
				e.errorf("Begin without an answer gave %s", outcome(c, done, err))
			}
			return err
		})
		e.is("Begin without an answer", err, idem.ErrUnavailable)
		e.eventually("the key of a caller who gave up is free", func() bool {
			c, _, err := peer.Begin(e.ctx, key, otherPayload)
			if c == nil && !errors.Is(err, idem.ErrMismatch) {
				e.errorf("Begin after a caller gave up failed: %v", err)
			}
			return c != nil
		})
	}
}

func storyClaimRefused(e *env) {
	f := &faulty{b: e.b}
	s := e.store(f, nil)
	f.next(surelyFailed)
	e.refused(s, "k", payload, idem.ErrUnavailable)
	if n := f.calls(); n != 1 {
		e.errorf("a claim that surely failed was sent %d times", n)
	}
	e.want("Lookup", e.lookup(s, "k"), idem.Record{})
	f.next(surelyFailed)
	_, err := s.Do(e.ctx, "k", payload, e.never)
	e.is("Do", err, idem.ErrUnavailable)
	e.claim(s, "k", payload)
}

func storyCompleteRequestLost(e *env) {
	f := &faulty{b: e.b}
	s, peer := e.store(f, nil), e.store(e.peer(), nil)
	for i, lost := range []fate{requestLost, surelyFailed} {
		key := fmt.Sprintf("k%d", i)
		c := e.claim(s, key, payload)
		f.next(lost, lost)
		e.is("Complete that does not arrive", s.Complete(e.ctx, c, text("done")), idem.ErrUnavailable)
		e.refused(peer, key, payload, idem.ErrInProgress) // the key is not freed
		e.is("Complete again, which does not arrive", s.Complete(e.ctx, c, text("done")), idem.ErrUnavailable)
		e.is("Complete again", s.Complete(e.ctx, c, text("done")), nil)
		e.replay(peer, key, text("done"))
	}
}

func storyCompleteReplyLost(e *env) {
	f := &faulty{b: e.b}
	s, peer := e.store(f, nil), e.store(e.peer(), nil)
	c := e.claim(s, "k", payload)
	f.next(replyLost)
	e.is("Complete whose reply is lost", s.Complete(e.ctx, c, text("done")), idem.ErrUnavailable)
	e.replay(peer, "k", text("done"))
	before := e.lookup(peer, "k")
	e.is("Complete again, with another result", s.Complete(e.ctx, c, text("another")), idem.ErrCompleted)
	e.is("Complete again", s.Complete(e.ctx, c, text("done")), nil)
	e.is("Release after that", s.Release(e.ctx, c), nil)
	e.unchanged(peer, "k", before)
}

func storyDoReplyLost(e *env) {
	for i, fates := range [][]fate{
		{replyLost, arrives, replyLost}, {arrives, replyLost, replyLost}, {arrives, requestLost, replyLost}, {arrives, requestLost, requestLost}, {requestLost, arrives, surelyFailed},
	} {
		key := fmt.Sprintf("k%d", i)
		f := &faulty{b: e.b}
		f.next(fates...)
		runs := 0
		operation := func(context.Context, *idem.Claim) (idem.Result, error) {
			runs++
			return text("done"), nil
		}
		for again := range 2 {
			out, err := e.store(f, nil).Do(e.ctx, key, payload, operation)
			e.is("Do over a bad line", err, nil)
			if !out.Result.Equal(text("done")) || out.Replayed != (again > 0) || out.Attempt != 1 {
				e.errorf("Do over a bad line gave %+v", out)
			}
		}
		if runs != 1 {
			e.errorf("the operation ran %d times, want 1", runs)
		}
	}
}

func storyExtendReplyLost(e *env) {
	f := &faulty{b: e.b}
	s, peer := e.store(f, nil), e.store(e.peer(), nil)
	for i, lost := range []fate{replyLost, requestLost} {
		key := fmt.Sprintf("k%d", i)
		c := e.claim(s, key, payload)
		f.next(lost)
		e.is("Extend", s.Extend(e.ctx, c), idem.ErrUnavailable)
		e.is("Extend again", s.Extend(e.ctx, c), nil)
		f.next(lost)
		e.is("Checkpoint", s.Checkpoint(e.ctx, c, []byte("note")), idem.ErrUnavailable)
		e.is("Checkpoint again", s.Checkpoint(e.ctx, c, []byte("note")), nil)
		if r := e.lookup(peer, key); string(r.Checkpoint) != "note" || r.Attempt != 1 {
			e.errorf("Lookup returned %v with the checkpoint %q", show(r), r.Checkpoint)
		}
		f.next(lost)
		e.is("Extend", s.Extend(e.ctx, c), idem.ErrUnavailable)
		e.is("Complete after that", s.Complete(e.ctx, c, text("done")), nil)
		e.replay(peer, key, text("done"))
	}
}

func storyReleaseReplyLost(e *env) {
	f := &faulty{b: e.b}
	s, peer := e.store(f, nil), e.store(e.peer(), nil)
	for i, lost := range []fate{replyLost, requestLost} {
		key := fmt.Sprintf("released %d", i)
		c := e.claim(s, key, payload)
		f.next(lost)
		e.is("Release", s.Release(e.ctx, c), idem.ErrUnavailable)
		e.is("Release again", s.Release(e.ctx, c), nil)
		own := e.claim(peer, key, otherPayload)
		e.is("Release once more", s.Release(e.ctx, c), nil)
		e.is("Complete by the next holder", peer.Complete(e.ctx, own, text("done")), nil)

		key = fmt.Sprintf("abandoned %d", i)
		c = e.claim(s, key, payload)
		f.next(lost)
		e.is("Abandon", s.Abandon(e.ctx, c), idem.ErrUnavailable)
		e.is("Abandon again", s.Abandon(e.ctx, c), nil)
		if own := e.claim(peer, key, payload); !own.Takeover || own.Attempt != 2 {
			e.errorf("the claim after Abandon is attempt %d, takeover %v; want 2, true", own.Attempt, own.Takeover)
		}
		e.is("Abandon once more", s.Abandon(e.ctx, c), nil)
	}
}

func storyResolveReplyLost(e *env) {
	f := &faulty{b: e.b}
	s := e.store(f, &idem.Options{Lease: lease, OnLapse: idem.Hold})
	for i, lost := range []fate{replyLost, requestLost} {
		key := fmt.Sprintf("k%d", i)
		e.is("Abandon", s.Abandon(e.ctx, e.claim(s, key, payload)), nil)
		f.next(lost)
		e.is("Resolve", s.Resolve(e.ctx, key, 1, text("paid")), idem.ErrUnavailable)
		e.is("Resolve again", s.Resolve(e.ctx, key, 1, text("paid")), nil)
		e.replay(s, key, text("paid"))

		key = fmt.Sprintf("reclaimed %d", i)
		e.is("Abandon", s.Abandon(e.ctx, e.claim(s, key, payload)), nil)
		f.next(lost)
		c, err := s.Reclaim(e.ctx, key, 1)
		e.is("Reclaim", err, nil)
		e.is("Complete of a reclaimed attempt", s.Complete(e.ctx, c, text("paid")), nil)
	}
}

// storyCancelled cancels Do at each of its calls, before and after the call
// takes effect. Whoever comes next finds the result or runs the operation.
func storyCancelled(e *env) {
	for _, after := range []bool{false, true} {
		for at := 1; at <= 4; at++ {
			key := fmt.Sprintf("k%d-%v", at, after)
			ctx, cancel := context.WithCancel(e.ctx)
			f := &faulty{b: e.b}
			stop := func(n int) {
				if n == at {
					cancel()
				}
			}
			if after {
				f.after = stop
			} else {
				f.before = stop
			}
			var runs atomic.Int64
			operation := func(context.Context, *idem.Claim) (idem.Result, error) {
				runs.Add(1)
				return text("done"), nil
			}
			e.promptly("Do that is cancelled", func() {
				out, err := e.store(f, nil).Do(ctx, key, payload, operation)
				if err == nil && !out.Result.Equal(text("done")) {
					e.errorf("Do that was cancelled gave %+v", out)
				}
			})
			cancel()
			e.promptly("Do after one that was cancelled", func() {
				out, err := e.store(e.peer(), nil).Do(e.ctx, key, payload, operation)
				e.is("Do after one that was cancelled", err, nil)
				if !out.Result.Equal(text("done")) {
					e.errorf("Do after one that was cancelled gave %+v", out)
				}
			})
			if n := runs.Load(); n != 1 {
				e.errorf("an operation that was cancelled at call %d (after it: %v) ran %d times, want 1", at, after, n)
			}
		}
	}
}

func storyStorageDown(e *env) {
	s := e.store(e.b, nil)
	e.done(s, "completed", payload, text("done"))
	c := e.claim(s, "claimed", payload)
	e.live()
	restore := e.h.Break(e.t, e.raw)
	for _, key := range []string{"fresh", "completed", "claimed"} {
		err := e.within(300*time.Millisecond, func(ctx context.Context) error {
			c, done, err := s.Begin(ctx, key, payload)
			if c != nil || done != nil {
				e.errorf("Begin of a storage that fails gave %s", outcome(c, done, err))
			}
			return err
		})
		e.is("Begin of a storage that fails", err, idem.ErrUnavailable)
		if errors.Is(err, idem.ErrInProgress) || errors.Is(err, idem.ErrMismatch) {
			e.errorf("a storage that fails is reported as %v", err)
		}
		err = e.within(300*time.Millisecond, func(ctx context.Context) error {
			_, err := s.Do(ctx, key, payload, e.never)
			return err
		})
		e.is("Do of a storage that fails", err, idem.ErrUnavailable)
	}
	err := e.within(300*time.Millisecond, func(ctx context.Context) error { return s.Complete(ctx, c, text("claimed")) })
	e.is("Complete of a storage that fails", err, idem.ErrUnavailable)
	restore()
	e.replay(s, "completed", text("done"))
	e.is("Complete again, of a storage that works", s.Complete(e.ctx, c, text("claimed")), nil)
	e.replay(s, "claimed", text("claimed"))
	e.eventually("the key can be claimed that nobody got", func() bool {
		c, _, err := s.Begin(e.ctx, "fresh", payload)
		return c != nil && err == nil
	})
}
