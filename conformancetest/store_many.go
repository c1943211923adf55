package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/idem-go/idem"
)

const (
	ruleMany       = "BeginAll, CompleteAll and their like answer each item as the call for one key would."
	ruleManyOwners = "Batches with the same keys never wait for each other, and every key has one owner."
)

var manyCases = []testCase{
	{name: "Many/Begin", rule: ruleMany, timed: true, run: storyManyBegin},
	{name: "Many/BeginHeld", rule: ruleMany, timed: true, run: storyManyBeginHeld},
	{name: "Many/SameKey", rule: ruleMany, run: storyManySameKey},
	{name: "Many/End", rule: ruleMany, timed: true, run: storyManyEnd},
	{name: "Many/Owners", rule: ruleManyOwners, run: storyManyOwners},
	{name: "Many/ReplyLost", rule: ruleOwnClaim, run: storyManyReplyLost},
	{name: "Many/GivenUp", rule: ruleOwnClaim, run: storyManyGivenUp},
	{name: "Many/CompleteReplyLost", rule: ruleRecorded, run: storyManyCompleteReplyLost},
}

// faultyBatcher is a faulty storage that takes many Swaps in one call, each call
// with one fate.
type faultyBatcher struct{ *faulty }

func (f faultyBatcher) SwapAll(ctx context.Context, swaps []idem.Swap) []idem.Swapped {
	swapped := make([]idem.Swapped, len(swaps))
	fail := func(err error) {
		for i := range swapped {
			swapped[i] = idem.Swapped{Err: err}
		}
	}
	f.call(func() {
		what := f.fate()
		switch what {
		case requestLost:
			fail(errLine)
			return
		case surelyFailed:
			fail(idem.NoEffect(errLine))
			return
		}
		if b, ok := f.b.(idem.Batcher); ok {
			swapped = b.SwapAll(ctx, swaps)
		} else {
			for i, s := range swaps {
				swapped[i].Record, swapped[i].Err = f.b.Swap(ctx, s.Key, s.Old, s.New)
			}
		}
		if what == replyLost {
			fail(errLine)
		}
	})
	return swapped
}

// lines returns two ways to a storage of which replies are lost: one that takes
// many Swaps in one call, and one that takes them one by one.
func (e *env) lines() map[string]func() (idem.Backend, *faulty) {
	return map[string]func() (idem.Backend, *faulty){
		"all in one call": func() (idem.Backend, *faulty) { f := &faulty{b: e.b}; return faultyBatcher{f}, f },
		"one by one":      func() (idem.Backend, *faulty) { f := &faulty{b: e.b}; return f, f },
	}
}

// items returns items with the usual payload.
func items(keys ...string) []idem.Item {
	all := make([]idem.Item, len(keys))
	for i, key := range keys {
		all[i] = idem.Item{Key: key, Fingerprint: payload}
	}
	return all
}

// names returns n keys.
func names(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return keys
}

// claims begins the keys and wants a claim for each.
func (e *env) claims(s *idem.Store, keys ...string) []*idem.Claim {
	e.t.Helper()
	all := make([]*idem.Claim, len(keys))
	for i, b := range s.BeginAll(e.ctx, items(keys...)) {
		if b.Claim == nil || b.Done != nil || b.Err != nil || b.Claim.Key != keys[i] {
			e.fatalf("BeginAll: %q got %s, want a claim", short(keys[i]), outcome(b.Claim, b.Done, b.Err))
		}
		all[i] = b.Claim
	}
	return all
}

// completions returns the claims with the results that their keys get.
func completions(claims []*idem.Claim) []idem.Completion {
	all := make([]idem.Completion, len(claims))
	for i, c := range claims {
		all[i] = idem.Completion{Claim: c, Result: text("result of " + c.Key)}
	}
	return all
}

// refusedAs begins an item by itself and says how.
func (e *env) refusedAs(s *idem.Store, item idem.Item) string {
	c, done, err := s.Begin(e.ctx, item.Key, item.Fingerprint)
	if c != nil {
		e.is("Release", s.Release(e.ctx, c), nil)
		return fmt.Sprintf("a claim, takeover %v", c.Takeover)
	}
	return kind(c, done, err)
}

// kind says which of its outcomes a Begin has had, by the class of its error.
func kind(c *idem.Claim, done *idem.Record, err error) string {
	if c != nil {
		return fmt.Sprintf("a claim, takeover %v", c.Takeover)
	}
	for _, class := range []error{idem.ErrKey, idem.ErrMismatch, idem.ErrInProgress, idem.ErrUnresolved, idem.ErrUnavailable} {
		if errors.Is(err, class) {
			return class.Error()
		}
	}
	return outcome(c, done, err)
}

// situations leaves keys behind in every state, and returns what is asked about
// them.
func (e *env) situations(s *idem.Store) []idem.Item {
	e.t.Helper()
	expired := e.done(s, "expired", payload, text("forgotten"))
	e.clock.pass(retention)
	e.done(s, "done", payload, text("result of done"))
	lapsed := e.claim(s, "lapsed", payload)
	e.claim(s, "lapsed, other payload", payload)
	e.is("Checkpoint", s.Checkpoint(e.ctx, lapsed, []byte("half-way")), nil)
	e.clock.pass(lease)
	e.claim(s, "running", payload)
	released := e.claim(s, "released", otherPayload)
	e.is("Release", s.Release(e.ctx, released), nil)
	all := items("running", "z fresh", "", "done", expired.Key, "lapsed", "released", "a fresh", "with\ncontrol")
	return append(all, idem.Item{Key: "done", Fingerprint: otherPayload}, idem.Item{Key: "lapsed, other payload", Fingerprint: otherPayload},
		idem.Item{Key: "running", Fingerprint: otherPayload})
}

func storyManyBegin(e *env) {
	s := e.store(e.b, nil)
	asked := e.situations(s)
	begun := s.BeginAll(e.ctx, asked)
	if len(begun) != len(asked) {
		e.fatalf("BeginAll of %d items gave %d answers", len(asked), len(begun))
	}
	want := []string{
		idem.ErrInProgress.Error(), "a claim, takeover false", idem.ErrKey.Error(), `the record of attempt 1 with "result of done"`,
		"a claim, takeover false", "a claim, takeover true", "a claim, takeover false", "a claim, takeover false", idem.ErrKey.Error(),
		idem.ErrMismatch.Error(), idem.ErrMismatch.Error(), idem.ErrMismatch.Error(),
	}
	for i, b := range begun {
		if got := kind(b.Claim, b.Done, b.Err); got != want[i] {
			e.errorf("BeginAll: item %d, %q, got %s, want %s", i, asked[i].Key, got, want[i])
		}
		if _, ok := errors.AsType[*idem.Error](b.Err); b.Err != nil && !ok {
			e.errorf("BeginAll: %q got an error of type %T, want *idem.Error", asked[i].Key, b.Err)
		}
		if b.Claim != nil {
			e.refused(s, b.Claim.Key, payload, idem.ErrInProgress)
		}
	}
	if c := begun[5].Claim; c != nil && (c.Attempt != 2 || string(c.Checkpoint) != "half-way") {
		e.errorf("the claim of a lapsed key is attempt %d with the checkpoint %q, want 2 with that of the first", c.Attempt, c.Checkpoint)
	}
}

func storyManyBeginHeld(e *env) {
	s, _ := e.holding("a", "b")
	begun := s.BeginAll(e.ctx, items("b", "new", "a"))
	for i, want := range []string{idem.ErrUnresolved.Error(), "a claim, takeover false", idem.ErrUnresolved.Error()} {
		if got := kind(begun[i].Claim, begun[i].Done, begun[i].Err); got != want {
			e.errorf("BeginAll under Hold: item %d got %s, want %s", i, got, want)
		}
	}
}

// storyManySameKey has keys in one batch more than once.
func storyManySameKey(e *env) {
	s := e.store(e.b, nil)
	e.done(s, "done", payload, text("done"))
	other := idem.Item{Key: "k", Fingerprint: otherPayload}
	asked := slices.Concat(items("k", "k"), []idem.Item{other}, items("done", "done", "new"), []idem.Item{{Key: "done", Fingerprint: otherPayload}}, items("done"))
	want := []string{
		"a claim, takeover false", idem.ErrInProgress.Error(), idem.ErrMismatch.Error(),
		`the record of attempt 1 with "done"`, `the record of attempt 1 with "done"`, "a claim, takeover false", idem.ErrMismatch.Error(), `the record of attempt 1 with "done"`,
	}
	for i, b := range s.BeginAll(e.ctx, asked) {
		if got := kind(b.Claim, b.Done, b.Err); got != want[i] {
			e.errorf("BeginAll with one key several times: item %d, %q, got %s, want %s", i, asked[i].Key, got, want[i])
		}
		if now := e.refusedAs(s, asked[i]); b.Claim == nil && now != want[i] {
			e.errorf("BeginAll said of item %d, %q: %s; Begin says %s", i, asked[i].Key, want[i], now)
		}
	}
}

func storyManyEnd(e *env) {
	s := e.store(e.b, nil)
	lost := e.claim(s, "lost", payload)
	lapsed := e.claim(s, "lapsed", payload)
	e.clock.pass(lease)
	taker := e.claim(s, "lost", payload)
	claims := e.claims(s, "again", "other result", "fine", "released", "abandoned")
	again, other, fine, released, abandoned := claims[0], claims[1], claims[2], claims[3], claims[4]
	e.is("Complete", s.Complete(e.ctx, again, text("result of again")), nil)
	e.is("Complete", s.Complete(e.ctx, other, text("first")), nil)
	e.is("Release", s.Release(e.ctx, released), nil)
	e.is("Abandon", s.Abandon(e.ctx, abandoned), nil)
	all := []*idem.Claim{lost, fine, again, nil, other, lapsed, released, abandoned}

	check := func(what string, errs []error, want ...error) {
		e.t.Helper()
		if len(errs) != len(want) {
			e.fatalf("%s gave %d errors, want %d", what, len(errs), len(want))
		}
		for i, err := range errs {
			e.is(fmt.Sprintf("%s, claim %d", what, i), err, want[i])
		}
	}
	check("ExtendAll", s.ExtendAll(e.ctx, all), idem.ErrLost, nil, idem.ErrLost, idem.ErrLost, idem.ErrLost, nil, idem.ErrLost, nil)
	e.is("Abandon", s.Abandon(e.ctx, abandoned), nil)
	done := make([]idem.Completion, len(all))
	for i, c := range all {
		if done[i].Claim = c; c != nil {
			done[i].Result = text("result of " + c.Key)
		}
	}
	for range 2 {
		check("CompleteAll", s.CompleteAll(e.ctx, done), idem.ErrLost, nil, nil, idem.ErrLost, idem.ErrCompleted, nil, idem.ErrLost, nil)
	}
	check("ReleaseAll", s.ReleaseAll(e.ctx, all), nil, nil, nil, idem.ErrLost, nil, nil, nil, nil)
	check("AbandonAll", s.AbandonAll(e.ctx, all), nil, nil, nil, idem.ErrLost, nil, nil, nil, nil)
	for _, key := range []string{"fine", "again", "lapsed", "abandoned"} {
		e.replay(s, key, text("result of "+key))
	}
	e.replay(s, "other result", text("first"))
	e.refused(s, "lost", payload, idem.ErrInProgress) // by the one who took it over
	e.is("Complete by who took over", s.Complete(e.ctx, taker, text("taken over")), nil)

	claims = e.claims(s, "x", "y", "z")
	check("ReleaseAll", s.ReleaseAll(e.ctx, claims[:2]), nil, nil)
	check("AbandonAll", s.AbandonAll(e.ctx, claims[1:]), nil, nil)
	for i, want := range []string{"a claim, takeover false", "a claim, takeover false", "a claim, takeover true"} {
		if got := e.refusedAs(s, items("x", "y", "z")[i]); got != want {
			e.errorf("after ReleaseAll and AbandonAll claim %d is %s, want %s", i, got, want)
		}
	}
}

// storyManyOwners has batches with overlapping keys, in different orders, and
// single callers after the same keys.
func storyManyOwners(e *env) {
	const keys, callers = 16, 6
	stores := e.stores(2)
	for round := range rounds(6) {
		all := names(fmt.Sprintf("round %d key ", round), keys)
		var owners, ends [keys]atomic.Int32
		together(callers, func(n int) {
			s := stores[n%2]
			var mine []string
			for i := range keys * 3 / 4 {
				mine = append(mine, all[(i*(1+2*(n%3))*5+n*7)%keys])
			}
			slices.Sort(mine)
			mine = slices.Compact(mine)
			if n%2 == 1 {
				slices.Reverse(mine)
			}
			var claims []*idem.Claim
			if n == callers-1 {
				for _, key := range mine {
					if c, _, err := s.Begin(e.ctx, key, payload); c != nil {
						claims = append(claims, c)
					} else if err != nil {
						e.is("Begin beside batches", err, idem.ErrInProgress)
					}
				}
			} else {
				for _, b := range s.BeginAll(e.ctx, items(mine...)) {
					if b.Claim != nil {
						claims = append(claims, b.Claim)
					} else if b.Err != nil {
						e.is("BeginAll beside batches", b.Err, idem.ErrInProgress)
					}
				}
			}
			for _, c := range claims {
				owners[slices.Index(all, c.Key)].Add(1)
			}
			for i, err := range s.CompleteAll(e.ctx, completions(claims)) {
				e.is("CompleteAll beside batches", err, nil)
				ends[slices.Index(all, claims[i].Key)].Add(1)
			}
		})
		for k := range keys {
			if o, n := owners[k].Load(), ends[k].Load(); o > 1 || o != n {
				e.errorf("one key has %d owners and %d completions, want at most 1", o, n)
			}
			if owners[k].Load() == 1 {
				e.replay(stores[0], all[k], text("result of "+all[k]))
			}
		}
	}
}

func storyManyReplyLost(e *env) {
	peer := e.store(e.peer(), nil)
	for how, line := range e.lines() {
		for i, fates := range [][]fate{{replyLost}, {requestLost}, {replyLost, replyLost}, {requestLost, replyLost}, {replyLost, requestLost, replyLost}} {
			b, f := line()
			s := e.store(b, nil)
			keys := names(fmt.Sprintf("%s %d ", how, i), 8)
			f.next(fates...)
			claims := e.claims(s, keys...)
			for _, c := range claims {
				if c.Attempt != 1 || c.Takeover {
					e.errorf("a claim whose reply was lost is attempt %d, takeover %v; want 1, false", c.Attempt, c.Takeover)
				}
				e.refused(peer, c.Key, payload, idem.ErrInProgress)
			}
			for _, err := range s.CompleteAll(e.ctx, completions(claims)) {
				e.is("CompleteAll", err, nil)
			}
			e.replay(peer, keys[7], text("result of "+keys[7]))
		}
	}
}

// storyManyGivenUp has a caller who leaves before the storage answers. What
// may have been claimed is given back.
func storyManyGivenUp(e *env) {
	peer := e.store(e.peer(), nil)
	for how, line := range e.lines() {
		for what, lost := range map[string]fate{"replies": replyLost, "requests": requestLost} {
			b, f := line()
			keys := names(how+", lost "+what+" ", 5)
			f.all(lost)
			_ = e.within(100*time.Millisecond, func(ctx context.Context) error {
				for _, b := range e.store(b, nil).BeginAll(ctx, items(keys...)) {
					if b.Claim != nil || b.Done != nil {
						e.errorf("BeginAll without an answer gave %s", outcome(b.Claim, b.Done, b.Err))
					}
					e.is("BeginAll without an answer", b.Err, idem.ErrUnavailable)
				}
				return nil
			})
			for _, key := range keys {
				e.eventually("the key of a caller who gave up is free", func() bool {
					c, _, _ := peer.Begin(e.ctx, key, otherPayload)
					return c != nil
				})
			}
		}
	}
}

func storyManyCompleteReplyLost(e *env) {
	peer := e.store(e.peer(), nil)
	for how, line := range e.lines() {
		b, f := line()
		s := e.store(b, nil)
		keys := names(how+" ", 5)
		claims := e.claims(s, keys...)
		f.all(replyLost)
		for _, err := range s.CompleteAll(e.ctx, completions(claims)) {
			e.is("CompleteAll whose replies are lost", err, idem.ErrUnavailable)
		}
		for _, key := range keys {
			e.replay(peer, key, text("result of "+key))
		}
		f.all(arrives)
		other := completions(claims)
		other[2].Result = text("another")
		for i, err := range s.CompleteAll(e.ctx, other) {
			var want error
			if i == 2 {
				want = idem.ErrCompleted
			}
			e.is("CompleteAll again", err, want)
		}
	}
}
