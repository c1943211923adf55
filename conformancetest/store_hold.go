package conformancetest

import (
	"errors"
	"fmt"

	"github.com/idem-go/idem"
)

const (
	ruleHold     = "Under Hold a lapsed attempt is ErrUnresolved until Resolve, Forget or Reclaim has decided, however long that takes."
	ruleTellsFor = "A claim with Takeover can speak only for itself: its Release ends like Abandon."
)

var holdCases = []testCase{
	{name: "LS-6/Hold", rule: ruleHold, timed: true, run: storyHold},
	{name: "LS-6/Resolve", rule: "Resolve records the outcome of a lapsed attempt, and of no other.", timed: true, run: storyResolve},
	{name: "LS-6/Forget", rule: "Forget frees the key of a lapsed attempt, and of no other.", timed: true, run: storyForget},
	{name: "LS-6/Reclaim", rule: "Reclaim takes over a lapsed attempt to find out; Release of its claim frees the key.", timed: true, run: storyReclaim},
	{name: "LS-6/ListLapsed", rule: "What a listing of lapsed claims returns can be reclaimed.", needs: needLister, timed: true, run: storyListLapsed},
	{name: "LS-6/TakeoverRelease", rule: ruleTellsFor, timed: true, run: storyTakeoverRelease},
}

// holding returns a Store under Hold and claims the keys, with a checkpoint,
// and lets their leases run out.
func (e *env) holding(keys ...string) (*idem.Store, []*idem.Claim) {
	e.t.Helper()
	s := e.store(e.b, &idem.Options{Lease: lease, OnLapse: idem.Hold})
	var claims []*idem.Claim
	for _, key := range keys {
		c := e.claim(s, key, payload)
		e.is("Checkpoint", s.Checkpoint(e.ctx, c, []byte("about to pay "+key)), nil)
		claims = append(claims, c)
	}
	e.clock.pass(lease)
	return s, claims
}

func storyHold(e *env) {
	s, claims := e.holding("k", "late")
	for range 2 {
		refusal := e.refusal(s, "k", payload, idem.ErrUnresolved)
		if errors.Is(refusal, idem.ErrInProgress) || refusal.RetryAfter() != 0 {
			e.errorf("an unresolved attempt looks like a running one: %v", refusal)
		}
		if refusal.Record.Attempt != 1 || string(refusal.Record.Checkpoint) != "about to pay k" {
			e.errorf("the refusal tells of attempt %d with the checkpoint %q", refusal.Record.Attempt, refusal.Record.Checkpoint)
		}
		_, err := s.Do(e.ctx, "k", payload, e.never)
		e.is("Do", err, idem.ErrUnresolved)
		e.clock.pass(retention + 2*lease) // far beyond what a claim under Takeover is kept for
		e.sweep(100)
	}
	// The holder was only slow.
	e.is("Complete by the holder", s.Complete(e.ctx, claims[1], text("late")), nil)
	e.replay(s, "late", text("late"))
}

func storyResolve(e *env) {
	s, claims := e.holding("k", "again")
	running := e.claim(s, "running", payload)
	e.is("Resolve of a running attempt", s.Resolve(e.ctx, "running", 1, text("x")), idem.ErrInProgress)
	e.is("Resolve of an absent key", s.Resolve(e.ctx, "absent", 1, text("x")), idem.ErrLost)
	for _, attempt := range []int{0, 2, -1} {
		e.is("Resolve of another attempt", s.Resolve(e.ctx, "k", attempt, text("x")), idem.ErrLost)
	}
	e.refused(s, "k", payload, idem.ErrUnresolved)
	e.is("Resolve", s.Resolve(e.ctx, "k", 1, text("paid")), nil)
	e.replay(s, "k", text("paid"))
	e.refused(s, "k", otherPayload, idem.ErrMismatch)
	e.is("Resolve again, with the same result", s.Resolve(e.ctx, "k", 1, text("paid")), nil)
	e.is("Resolve again, with another result", s.Resolve(e.ctx, "k", 1, text("x")), idem.ErrCompleted)
	e.is("Complete by the holder, with the same result", s.Complete(e.ctx, claims[0], text("paid")), nil)
	e.is("Complete by the holder, with another result", s.Complete(e.ctx, claims[0], text("x")), idem.ErrCompleted)

	e.is("Release of a claim", s.Release(e.ctx, running), nil)
	e.is("Resolve of a released key", s.Resolve(e.ctx, "running", 1, text("x")), idem.ErrLost)

	// Many decide at once; one decision stands.
	var errs [8]error
	stores := e.handles(2)
	together(8, func(i int) {
		errs[i] = e.store(stores[i%2], nil).Resolve(e.ctx, "again", 1, text(fmt.Sprint(i)))
	})
	decided := 0
	for _, err := range errs {
		if err == nil {
			decided++
		} else {
			e.is("Resolve that comes second", err, idem.ErrCompleted)
		}
	}
	if decided != 1 {
		e.errorf("%d of 8 decisions stand, want 1", decided)
	}
}

func storyForget(e *env) {
	s, claims := e.holding("k")
	e.claim(s, "running", payload)
	e.is("Forget of a running attempt", s.Forget(e.ctx, "running", 1), idem.ErrInProgress)
	e.is("Forget of an absent key", s.Forget(e.ctx, "absent", 1), idem.ErrLost)
	e.is("Forget of another attempt", s.Forget(e.ctx, "k", 2), idem.ErrLost)
	e.refused(s, "k", payload, idem.ErrUnresolved)
	e.is("Forget", s.Forget(e.ctx, "k", 1), nil)
	e.is("Forget again", s.Forget(e.ctx, "k", 1), idem.ErrLost)
	e.is("Complete after Forget", s.Complete(e.ctx, claims[0], text("late")), idem.ErrLost)
	c := e.claim(s, "k", otherPayload)
	if c.Attempt != 2 || c.Takeover || len(c.Checkpoint) > 0 {
		e.errorf("after Forget the claim has attempt %d, takeover %v, checkpoint %q; want 2, false, none", c.Attempt, c.Takeover, c.Checkpoint)
	}
	e.is("Complete after Forget", s.Complete(e.ctx, claims[0], text("late")), idem.ErrLost)
	e.is("Complete", s.Complete(e.ctx, c, text("done")), nil)
	e.is("Forget of a completed attempt", s.Forget(e.ctx, "k", 2), idem.ErrCompleted)
}

func storyReclaim(e *env) {
	s, claims := e.holding("done", "not done", "unclear")
	reclaim := func(key string, attempt int) *idem.Claim {
		c, err := s.Reclaim(e.ctx, key, attempt)
		if err != nil {
			e.fatalf("Reclaim(%q) failed: %v", key, err)
		}
		if !c.Takeover || c.Attempt != attempt+1 || string(c.Checkpoint) != "about to pay "+key {
			e.errorf("Reclaim(%q) gave attempt %d, takeover %v, checkpoint %q", key, c.Attempt, c.Takeover, c.Checkpoint)
		}
		_, err = s.Reclaim(e.ctx, key, attempt)
		e.is("Reclaim of an attempt that was reclaimed", err, idem.ErrLost)
		_, err = s.Reclaim(e.ctx, key, attempt+1)
		e.is("Reclaim of a running attempt", err, idem.ErrInProgress)
		e.refused(s, key, payload, idem.ErrInProgress)
		return c
	}
	e.is("Complete of a reclaimed attempt", s.Complete(e.ctx, reclaim("done", 1), text("paid")), nil)
	e.is("Complete by the holder", s.Complete(e.ctx, claims[0], text("paid")), idem.ErrLost)
	e.replay(s, "done", text("paid"))

	e.is("Release of a reclaimed attempt", s.Release(e.ctx, reclaim("not done", 1)), nil)
	if c := e.claim(s, "not done", otherPayload); c.Takeover || c.Attempt != 3 {
		e.errorf("after Release of a reclaimed attempt the claim has attempt %d, takeover %v; want 3, false", c.Attempt, c.Takeover)
	}

	e.is("Abandon of a reclaimed attempt", s.Abandon(e.ctx, reclaim("unclear", 1)), nil)
	e.refused(s, "unclear", payload, idem.ErrUnresolved)
	e.is("Release of a reclaimed attempt", s.Release(e.ctx, reclaim("unclear", 2)), nil)
	e.claim(s, "unclear", payload)
}

func storyTakeoverRelease(e *env) {
	s := e.store(e.b, nil)
	first := e.claim(s, "k", payload)
	e.is("Checkpoint", s.Checkpoint(e.ctx, first, []byte("paid")), nil)
	e.is("Abandon", s.Abandon(e.ctx, first), nil)
	for attempt := 2; attempt < 4; attempt++ {
		c := e.claim(s, "k", payload)
		if !c.Takeover || c.Attempt != attempt || string(c.Checkpoint) != "paid" {
			e.errorf("the claim has attempt %d, takeover %v, checkpoint %q; want %d, true, paid", c.Attempt, c.Takeover, c.Checkpoint, attempt)
		}
		e.is("Release of a claim with Takeover", s.Release(e.ctx, c), nil)
		e.refused(s, "k", otherPayload, idem.ErrMismatch)
	}
	e.is("Forget", s.Forget(e.ctx, "k", 3), nil)
	e.claim(s, "k", otherPayload)
}

// storyListLapsed is what a janitor does: list, take apart, reclaim.
func storyListLapsed(e *env) {
	s, _ := e.holding("unscoped")
	scoped := s.Scoped("org").Scoped("tenant")
	var stored moment
	for _, key := range []string{"a", "b"} {
		e.is("Abandon", scoped.Abandon(e.ctx, e.claim(scoped, key, payload)), nil)
	}
	stored = e.clock.during(func() { e.claim(scoped, "running", payload) })
	e.done(scoped, "completed", payload, text("done"))
	reclaimed := 0
	for _, entry := range e.list(e.b.(idem.Lister), idem.Query{Prefix: idem.ScopePrefix("org"), Lapsed: true, Limit: 1}) {
		scope, key := idem.SplitKey(entry.Key)
		if len(scope) != 2 || scope[0] != "org" || scope[1] != "tenant" {
			e.errorf("the entry %q is in the scope %q", entry.Key, scope)
		}
		if key == "running" && e.clock.now()-stored.from >= lease {
			e.inconclusive()
		}
		c, err := s.Scoped(scope[0]).Scoped(scope[1]).Reclaim(e.ctx, key, entry.Record.Attempt)
		e.is("Reclaim of a listed entry", err, nil)
		e.is("Complete", scoped.Complete(e.ctx, c, text("found out")), nil)
		e.replay(scoped, key, text("found out"))
		reclaimed++
	}
	if reclaimed != 2 {
		e.errorf("%d lapsed attempts of the scope were listed, want 2", reclaimed)
	}
}
