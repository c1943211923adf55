package conformancetest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idem-go/idem"
)

const (
	ruleRetention = "A result is kept for the retention, counted from its completion; after that the key is free, swept or not."
	ruleSweeps    = "Sweep never takes a record that somebody counts on: a claim that runs or lapsed, or a result that is to be replayed."
)

var retentionCases = []testCase{
	{name: "RT-4/FromCompletion", rule: ruleRetention, timed: true, run: storyRetention},
	{name: "RT-4/ClaimOutlivesLease", rule: ruleRetention, timed: true, run: storySlowClaim},
	{name: "Erase", rule: "Erase takes the answer out of a completed record; the record goes on to keep duplicates away, until it would have expired anyway.", timed: true, run: storyErase},
	{name: "RT-1/SweepBesideClaims", rule: ruleSweeps, timed: true, run: storySweepBesideClaims},
	{name: "RT-1/SweepBesideExtend", rule: ruleSweeps, run: storySweepBesideExtend},
	{name: "PE-4/SweepBesideReclaims", rule: "Sweep beside new claims of expired keys never makes two owners.", timed: true, run: storySweepRace},
}

// stillReplayed wants the result, unless its time can be up.
func (e *env) stillReplayed(s *idem.Store, key string, completed moment, want idem.Result) {
	e.t.Helper()
	var c *idem.Claim
	var done *idem.Record
	var err error
	read := e.clock.during(func() { c, done, err = s.Begin(e.ctx, key, payload) })
	if _, most := e.clock.between(completed, read); c != nil && most >= retention {
		e.inconclusive()
	}
	if done == nil || !done.Result.Equal(want) {
		e.fatalf("Begin(%q) within the retention gave %s", key, outcome(c, done, err))
	}
}

func storyRetention(e *env) {
	stores := e.stores(2)
	first := e.claim(stores[0], "k", payload)
	e.clock.pass(8 * time.Hour)
	e.is("Extend", stores[0].Extend(e.ctx, first), nil)
	e.clock.pass(6 * time.Hour)
	completed := e.clock.during(func() { e.is("Complete", stores[0].Complete(e.ctx, first, text("done")), nil) })
	for range 2 { // beyond the retention counted from the claim
		e.clock.pass(10 * time.Hour)
		e.lookup(stores[0], "k")
		e.stillReplayed(stores[1], "k", completed, text("done"))
	}
	e.clock.pass(4 * time.Hour) // no Sweep has run
	e.want("Lookup after the retention", e.lookup(stores[1], "k"), idem.Record{})
	if c := e.claim(stores[1], "k", otherPayload); c.Attempt != 1 || c.Takeover || c.Fence <= first.Fence {
		e.errorf("Begin after the retention gave attempt %d, takeover %v, fence %d after %d", c.Attempt, c.Takeover, c.Fence, first.Fence)
	}
	e.is("Complete by the first holder", stores[0].Complete(e.ctx, first, text("done")), idem.ErrLost)
}

// storyErase erases answers, twice each, and half of them again later: all
// records expire when they would have expired.
func storyErase(e *env) {
	stores := e.stores(2)
	keys := []string{"a", "b", "c", "d"}
	answer := idem.Result{Code: 201, Meta: map[string]string{"mail": "ada@example.org"}, Body: []byte("Ada")}
	var before [4]idem.Record
	completed := e.clock.during(func() {
		for i, key := range keys {
			e.done(stores[0], key, payload, answer)
			before[i] = e.lookup(stores[0], key)
		}
	})
	e.clock.pass(10 * time.Hour)
	bare := idem.Result{Code: 201, Omitted: true}
	for i, key := range keys {
		e.is("Erase", stores[i%2].Erase(e.ctx, key), nil)
		got := e.lookup(stores[1], key)
		want := before[i]
		want.Token, want.Result, want.TTL, want.Age = got.Token, bare, got.TTL, got.Age
		e.want("Lookup after Erase", got, want)
		e.is("Erase again", stores[0].Erase(e.ctx, key), nil)
		e.want("the token after a second Erase", idem.Record{Token: e.lookup(stores[0], key).Token}, idem.Record{Token: got.Token})
		e.stillReplayed(stores[1], key, completed, bare)
		e.refused(stores[1], key, otherPayload, idem.ErrMismatch)
	}
	e.clock.pass(10 * time.Hour)
	e.sweep(100)
	for _, key := range keys {
		e.stillReplayed(stores[0], key, completed, bare)
	}
	e.clock.pass(5 * time.Hour)
	for _, key := range keys {
		e.want("Lookup after the retention", e.lookup(stores[1], key), idem.Record{})
	}
	e.sweepAll(1, 100) // leaves none of the expired
	e.claim(stores[0], "a", otherPayload)
}

// storySlowClaim completes a claim long after its lease, which nobody has
// missed in the meantime.
func storySlowClaim(e *env) {
	s := e.store(e.b, nil)
	var c *idem.Claim
	granted := e.clock.during(func() { c = e.claim(s, "k", payload) })
	e.clock.pass(lease + 18*time.Hour)
	e.sweep(100)
	var err error
	completed := e.clock.during(func() { err = s.Complete(e.ctx, c, text("slow")) })
	if _, most := e.clock.between(granted, completed); err != nil && most >= lease+retention {
		e.inconclusive()
	}
	e.is("Complete of a lapsed claim", err, nil)
	e.clock.pass(18 * time.Hour)
	e.sweep(100)
	e.stillReplayed(s, "k", completed, text("slow"))
}

func storySweepBesideClaims(e *env) {
	n := rounds(40)
	s := e.store(e.b, nil)
	each := func(what string, do func(key string)) {
		for i := range n {
			do(fmt.Sprintf("%s-%d", what, i))
		}
	}
	claims := make(map[string]*idem.Claim)
	begin := func(key string) { claims[key] = e.claim(s, key, payload) }
	each("expired", func(key string) { e.done(s, key, payload, text("old")) })
	e.clock.pass(14 * time.Hour)
	each("lapsed", begin)
	each("extended", begin)
	e.clock.pass(7 * time.Hour)
	each("extended", func(key string) { e.is("Extend", s.Extend(e.ctx, claims[key]), nil) })
	e.clock.pass(4 * time.Hour)
	each("live", begin)
	each("completed", func(key string) { e.done(s, key, payload, text("fresh")) })

	// Some may have been deleted on the way, by storage that cleans up by itself.
	if swept := e.sweepAll(7, 5*n); swept > n {
		e.errorf("Sweep deleted %d records where %d are expired", swept, n)
	}
	each("completed", func(key string) { e.replay(s, key, text("fresh")) })
	for key, c := range claims {
		e.is("Complete of the claim "+key+" after a Sweep", s.Complete(e.ctx, c, text(key)), nil)
		e.replay(s, key, text(key))
	}
	each("expired", func(key string) { e.want("Lookup", e.lookup(s, key), idem.Record{}) })
}

// sweeping sweeps in a loop, by each of the handles, until stop is called. Small
// batches make it last.
func (e *env) sweeping(handles []idem.Backend) (stop func()) {
	stopped := make(chan struct{})
	var all sync.WaitGroup
	for _, b := range handles {
		all.Go(func() {
			for {
				select {
				case <-stopped:
					return
				default:
				}
				if _, err := b.Sweep(e.ctx, 3); err != nil {
					e.errorf("Sweep failed: %v", err)
					return
				}
			}
		})
	}
	return func() {
		close(stopped)
		all.Wait()
	}
}

func storySweepBesideExtend(e *env) {
	stores := e.stores(2)
	stop := e.sweeping(e.handles(2))
	defer stop()
	together(8, func(i int) {
		key := fmt.Sprintf("k%d", i)
		c := e.claim(stores[i%2], key, payload)
		for range rounds(20) {
			e.is("Extend beside a Sweep", stores[(i+1)%2].Extend(e.ctx, c), nil)
		}
		e.is("Complete beside a Sweep", stores[i%2].Complete(e.ctx, c, text(key)), nil)
		e.replay(stores[(i+1)%2], key, text(key))
	})
}

func storySweepRace(e *env) {
	keys := rounds(200)
	stores := e.stores(4)
	for range 2 {
		together(8, func(part int) {
			for i := part; i < keys; i += 8 {
				e.done(stores[i%4], fmt.Sprintf("k%d", i), payload, text("old"))
			}
		})
		e.clock.pass(retention)
		stop := e.sweeping(e.handles(2))
		claims := make([][8]*idem.Claim, keys)
		together(8, func(caller int) {
			for n := range keys {
				i := (n + caller*keys/8) % keys // not all at the same key
				c, done, err := stores[caller%4].Begin(e.ctx, fmt.Sprintf("k%d", i), payload)
				if claims[i][caller] = c; c == nil && !errors.Is(err, idem.ErrInProgress) {
					e.errorf("Begin of an expired key beside a Sweep gave %s", outcome(c, done, err))
				}
			}
		})
		stop()
		for i := range keys {
			owners := 0
			for _, c := range claims[i] {
				if c != nil && c.Takeover {
					e.inconclusive() // the machine slept through a lease
				}
				if c != nil {
					owners++
					e.is("Complete of a key that was claimed beside a Sweep", stores[0].Complete(e.ctx, c, text("new")), nil)
				}
			}
			if owners != 1 {
				e.fatalf("%d callers own the key that was claimed beside a Sweep, want 1", owners)
			}
		}
		e.clock.pass(retention)
	}
}
