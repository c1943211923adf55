package conformancetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/idem-go/idem"
)

const (
	ruleTakeover = "Under Takeover a claim whose lease is over goes to the next caller with the same payload, who is told."
	ruleStale    = "An attempt that has lost the claim changes nothing: Complete, Extend and Checkpoint are ErrLost, Release and Abandon do nothing."
	ruleLapsed   = "A claim whose lease is over but that nobody took over can still be extended and completed."
)

var leaseCases = []testCase{
	{name: "LS-1/CrashAndTakeover", rule: ruleTakeover, timed: true, run: storyCrash},
	{name: "LS-3/StaleHolder", rule: ruleStale, timed: true, run: storyStaleHolder},
	{name: "LS-3/StaleHolderAfterCompletion", rule: ruleStale, timed: true, run: storyStaleAfterCompletion},
	{name: "LS-3/TakeoverRace", rule: ruleTakeover, timed: true, run: storyTakeoverRace},
	{name: "LS-4/ExtendNothing", rule: "Extend of a claim that is lost creates nothing and is ErrLost.", timed: true, run: storyExtendNothing},
	{name: "LS-4/LapsedClaim", rule: ruleLapsed, timed: true, run: storyLapsedClaim},
	{name: "LS-4/Extend", rule: "Extend gives the claim a new lease from now.", timed: true, run: storyExtend},
	{name: "RD-4/Vanished", rule: "A claim whose record is gone is lost, which shows at the next write.", timed: true, run: storyVanished},
	{name: "TM-1/ClockSetBack", rule: "A clock that is set back makes no wait longer than the lease and takes nothing away.", needs: needAdvance, run: storyClockSetBack},
	{name: "TM-3/Lease", rule: "A lease ends when it is over: no sooner, and not in another unit.", run: storyLease},
	{name: "TM-3/Durations", rule: "Durations out of range are ErrOptions; tiny ones are rounded up, never to none.", run: storyDurations},
	{name: "TwoStores", rule: "Stores with other options share a backend: each claim keeps its own lease, each Store its own policy.", timed: true, run: storyTwoStores},
}

func storyCrash(e *env) {
	stores := e.stores(2)
	first := e.claim(stores[0], "k", payload)
	e.is("Checkpoint", stores[0].Checkpoint(e.ctx, first, []byte("card charged: ch_1")), nil)
	noted := e.lookup(stores[0], "k")
	if noted.Lease <= 0 || noted.Lease > lease || noted.TTL <= 0 {
		e.errorf("the record in progress has the lease %v and the TTL %v", noted.Lease, noted.TTL)
	}
	// The process of stores[0] dies here.
	e.clock.pass(4 * time.Hour)
	if _, _, err := stores[1].Begin(e.ctx, "k", payload); !errors.Is(err, idem.ErrInProgress) {
		if noted.Age+e.clock.now() < lease {
			e.errorf("Begin before the lease is over: the error is %v, want ErrInProgress", err)
		}
		e.inconclusive()
	}
	e.clock.pass(6 * time.Hour)
	c := e.claim(stores[1], "k", payload)
	switch {
	case !c.Takeover || c.Attempt != 2:
		e.errorf("the claim has attempt %d, takeover %v; want 2, true", c.Attempt, c.Takeover)
	case string(c.Checkpoint) != "card charged: ch_1":
		e.errorf("the claim has the checkpoint %q", c.Checkpoint)
	case c.Fence <= first.Fence:
		e.errorf("the fence is %d after %d", c.Fence, first.Fence)
	}
	e.is("Complete", stores[1].Complete(e.ctx, c, text("done")), nil)
	e.replay(stores[0], "k", text("done"))

	// A caller whose context is done claims nothing.
	for ctx, want := range e.doneContexts() {
		c, done, err := stores[0].Begin(ctx, "other", payload)
		if c != nil || done != nil || !errors.Is(err, want) || !errors.Is(err, idem.ErrUnavailable) {
			e.errorf("Begin with a context that is done gave %s", outcome(c, done, err))
		}
	}
	e.want("Lookup of a key that was not claimed", e.lookup(stores[1], "other"), idem.Record{})
}

// storyStaleHolder lets a holder come back in every order of calls.
func storyStaleHolder(e *env) {
	stores := e.stores(2)
	call := map[string]func(*idem.Claim) error{
		"Extend":     func(c *idem.Claim) error { return stores[0].Extend(e.ctx, c) },
		"Complete":   func(c *idem.Claim) error { return stores[0].Complete(e.ctx, c, text("stale")) },
		"Release":    func(c *idem.Claim) error { return stores[0].Release(e.ctx, c) },
		"Checkpoint": func(c *idem.Claim) error { return stores[0].Checkpoint(e.ctx, c, []byte("stale")) },
		"Abandon":    func(c *idem.Claim) error { return stores[0].Abandon(e.ctx, c) },
	}
	orders := permutations([]string{"Extend", "Complete", "Release", "Checkpoint", "Abandon"}, rounds(120))
	var stale, present []*idem.Claim
	for i := range orders {
		stale = append(stale, e.claim(stores[0], fmt.Sprintf("k%d", i), payload))
	}
	e.clock.pass(lease)
	for i := range orders {
		present = append(present, e.claim(stores[1], fmt.Sprintf("k%d", i), payload))
	}
	for i, order := range orders {
		key := fmt.Sprintf("k%d", i)
		before := e.lookup(stores[1], key)
		for _, name := range order {
			err := call[name](stale[i])
			if name == "Release" || name == "Abandon" {
				e.is(name+" by a holder who has lost the claim", err, nil)
			} else {
				e.is(name+" by a holder who has lost the claim", err, idem.ErrLost)
			}
			e.unchanged(stores[1], key, before)
		}
		e.is("Complete by the present holder", stores[1].Complete(e.ctx, present[i], text("present")), nil)
		e.replay(stores[0], key, text("present"))
	}
}

// permutations returns up to limit orders of the names, spread over all.
func permutations(names []string, limit int) (orders [][]string) {
	var all [][]string
	var extend func(order, rest []string)
	extend = func(order, rest []string) {
		if len(rest) == 0 {
			all = append(all, order)
		}
		for i := range rest {
			without := append(append([]string(nil), rest[:i]...), rest[i+1:]...)
			extend(append(append([]string(nil), order...), rest[i]), without)
		}
	}
	extend(nil, names)
	step := max(1, len(all)/limit)
	for i := 0; i < len(all); i += step {
		orders = append(orders, all[i])
	}
	return orders
}

func storyStaleAfterCompletion(e *env) {
	stores := e.stores(2)
	stale := e.claim(stores[0], "k", payload)
	e.clock.pass(lease)
	e.done(stores[1], "k", payload, text("done"))
	before := e.lookup(stores[1], "k")
	e.is("Extend by a holder who has lost the claim", stores[0].Extend(e.ctx, stale), idem.ErrLost)
	e.is("Complete with the same result", stores[0].Complete(e.ctx, stale, text("done")), idem.ErrLost)
	e.is("Release by a holder who has lost the claim", stores[0].Release(e.ctx, stale), nil)
	e.is("Complete after that", stores[0].Complete(e.ctx, stale, text("stale")), idem.ErrLost)
	e.unchanged(stores[1], "k", before)
}

// storyTakeoverRace lets many callers take over at once, with the holder
// extending and completing at the same time. One of them has the key in the end.
func storyTakeoverRace(e *env) {
	const callers = 12
	stores := e.stores(3)
	var held []*idem.Claim
	for round := range rounds(20) {
		held = append(held, e.claim(stores[0], fmt.Sprintf("k%d", round), payload))
	}
	e.clock.pass(lease)
	for round, first := range held {
		key := first.Key
		var claims [callers]*idem.Claim
		var kept error
		together(callers, func(i int) {
			switch {
			case i > 0:
				claims[i], _, _ = stores[i%3].Begin(e.ctx, key, payload)
			case round%2 == 0:
				kept = stores[0].Extend(e.ctx, first)
			default:
				kept = stores[0].Complete(e.ctx, first, text("first"))
			}
		})
		granted := 0
		for i, c := range claims {
			if c == nil {
				continue
			}
			granted++
			if !c.Takeover || c.Attempt != 2 {
				e.errorf("a claim of a race has attempt %d, takeover %v; want 2, true", c.Attempt, c.Takeover)
			}
			if i > 0 && kept == nil {
				e.errorf("the holder was told that the claim is still his, and another caller has it")
			}
		}
		if kept == nil {
			granted++
		}
		if granted != 1 {
			e.errorf("%d of %d callers have the claim, want 1; the holder was told: %v", granted, callers, kept)
		}
	}
}

func storyExtendNothing(e *env) {
	stores := e.stores(2)
	stale := e.claim(stores[0], "k", payload)
	e.clock.pass(lease)
	e.done(stores[1], "k", payload, text("done"))
	e.clock.pass(retention)
	e.sweep(100)
	for range 2 {
		e.is("Extend of a claim that is long gone", stores[0].Extend(e.ctx, stale), idem.ErrLost)
		e.is("Checkpoint of a claim that is long gone", stores[0].Checkpoint(e.ctx, stale, []byte("note")), idem.ErrLost)
		e.want("Lookup", e.lookup(stores[1], "k"), idem.Record{})
	}
	e.is("Complete of a claim that is long gone", stores[0].Complete(e.ctx, stale, text("late")), idem.ErrLost)
	e.is("Release of a claim that is long gone", stores[0].Release(e.ctx, stale), nil)
	e.want("Lookup", e.lookup(stores[1], "k"), idem.Record{})
}

func storyLapsedClaim(e *env) {
	s := e.store(e.b, nil)
	extended, completed, released := e.claim(s, "extended", payload), e.claim(s, "completed", payload), e.claim(s, "released", payload)
	abandoned := e.claim(s, "abandoned", payload)
	e.is("Abandon", s.Abandon(e.ctx, abandoned), nil)
	e.clock.pass(lease)
	e.is("Extend of a lapsed claim", s.Extend(e.ctx, extended), nil)
	e.refused(s, "extended", payload, idem.ErrInProgress)
	e.is("Complete of a lapsed claim", s.Complete(e.ctx, completed, text("done")), nil)
	e.replay(s, "completed", text("done"))
	e.is("Release of a lapsed claim", s.Release(e.ctx, released), nil)
	e.claim(s, "released", otherPayload)
	e.is("Extend of an abandoned claim", s.Extend(e.ctx, abandoned), nil)
	e.refused(s, "abandoned", payload, idem.ErrInProgress)
}

func storyExtend(e *env) {
	stores := e.stores(2)
	var c *idem.Claim
	stored := e.clock.during(func() { c = e.claim(stores[0], "k", payload) })
	for range 3 {
		e.clock.pass(6 * time.Hour)
		var err error
		extended := e.clock.during(func() { err = stores[0].Extend(e.ctx, c) })
		e.is("Extend", err, nil)
		r, read := e.getAt(e.b, "k")
		least, most := e.clock.between(extended, read)
		if r.Age < least || r.Age > most || r.Lease != lease || r.Attempt != 1 {
			e.errorf("after Extend the record is %v, want an age of %v to %v", show(r), least, most)
		}
	}
	if e.clock.now()-stored.to < lease {
		e.errorf("the clock of the case stands still")
	}
	if c, done, err := stores[1].Begin(e.ctx, "k", payload); !errors.Is(err, idem.ErrInProgress) {
		if r := e.lookup(stores[1], "k"); c != nil && r.Attempt == 2 && e.h.Advance == nil {
			e.inconclusive() // the machine slept through the new lease
		}
		e.errorf("Begin while an extended lease runs gave %s", outcome(c, done, err))
	}
	e.is("Complete", stores[0].Complete(e.ctx, c, text("done")), nil)
}

// vanish makes the record under key disappear, as an eviction or a failover
// that has lost it would.
func (e *env) vanish(key string) {
	e.t.Helper()
	now := e.get(e.b, key)
	last := newRecord(idem.Released)
	last.TTL = time.Minute
	e.swap(e.b, key, now.Token, last)
	e.clock.pass(time.Minute)
	e.wantStored(key, idem.Record{})
}

func storyVanished(e *env) {
	stores := e.stores(2)
	lost, lonely := e.claim(stores[0], "taken", payload), e.claim(stores[0], "lonely", payload)
	e.vanish("taken")
	c := e.claim(stores[1], "taken", payload)
	before := e.lookup(stores[1], "taken")
	e.is("Extend of a claim that has vanished", stores[0].Extend(e.ctx, lost), idem.ErrLost)
	e.is("Complete of a claim that has vanished", stores[0].Complete(e.ctx, lost, text("late")), idem.ErrLost)
	e.is("Release of a claim that has vanished", stores[0].Release(e.ctx, lost), nil)
	e.unchanged(stores[1], "taken", before)
	e.is("Complete", stores[1].Complete(e.ctx, c, text("done")), nil)

	e.vanish("lonely")
	e.is("Extend of a claim that has vanished", stores[0].Extend(e.ctx, lonely), idem.ErrLost)
	e.want("Lookup after that", e.lookup(stores[1], "lonely"), idem.Record{})
	e.is("Complete of a claim that has vanished", stores[0].Complete(e.ctx, lonely, text("late")), idem.ErrLost)
	e.want("Lookup after that", e.lookup(stores[1], "lonely"), idem.Record{})
}

func storyClockSetBack(e *env) {
	stores := e.stores(2)
	c, slow := e.claim(stores[0], "k", payload), e.claim(stores[0], "slow", payload)
	e.clock.pass(-5 * time.Hour)
	e.refused(stores[1], "k", payload, idem.ErrInProgress)
	e.is("Extend", stores[0].Extend(e.ctx, c), nil)
	e.refused(stores[1], "k", payload, idem.ErrInProgress)
	e.is("Complete", stores[0].Complete(e.ctx, c, text("done")), nil)
	e.clock.pass(-5 * time.Hour)
	e.sweep(100)
	e.replay(stores[1], "k", text("done"))
	// A lease ends after what the clock was set back by and its own length.
	e.clock.pass(10*time.Hour + lease)
	if c := e.claim(stores[1], "slow", payload); !c.Takeover {
		e.errorf("the claim after a lease that is over has no Takeover")
	}
	e.is("Complete of a claim that was taken over", stores[0].Complete(e.ctx, slow, text("slow")), idem.ErrLost)
	e.clock.pass(retention)
	e.want("Lookup after the retention", e.lookup(stores[1], "k"), idem.Record{})
}

// storyLease has a lease of one and a half seconds, which is neither one nor
// two.
func storyLease(e *env) {
	s := e.store(e.b, &idem.Options{Lease: 1500 * time.Millisecond})
	granted := e.clock.during(func() { e.claim(s, "k", payload) })
	e.clock.pass(1100 * time.Millisecond)
	c, done, err := s.Begin(e.ctx, "k", payload)
	if !errors.Is(err, idem.ErrInProgress) {
		if e.clock.now()-granted.from >= 1500*time.Millisecond {
			e.inconclusive()
		}
		e.fatalf("Begin after 1.1 s of a lease of 1.5 s gave %s", outcome(c, done, err))
	}
	e.clock.pass(400 * time.Millisecond)
	if c := e.claim(s, "k", payload); !c.Takeover {
		e.errorf("the claim after a lease that is over has no Takeover")
	}
}

func storyDurations(e *env) {
	for _, d := range []time.Duration{-1, -time.Second, -1 << 63} {
		for what, opts := range map[string]*idem.Options{"lease": {Lease: d}, "retention": {Retention: d}, "MaxHold": {MaxHold: d}} {
			_, err := idem.New(e.b, opts)
			e.is(fmt.Sprintf("New with the %s %v", what, d), err, idem.ErrOptions)
		}
	}
	for _, d := range []time.Duration{1, 500 * time.Microsecond, idem.MinRetention - 1, idem.MaxRetention + 1, 100 * 365 * 24 * time.Hour, 1<<63 - 1} {
		_, err := idem.New(e.b, &idem.Options{Retention: d})
		e.is(fmt.Sprintf("New with the retention %v", d), err, idem.ErrOptions)
	}
	for _, d := range []time.Duration{100 * 365 * 24 * time.Hour, 1<<63 - 1} {
		_, err := idem.New(e.b, &idem.Options{Lease: d})
		e.is(fmt.Sprintf("New with the lease %v", d), err, idem.ErrOptions)
	}
	for _, d := range []time.Duration{1, 500 * time.Microsecond, 999 * time.Microsecond} {
		s := e.store(e.b, &idem.Options{Lease: d})
		key := d.String()
		e.claim(s, key, payload)
		if r := e.lookup(s, key); r.Lease < d || r.TTL < idem.MinRetention {
			e.errorf("with the lease %v the record has the lease %v and the TTL %v", d, r.Lease, r.TTL)
		}
		e.clock.pass(5 * time.Millisecond)
		e.eventually("a claim with a lease of "+key+" is taken over", func() bool {
			c, _, err := s.Begin(e.ctx, key, payload)
			if err != nil && !errors.Is(err, idem.ErrInProgress) {
				e.fatalf("Begin failed: %v", err)
			}
			return c != nil && c.Takeover
		})
	}
	for _, d := range []time.Duration{0, time.Hour, idem.MaxRetention} {
		s := e.store(e.b, &idem.Options{Lease: d, Retention: idem.MaxRetention})
		key := "lease " + d.String()
		e.claim(s, key, payload)
		if r := e.lookup(s, key); r.Lease <= 0 || d > 0 && r.Lease != d {
			e.errorf("with the lease %v the record has the lease %v", d, r.Lease)
		}
		e.refused(s, key, payload, idem.ErrInProgress)
	}
}

func storyTwoStores(e *env) {
	brief := e.store(e.b, &idem.Options{Lease: 2 * time.Hour})
	long := e.store(e.peer(), &idem.Options{Lease: 100 * time.Hour, Retention: idem.MaxRetention})
	hold := e.store(e.b, &idem.Options{Lease: 2 * time.Hour, OnLapse: idem.Hold, Retention: idem.MaxRetention, MaxResult: 8})

	e.claim(brief, "brief", payload)
	e.claim(long, "long", payload)
	e.claim(hold, "held", payload)
	e.clock.pass(3 * time.Hour)
	for _, s := range []*idem.Store{brief, hold} {
		e.refused(s, "long", payload, idem.ErrInProgress)
	}
	e.refused(hold, "brief", payload, idem.ErrUnresolved)
	e.refused(hold, "held", payload, idem.ErrUnresolved)
	if c := e.claim(long, "brief", payload); !c.Takeover {
		e.errorf("the claim of a lapsed key has no Takeover")
	}
	if c := e.claim(brief, "held", payload); !c.Takeover {
		e.errorf("the claim of a lapsed key has no Takeover")
	}
	// A claim is completed with the options of the Store that completes it.
	c := e.claim(long, "omitted", payload)
	e.is("Complete", hold.Complete(e.ctx, c, text("more than eight bytes")), nil)
	e.replay(brief, "omitted", idem.Result{Code: 200, Omitted: true})
	if r := e.lookup(brief, "omitted"); r.TTL != idem.MaxRetention {
		e.errorf("the completed record is kept for %v, want %v", r.TTL, idem.MaxRetention)
	}
}
