package conformancetest

import (
	"fmt"
	"time"

	"github.com/idem-go/idem"
)

const (
	ruleAge      = "Age is the time since the Swap that stored the record, by one clock: the storage's own where it has one."
	rulePositive = "Age is never negative, whatever the clock does."
	ruleExpired  = "A record is expired once Age >= TTL."
	ruleNoRecord = "An expired record is no record, swept or not: Get does not return it and Swap treats the key as free."
	ruleReading  = "Reading does not make a record younger."
)

var timeCases = []testCase{
	{name: "Age", rule: ruleAge, timed: true, run: testAge},
	{name: "AgeRestarts", rule: ruleAge, timed: true, run: testAgeRestarts},
	{name: "AgeIgnored", rule: ruleAge, timed: true, run: testAgeIgnored},
	{name: "AgeReturned", rule: ruleAge, timed: true, run: testAgeReturned},
	{name: "AgePeers", rule: ruleAge, timed: true, needs: needPeer, run: testAgePeers},
	{name: "AgeNegative", rule: rulePositive, run: testAgeNegative},
	{name: "ClockSetBack", rule: rulePositive, timed: true, needs: needAdvance, run: testClockSetBack},
	{name: "Expiry", rule: ruleExpired, timed: true, run: testExpiry},
	{name: "ExpiryShort", rule: ruleExpired, run: testExpiryShort},
	{name: "ExpiryRestarts", rule: ruleExpired, timed: true, run: testExpiryRestarts},
	{name: "ExpiryNotLease", rule: ruleExpired, timed: true, run: testExpiryNotLease},
	{name: "ExpiryLong", rule: ruleExpired, timed: true, run: testExpiryLong},
	{name: "ExpiredGet", rule: ruleNoRecord, timed: true, run: testExpiredGet},
	{name: "ExpiredCreate", rule: ruleNoRecord, timed: true, run: testExpiredCreate},
	{name: "ExpiredReplace", rule: ruleNoRecord, timed: true, run: testExpiredReplace},
	{name: "ExpiredRace", rule: ruleNoRecord, timed: true, run: testExpiredRace},
	{name: "Reading", rule: ruleReading, timed: true, run: testReading},
}

// getAt returns what is stored under key, and when that was read.
func (e *env) getAt(b idem.Backend, key string) (r idem.Record, read moment) {
	e.t.Helper()
	read = e.clock.during(func() { r = e.get(b, key) })
	return r, read
}

// wantLive reports if the record that was stored at the moment is not there,
// unless its time can be up.
func (e *env) wantLive(key string, stored moment, want idem.Record) idem.Record {
	e.t.Helper()
	got, read := e.getAt(e.b, key)
	if _, most := e.clock.between(stored, read); got.Token == "" && most >= want.TTL {
		e.inconclusive()
	}
	e.want(fmt.Sprintf("Get(%q) before its time is up", key), got, want)
	return got
}

// wantAge reports if the record's age is not the time since the moment it was
// stored.
func (e *env) wantAge(key string, stored moment, want idem.Record) {
	e.t.Helper()
	got, read := e.getAt(e.b, key)
	e.checkAge(fmt.Sprintf("Get(%q)", key), got, stored, read, want)
}

func (e *env) checkAge(what string, got idem.Record, stored, read moment, want idem.Record) {
	e.t.Helper()
	least, most := e.clock.between(stored, read)
	if got.Token == "" && most >= want.TTL {
		e.inconclusive()
	}
	e.want(what, got, want)
	if got.Age < least || got.Age > most {
		e.errorf("%s: the age is %v, want %v to %v", what, got.Age, least, most)
	}
}

func testAge(e *env) {
	r := newRecord(idem.InProgress)
	stored := e.clock.during(func() { e.put("k", r) })
	e.wantAge("k", stored, r)
	for range 4 {
		e.clock.pass(3 * time.Hour)
		e.wantAge("k", stored, r)
	}
}

func testAgeRestarts(e *env) {
	old := e.put("k", newRecord(idem.InProgress))
	e.clock.pass(4 * time.Hour)
	r := newRecord(idem.Completed)
	stored := e.clock.during(func() { e.want("Swap", e.swap(e.b, "k", old.Token, r), r) })
	e.wantAge("k", stored, r)
	e.clock.pass(4 * time.Hour)
	e.wantAge("k", stored, r)
}

func testAgeIgnored(e *env) {
	for i, age := range []time.Duration{time.Hour, -time.Hour, 1 << 62, -1 << 62} {
		key := fmt.Sprintf("k%d", i)
		r := newRecord(idem.Completed)
		r.Age = age
		var got idem.Record
		stored := e.clock.during(func() { got = e.swap(e.b, key, "", r) })
		e.checkAge("Swap of a record with an age", got, stored, stored, r)
		e.wantAge(key, stored, r)
	}
}

// testAgeReturned looks at the age of the record in the way.
func testAgeReturned(e *env) {
	r := newRecord(idem.InProgress)
	stored := e.clock.during(func() { e.put("k", r) })
	e.clock.pass(5 * time.Hour)
	var got idem.Record
	for _, old := range []string{"", "no.such"} {
		read := e.clock.during(func() { got = e.swap(e.b, "k", old, newRecord(idem.InProgress)) })
		e.checkAge("Swap that finds a record", got, stored, read, r)
	}
	read := e.clock.during(func() { got = e.swap(e.b, "k", "", r) })
	e.checkAge("Swap that is repeated", got, stored, read, r)
}

func testAgePeers(e *env) {
	peer := e.peer()
	r := newRecord(idem.InProgress)
	stored := e.clock.during(func() { e.put("k", r) })
	e.clock.pass(5 * time.Hour)
	got, read := e.getAt(peer, "k")
	e.checkAge("Get by a peer", got, stored, read, r)

	next := newRecord(idem.Completed)
	stored = e.clock.during(func() { e.want("Swap by a peer", e.swap(peer, "k", r.Token, next), next) })
	e.clock.pass(5 * time.Hour)
	e.wantAge("k", stored, next)
}

func testAgeNegative(e *env) {
	r := e.put("k", newRecord(idem.InProgress))
	for range 100 {
		next := successor(r)
		for _, got := range []idem.Record{
			e.swap(e.b, "k", r.Token, next), e.get(e.b, "k"), e.swap(e.b, "k", "", newRecord(idem.Completed)),
		} {
			e.want("a record just stored", got, next)
			if got.Age < 0 {
				e.fatalf("the age is %v", got.Age)
			}
		}
		r = next
	}
}

func testClockSetBack(e *env) {
	r := e.put("k", newRecord(idem.InProgress))
	e.clock.pass(-5 * time.Hour)
	for what, got := range map[string]idem.Record{
		"Get": e.get(e.b, "k"), "Swap": e.swap(e.b, "k", "", newRecord(idem.Completed)),
	} {
		e.want(what+" after the clock was set back", got, r)
		if got.Age < 0 {
			e.errorf("%s after the clock was set back: the age is %v", what, got.Age)
		}
		if got.LeaseLeft() > got.Lease {
			e.errorf("%s after the clock was set back: %v of a lease of %v are left", what, got.LeaseLeft(), got.Lease)
		}
	}
	next := newRecord(idem.Completed)
	e.want("Swap after the clock was set back", e.swap(e.b, "k", r.Token, next), next)
	e.wantStored("k", next)
	if n := e.sweep(100); n != 0 {
		e.errorf("Sweep after the clock was set back deleted %d records", n)
	}
	e.clock.pass(35 * time.Hour)
	e.wantStored("k", idem.Record{})
}

func testExpiry(e *env) {
	r := newRecord(idem.Completed)
	r.TTL = 10 * time.Hour
	stored := e.clock.during(func() { e.put("k", r) })
	e.clock.pass(5 * time.Hour)
	e.wantLive("k", stored, r)
	e.clock.pass(5 * time.Hour) // to the TTL and, where the clock stands still, not beyond it
	e.wantStored("k", idem.Record{})
	e.want("Swap", e.swap(e.b, "k", r.Token, newRecord(idem.Released)), idem.Record{})
}

// testExpiryShort stores records that live for less than a storage's unit of
// time may be. They must not live for ever.
func testExpiryShort(e *env) {
	for _, ttl := range []time.Duration{1, 500 * time.Microsecond, 999 * time.Microsecond, 1500 * time.Microsecond, 20 * time.Millisecond} {
		key := ttl.String()
		r := newRecord(idem.Completed)
		r.TTL = ttl
		e.swap(e.b, key, "", r)
	}
	e.clock.pass(25 * time.Millisecond)
	for _, key := range []string{"1ns", "500µs", "999µs", "1.5ms", "20ms"} {
		// Without Advance a storage with a coarse clock may need a moment more.
		for e.get(e.b, key).Token != "" {
			e.clock.pass(time.Millisecond)
			if e.ctx.Err() != nil || e.clock.now() > e.h.limits.prompt {
				e.fatalf("a record with a TTL of %s is there after %v", key, e.clock.now())
			}
		}
	}
}

// testExpiryRestarts counts the TTL from the last Swap, not from the first.
func testExpiryRestarts(e *env) {
	old := newRecord(idem.InProgress)
	old.TTL = 10 * time.Hour
	was := e.clock.during(func() { e.put("k", old) })
	e.clock.pass(7 * time.Hour)
	e.wantLive("k", was, old)
	r := newRecord(idem.Completed)
	r.TTL = 10 * time.Hour
	var got idem.Record
	stored := e.clock.during(func() { got = e.swap(e.b, "k", old.Token, r) })
	if _, most := e.clock.between(was, stored); got.Token == "" && most >= old.TTL {
		e.inconclusive()
	}
	e.want("Swap", got, r)
	e.clock.pass(7 * time.Hour)
	e.wantLive("k", stored, r)
	e.clock.pass(3 * time.Hour)
	e.wantStored("k", idem.Record{})
}

// testExpiryNotLease has a lease that is over in a record that is not.
func testExpiryNotLease(e *env) {
	r := newRecord(idem.InProgress)
	r.Lease, r.TTL = 2*time.Hour, 30*time.Hour
	stored := e.clock.during(func() { e.put("k", r) })
	abandoned := newRecord(idem.InProgress)
	abandoned.Lease = 0
	e.put("abandoned", abandoned)
	e.clock.pass(4 * time.Hour)
	if got := e.wantLive("k", stored, r); !got.Lapsed() {
		e.errorf("a lease of %v is not over after 4 h; the age is %v", got.Lease, got.Age)
	}
	e.sweep(100)
	e.wantLive("k", stored, r)
	e.wantLive("abandoned", stored, abandoned)
}

// testExpiryLong has the TTL of a claim that is held for ever, and the longest
// one. Sums of it and the time overflow.
func testExpiryLong(e *env) {
	for _, ttl := range []time.Duration{100 * 365 * 24 * time.Hour, 1<<63 - 1} {
		key := ttl.String()
		r := newRecord(idem.InProgress)
		r.TTL = ttl / 1_000_000 * 1_000_000 // comes back as it is at every scale
		e.put(key, r)
		e.clock.pass(10 * time.Hour)
		e.sweep(100)
		e.wantStored(key, r)
		next := newRecord(idem.Completed)
		e.want("Swap", e.swap(e.b, key, r.Token, next), next)
	}
}

// expired stores a record that expires, and returns it.
func (e *env) expired(key string, s idem.Status) idem.Record {
	e.t.Helper()
	r := full(s)
	r.TTL = 2 * time.Hour
	e.put(key, r)
	e.clock.pass(2 * time.Hour)
	return r
}

func testExpiredGet(e *env) {
	for _, s := range []idem.Status{idem.InProgress, idem.Completed, idem.Released} {
		e.expired(s.String(), s)
		e.wantStored(s.String(), idem.Record{})
	}
	e.sweep(100)
	for _, s := range []idem.Status{idem.InProgress, idem.Completed, idem.Released} {
		e.wantStored(s.String(), idem.Record{})
	}
}

func testExpiredCreate(e *env) {
	for _, s := range []idem.Status{idem.InProgress, idem.Completed, idem.Released} {
		key := s.String()
		e.expired(key, s)
		r := newRecord(idem.InProgress)
		stored := e.clock.during(func() { e.want("Swap of an expired record's key", e.swap(e.b, key, "", r), r) })
		e.wantAge(key, stored, r)
		next := newRecord(idem.Completed)
		e.want("Swap of its successor", e.swap(e.b, key, r.Token, next), next)
	}
}

func testExpiredReplace(e *env) {
	for _, s := range []idem.Status{idem.InProgress, idem.Completed, idem.Released} {
		old := e.expired(s.String(), s)
		got := e.swap(e.b, s.String(), old.Token, newRecord(idem.Completed))
		e.want("Swap with the token of an expired record", got, idem.Record{})
		e.wantStored(s.String(), idem.Record{})
	}
}

// testExpiredRace lets many callers take the key of an expired record.
func testExpiredRace(e *env) {
	const callers = 16
	handles := e.handles(3)
	for round := range rounds(12) {
		key := fmt.Sprintf("expired-%d", round)
		e.expired(key, idem.Completed)
		var own, got [callers]idem.Record
		for i := range own {
			own[i] = newRecord(idem.InProgress)
		}
		together(callers, func(i int) { got[i] = e.swap(handles[i%3], key, "", own[i]) })
		winners := 0
		for i := range own {
			if got[i].Token == own[i].Token {
				winners++
			}
		}
		if winners != 1 {
			e.fatalf("%d of %d callers took the key of an expired record at once, want 1", winners, callers)
		}
	}
}

func testReading(e *env) {
	r := newRecord(idem.Completed)
	r.TTL = 10 * time.Hour
	stored := e.clock.during(func() { e.put("k", r) })
	lister, lists := e.b.(idem.Lister)
	for range 4 {
		e.clock.pass(2 * time.Hour)
		e.wantAge("k", stored, r)
		e.swap(e.b, "k", "", newRecord(idem.InProgress))
		e.sweep(100)
		if lists {
			e.list(lister, idem.Query{})
		}
		e.wantAge("k", stored, r)
	}
	e.clock.pass(2 * time.Hour)
	e.wantStored("k", idem.Record{})
}
