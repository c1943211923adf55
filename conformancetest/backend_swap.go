package conformancetest

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/idem-go/idem"
)

const (
	ruleSwap       = "Swap stores new if the record under key has the token old; the empty old means that there must be no record."
	ruleReturns    = "Swap returns what is stored under key afterwards: new if it was stored, else the record in the way, else the zero Record."
	ruleOneByOne   = "Swaps of one key take effect one at a time, for all processes on that storage."
	ruleRepeat     = "Swap is idempotent by token: a Swap repeated because its reply was lost finds the token of new stored, writes nothing and succeeds."
	ruleNoWrite    = "A Swap that does not swap writes nothing and leaves the transaction it runs in usable."
	ruleWhole      = "A record that is replaced is replaced whole: nothing of the old record is left in the new one."
	ruleConcurrent = "Methods may be called concurrently."
)

var swapCases = []testCase{
	{name: "Create", rule: ruleSwap, run: testCreate},
	{name: "CreateConflict", rule: ruleSwap, run: testCreateConflict},
	{name: "Replace", rule: ruleSwap, run: testReplace},
	{name: "ReplaceConflict", rule: ruleSwap, run: testReplaceConflict},
	{name: "ReplaceAbsent", rule: ruleSwap, run: testReplaceAbsent},
	{name: "OtherKeys", rule: ruleSwap, run: testOtherKeys},
	{name: "Returns", rule: ruleReturns, run: testReturns},
	{name: "Repeat", rule: ruleRepeat, run: testRepeat},
	{name: "RepeatLate", rule: ruleRepeat, timed: true, run: testRepeatLate},
	{name: "RefusedSwap", rule: ruleNoWrite, timed: true, run: testRefusedSwap},
	{name: "RefusedSwapWrites", rule: ruleNoWrite, needs: needWrites, run: testRefusedSwapWrites},
	{name: "Whole", rule: ruleWhole, run: testWhole},
	{name: "WholeAfterExpiry", rule: ruleWhole, timed: true, run: testWholeAfterExpiry},
	{name: "ConcurrentCreate", rule: ruleOneByOne, run: testConcurrentCreate},
	{name: "ConcurrentReplace", rule: ruleOneByOne, run: testConcurrentReplace},
	{name: "PeerCreate", rule: ruleOneByOne, needs: needPeer, run: testPeerCreate},
	{name: "PeerReplace", rule: ruleOneByOne, needs: needPeer, run: testPeerReplace},
	{name: "ConcurrentMethods", rule: ruleConcurrent, run: testConcurrentMethods},
}

func testCreate(e *env) {
	for _, s := range []idem.Status{idem.InProgress, idem.Completed, idem.Released} {
		key := "create-" + s.String()
		r := newRecord(s)
		e.swap(e.b, key, "", r)
		e.wantStored(key, r)
	}
}

func testCreateConflict(e *env) {
	first := e.put("k", newRecord(idem.InProgress))
	for _, s := range []idem.Status{idem.InProgress, idem.Completed, idem.Released} {
		e.swap(e.b, "k", "", newRecord(s))
		e.wantStored("k", first)
	}
}

func testReplace(e *env) {
	now := e.put("k", newRecord(idem.InProgress))
	for _, s := range []idem.Status{idem.InProgress, idem.Completed, idem.Released, idem.InProgress, idem.Released} {
		next := newRecord(s)
		e.swap(e.b, "k", now.Token, next)
		e.wantStored("k", next)
		now = next
	}
}

func testReplaceConflict(e *env) {
	now := e.put("k", newRecord(idem.InProgress))
	before := now.Token
	now = successor(now)
	e.swap(e.b, "k", before, now)
	other := e.put("other", newRecord(idem.InProgress))
	attempt := now.Token[:len(now.Token)/2]
	for _, old := range []string{
		before,                  // of the record before
		other.Token,             // of another key
		newRecord(1).Token,      // of no record at all
		now.Token + "x",         // longer
		now.Token[:1],           // a beginning
		attempt,                 // the attempt without the write
		now.Token + " ",         // with a blank
		"%", "*", "_", "?", ".", // patterns
	} {
		e.want(fmt.Sprintf("Swap with the old token %q", old), e.swap(e.b, "k", old, successor(now)), now)
		e.wantStored("k", now)
	}
}

func testReplaceAbsent(e *env) {
	for _, old := range []string{"a.b", newRecord(1).Token, "%", "*"} {
		e.swap(e.b, "k", old, newRecord(idem.Completed))
		e.wantStored("k", idem.Record{})
	}
	// The key is as free as before.
	e.put("k", newRecord(idem.InProgress))
}

func testOtherKeys(e *env) {
	a := e.put("a", newRecord(idem.InProgress))
	b := e.put("b", newRecord(idem.Completed))
	next := successor(a)
	e.want("Swap", e.swap(e.b, "a", a.Token, next), next)
	e.wantStored("a", next)
	e.wantStored("b", b)
	e.wantStored("c", idem.Record{})
}

func testReturns(e *env) {
	r := newRecord(idem.InProgress)
	e.want("Swap with an old token of an absent key", e.swap(e.b, "k", "no.such", r), idem.Record{})
	e.want("Swap of an absent key", e.swap(e.b, "k", "", r), r)
	e.want("Swap of a key that has a record", e.swap(e.b, "k", "", newRecord(idem.InProgress)), r)
	e.want("Swap with a wrong old token", e.swap(e.b, "k", "no.such", newRecord(idem.Completed)), r)
	done := newRecord(idem.Completed)
	e.want("Swap with the old token", e.swap(e.b, "k", r.Token, done), done)
	e.want("Swap with the token of the record before", e.swap(e.b, "k", r.Token, newRecord(idem.Completed)), done)
}

func testRepeat(e *env) {
	first := newRecord(idem.InProgress)
	for range 3 {
		e.want("Swap of an absent key, repeated", e.swap(e.b, "k", "", first), first)
	}
	second := newRecord(idem.Completed)
	for range 3 {
		e.want("Swap of a record, repeated", e.swap(e.b, "k", first.Token, second), second)
		e.wantStored("k", second)
	}
	// A repetition that arrives after somebody else's write is late, and it
	// must not undo that write.
	e.want("the first Swap, late", e.swap(e.b, "k", "", first), second)
	third := newRecord(idem.Released)
	e.want("Swap", e.swap(e.b, "k", second.Token, third), third)
	e.want("the second Swap, late", e.swap(e.b, "k", first.Token, second), third)
	e.wantStored("k", third)
}

func testRepeatLate(e *env) {
	r := newRecord(idem.InProgress)
	stored := e.clock.during(func() { e.put("k", r) })
	e.clock.pass(4 * time.Hour)
	e.want("Swap, repeated after four hours", e.swap(e.b, "k", "", r), r)
	e.wantAge("k", stored, r)
}

func testRefusedSwap(e *env) {
	r := newRecord(idem.Completed)
	stored := e.clock.during(func() { e.put("k", r) })
	e.clock.pass(4 * time.Hour)
	for range 3 {
		e.want("Swap that has to be refused", e.swap(e.b, "k", "", newRecord(idem.InProgress)), r)
		e.want("Swap that has to be refused", e.swap(e.b, "k", "no.such", newRecord(idem.InProgress)), r)
	}
	e.wantAge("k", stored, r)
}

// A storage may write for reasons of its own now and then, so that only a write
// in every round counts.
func testRefusedSwapWrites(e *env) {
	r := e.put("k", newRecord(idem.Completed))
	for range 5 {
		before := e.h.Writes(e.t, e.raw)
		for range 8 {
			e.want("Swap that has to be refused", e.swap(e.b, "k", "", newRecord(idem.InProgress)), r)
			e.want("Swap that has to be refused", e.swap(e.b, "k", "no.such", newRecord(idem.InProgress)), r)
			e.want("Swap of an absent key", e.swap(e.b, "absent", "no.such", newRecord(idem.InProgress)), idem.Record{})
			e.wantStored("k", r)
		}
		if e.h.Writes(e.t, e.raw) == before {
			return
		}
	}
	e.errorf("Swaps that were refused wrote to the storage, in each of 5 rounds")
}

// full returns a record with something in every field.
func full(s idem.Status) idem.Record {
	r := newRecord(s)
	r.Attempt, r.Lease = 7, 3*time.Hour
	copy(r.Fingerprint[:], "fingerprint of the first payload")
	r.Checkpoint = []byte("note of the old holder")
	r.Result = idem.Result{
		Code:    418,
		Meta:    map[string]string{"Old": "value", "Both": "old"},
		Body:    []byte("body of the old record"),
		Omitted: true,
	}
	return r
}

// bare returns a record with nothing in it that can be left out.
func bare(s idem.Status) idem.Record {
	return idem.Record{Token: newRecord(s).Token, Status: s, TTL: 30 * time.Hour}
}

func testWhole(e *env) {
	now := e.put("k", full(idem.Completed))
	for _, next := range []idem.Record{bare(idem.Released), full(idem.InProgress), bare(idem.InProgress), full(idem.Completed), bare(idem.Completed)} {
		e.want("Swap", e.swap(e.b, "k", now.Token, next), next)
		e.wantStored("k", next)
		now = next
	}
	// Maps must not be merged either.
	first, second := full(idem.Completed), full(idem.Completed)
	second.Result.Meta = map[string]string{"Both": "new"}
	e.swap(e.b, "k", now.Token, first)
	e.want("Swap", e.swap(e.b, "k", first.Token, second), second)
	e.wantStored("k", second)
}

func testWholeAfterExpiry(e *env) {
	e.put("k", full(idem.Completed))
	e.clock.pass(30 * time.Hour)
	e.put("k", bare(idem.InProgress))
	e.want("Swap", e.swap(e.b, "k", "", newRecord(idem.InProgress)), e.get(e.b, "k"))
	if r := e.get(e.b, "k"); len(r.Result.Meta)+len(r.Result.Body)+len(r.Checkpoint) > 0 || r.Result.Omitted || r.Result.Code != 0 {
		e.errorf("a record in the place of an expired one has something of it: %+v", r)
	}
}

func testConcurrentCreate(e *env) { createRace(e, []idem.Backend{e.b}) }
func testPeerCreate(e *env)       { createRace(e, []idem.Backend{e.b, e.peer(), e.peer()}) }

// createRace lets many callers create one key at once, again and again.
func createRace(e *env, handles []idem.Backend) {
	const callers = 16
	for round := range rounds(40) {
		key := fmt.Sprintf("create-%d", round)
		var own, got [callers]idem.Record
		var failed [callers]error
		for i := range own {
			own[i] = newRecord(idem.InProgress)
		}
		together(callers, func(i int) {
			got[i], failed[i] = handles[i%len(handles)].Swap(e.ctx, key, "", own[i])
		})
		stored := e.get(e.b, key)
		winners := 0
		for i := range own {
			if failed[i] != nil {
				e.fatalf("Swap failed although only others were in the way: %v", failed[i])
			}
			if got[i].Token == own[i].Token {
				winners++
			}
			if got[i].Token != stored.Token {
				e.errorf("a caller was told of %v while %v is stored", show(got[i]), show(stored))
			}
		}
		if winners != 1 {
			e.fatalf("%d of %d callers created the key %q at once, want 1", winners, callers, key)
		}
	}
}

func testConcurrentReplace(e *env) { replaceRace(e, []idem.Backend{e.b}) }
func testPeerReplace(e *env)       { replaceRace(e, []idem.Backend{e.b, e.peer(), e.peer()}) }

// replaceRace counts to 80 with eight callers: an update that is lost or made
// twice leaves another number.
func replaceRace(e *env, handles []idem.Backend) {
	const callers, each = 8, 10
	e.put("k", newRecord(idem.InProgress)) // Attempt 1
	var swapped [callers]int
	var tokens [callers][]string
	var collisions atomic.Int64
	together(callers, func(i int) {
		b := handles[i%len(handles)]
		now := e.get(b, "k")
		for swapped[i] < each {
			next := successor(now)
			got := e.swap(b, "k", now.Token, next) // fails at the latest when the time is up
			if got.Token == next.Token {
				swapped[i]++
				tokens[i] = append(tokens[i], now.Token)
			} else {
				collisions.Add(1)
			}
			now = got
		}
	})
	replaced := slices.Sorted(slices.Values(slices.Concat(tokens[:]...)))
	if n := len(replaced) - len(slices.Compact(slices.Clone(replaced))); n > 0 {
		e.errorf("%d records were replaced by two callers each", n)
	}
	if got := e.get(e.b, "k").Attempt; got != 1+callers*each {
		e.errorf("after %d Swaps that succeeded the count is %d, want %d", callers*each, got, 1+callers*each)
	}
	e.logf("%d Swaps found another record in the way", collisions.Load())
}

// testConcurrentMethods calls everything at once; each caller has a key of its
// own and must see nothing but its own writes.
func testConcurrentMethods(e *env) {
	lister, lists := e.b.(idem.Lister)
	together(8, func(i int) {
		key := fmt.Sprintf("own-%d", i)
		now := e.put(key, newRecord(idem.InProgress))
		for range rounds(20) {
			next := newRecord(idem.Completed)
			e.want("Swap", e.swap(e.b, key, now.Token, next), next)
			e.wantStored(key, next)
			if n := e.sweep(10); n != 0 {
				e.errorf("Sweep deleted %d records where none is expired", n)
			}
			if lists {
				if _, _, err := lister.List(e.ctx, idem.Query{Prefix: "own-", Limit: 3}); err != nil {
					e.fatalf("List failed: %v", err)
				}
			}
			now = next
		}
	})
}
