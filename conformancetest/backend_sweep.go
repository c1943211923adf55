package conformancetest

import (
	"fmt"
	"sync"
	"time"

	"github.com/idem-go/idem"
)

const (
	ruleSweep      = "Sweep deletes expired records only, and judges each at the moment it is deleted."
	ruleSweepLimit = "Sweep deletes at most limit records and returns how many it deleted; with a limit below 1 it deletes none."
	ruleSweepSelf  = "Storage that expires records by itself may answer 0 to Sweep."
	ruleSweepAll   = "A Sweep with a limit above the number of expired records leaves none of them."
	ruleSweepEmpty = "Sweep of an empty storage is no error."
)

var sweepCases = []testCase{
	{name: "SweepLive", rule: ruleSweep, timed: true, run: testSweepLive},
	{name: "SweepReplaced", rule: ruleSweep, timed: true, run: testSweepReplaced},
	{name: "SweepRace", rule: ruleSweep, timed: true, run: testSweepRace},
	{name: "SweepLimit", rule: ruleSweepLimit, timed: true, run: testSweepLimit},
	{name: "SweepNone", rule: ruleSweepLimit, timed: true, run: testSweepNone},
	{name: "SweepCount", rule: ruleSweepSelf, timed: true, run: testSweepCount},
	{name: "SweepAll", rule: ruleSweepAll, timed: true, run: testSweepAll},
	{name: "SweepEmpty", rule: ruleSweepEmpty, timed: true, run: testSweepEmpty},
}

// litterTTL is so long that no record to be swept expires while others are stored
// without clock.late noticing: a write may delete what is expired, and it would be
// missing in the count.
const litterTTL = 6 * time.Hour

// litter stores n records that are expired and n that are not, mixed, and
// returns the ones that are not by their keys.
func (e *env) litter(n int) map[string]idem.Record {
	e.t.Helper()
	live := make(map[string]idem.Record)
	for i := range n {
		r := newRecord(idem.Status(1 + i%3))
		r.TTL = litterTTL
		e.put(fmt.Sprintf("%04d-expired", i), r)
		r = newRecord(idem.Status(1 + i%3))
		r.TTL = 10_000 * time.Hour
		key := fmt.Sprintf("%04d-live", i)
		live[key] = e.put(key, r)
	}
	e.clock.pass(litterTTL)
	return live
}

// intact reports live records that are not there.
func (e *env) intact(live map[string]idem.Record) {
	e.t.Helper()
	for key, r := range live {
		e.wantStored(key, r)
	}
}

// sweepAll sweeps until there is nothing left and returns how many records
// were deleted. It ends the case if there is no end to it.
func (e *env) sweepAll(limit, most int) (n int) {
	e.t.Helper()
	for range most/max(limit, 1) + 2 {
		deleted := e.sweep(limit)
		if deleted > limit {
			e.errorf("Sweep(%d) deleted %d records", limit, deleted)
		}
		if n += deleted; deleted == 0 {
			return n
		}
	}
	e.fatalf("Sweep(%d) deleted %d records and finds more; %d were expired", limit, n, most)
	return n
}

func testSweepLive(e *env) {
	live := e.litter(50)
	// A lapsed claim is not an expired record.
	lapsed := newRecord(idem.InProgress)
	lapsed.Lease, lapsed.TTL = 0, 10_000*time.Hour
	live["lapsed"] = e.put("lapsed", lapsed)
	e.sweepAll(1000, 50)
	e.intact(live)
	if n := e.sweep(1000); n != 0 {
		e.errorf("a second Sweep deleted %d records", n)
	}
	e.intact(live)
}

// testSweepReplaced has records that were about to expire and were written
// again: what an index of expiry times may still know as expired.
func testSweepReplaced(e *env) {
	live := make(map[string]idem.Record)
	for i := range 20 {
		key := fmt.Sprintf("k%d", i)
		r := newRecord(idem.InProgress)
		r.TTL = 10 * time.Hour
		stored := e.clock.during(func() { e.put(key, r) })
		next := newRecord(idem.Status(1 + i%3))
		next.TTL = 10_000 * time.Hour
		var got idem.Record
		replaced := e.clock.during(func() { got = e.swap(e.b, key, r.Token, next) })
		if _, most := e.clock.between(stored, replaced); got.Token == "" && most >= r.TTL {
			e.inconclusive()
		}
		e.want("Swap", got, next)
		live[key] = next
	}
	e.clock.pass(10 * time.Hour)
	if n := e.sweep(1000); n != 0 {
		e.errorf("Sweep deleted %d records that were written again", n)
	}
	e.intact(live)
	// The reverse: a long TTL that was replaced by a short one.
	for key, r := range live {
		next := newRecord(idem.Released)
		next.TTL = 2 * time.Hour
		e.want("Swap", e.swap(e.b, key, r.Token, next), next)
	}
	e.clock.pass(2 * time.Hour)
	if n := e.sweepAll(1000, len(live)); n != len(live) && n != 0 {
		e.errorf("Sweep deleted %d records, want %d", n, len(live))
	}
}

// testSweepRace takes the keys of expired records again while they are swept:
// a Sweep that decides first and deletes later deletes the new owners.
func testSweepRace(e *env) {
	const keys = 40
	peer := e.peer()
	for round := range rounds(12) {
		for i := range keys {
			r := newRecord(idem.InProgress)
			r.TTL = 2 * time.Hour
			e.swap(e.b, fmt.Sprintf("%d-%d", round, i), "", r)
		}
		e.clock.pass(2 * time.Hour)
		owners := make([]idem.Record, keys)
		stop := make(chan struct{})
		var sweeping sync.WaitGroup
		for _, b := range []idem.Backend{e.b, peer} {
			sweeping.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if _, err := b.Sweep(e.ctx, 7); err != nil {
						e.errorf("Sweep failed: %v", err)
						return
					}
				}
			})
		}
		together(8, func(part int) {
			for i := part; i < keys; i += 8 {
				owners[i] = newRecord(idem.InProgress)
				owners[i].TTL = 10_000 * time.Hour
				e.want("Swap of an expired record's key", e.swap(e.b, fmt.Sprintf("%d-%d", round, i), "", owners[i]), owners[i])
			}
		})
		close(stop)
		sweeping.Wait()
		for i, owner := range owners {
			e.want("Get of a record that was stored beside a Sweep", e.get(e.b, fmt.Sprintf("%d-%d", round, i)), owner)
		}
	}
}

func testSweepLimit(e *env) {
	const n = 30
	live := e.litter(n)
	for _, limit := range []int{1, 2, 7} {
		if deleted := e.sweep(limit); deleted != limit && deleted != 0 {
			e.errorf("Sweep(%d) with %d expired records deleted %d", limit, n, deleted)
		}
	}
	if deleted := e.sweepAll(5, n); deleted != n-10 && deleted != 0 {
		e.errorf("Sweep deleted %d records in all, want %d", deleted+10, n)
	}
	e.intact(live)
}

func testSweepNone(e *env) {
	const n = 10
	live := e.litter(n)
	for _, limit := range []int{0, -1, -1 << 31} {
		if deleted := e.sweep(limit); deleted != 0 {
			e.errorf("Sweep(%d) deleted %d records", limit, deleted)
		}
	}
	if deleted := e.sweep(1000); deleted != n && deleted != 0 {
		e.errorf("after Sweeps with a limit below 1, Sweep deleted %d of %d expired records", deleted, n)
	}
	e.intact(live)
}

// testSweepCount allows a 0 from storage that expires records by itself, and
// no other wrong number.
func testSweepCount(e *env) {
	const n = 12
	e.litter(n)
	switch deleted := e.sweep(1000); deleted {
	case n:
		if again := e.sweep(1000); again != 0 {
			e.errorf("Sweep deleted %d records, and %d more although none was expired since", n, again)
		}
	case 0:
		e.logf("Sweep deleted nothing: the storage expires records by itself, or Sweep does nothing")
		if again := e.sweep(1000); again != 0 {
			e.errorf("Sweep deleted nothing at first, and %d records then", again)
		}
	default:
		e.errorf("Sweep deleted %d records, want %d, or 0 from storage that expires records by itself", deleted, n)
	}
	for i := range n {
		e.wantStored(fmt.Sprintf("%04d-expired", i), idem.Record{})
	}
}

func testSweepAll(e *env) {
	n := rounds(400)
	live := e.litter(n)
	if deleted := e.sweep(n + 1); deleted != n && deleted != 0 {
		e.errorf("one Sweep with a limit of %d deleted %d of %d expired records", n+1, deleted, n)
	}
	if again := e.sweep(n + 1); again != 0 {
		e.errorf("%d expired records were left by a Sweep with a limit above their number", again)
	}
	e.intact(live)

	// Records that were stored and expired since, beside the gaps.
	live = nil
	for i := range 10 {
		r := newRecord(idem.Completed)
		r.TTL = litterTTL
		e.put(fmt.Sprintf("%04d-again", i), r)
	}
	e.clock.pass(litterTTL)
	if deleted := e.sweepAll(3, 10); deleted != 10 && deleted != 0 {
		e.errorf("Sweep(3), repeated, deleted %d of 10 expired records", deleted)
	}
	e.intact(live)
}

func testSweepEmpty(e *env) {
	for _, limit := range []int{1, 1000, 0} {
		if n := e.sweep(limit); n != 0 {
			e.errorf("Sweep(%d) of an empty storage deleted %d records", limit, n)
		}
	}
	// Empty again after everything was swept.
	e.expired("k", idem.Completed)
	e.sweep(10)
	if n := e.sweep(10); n != 0 {
		e.errorf("Sweep of a storage that is empty again deleted %d records", n)
	}
}
