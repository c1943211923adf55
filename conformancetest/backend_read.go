package conformancetest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/idem-go/idem"
)

const (
	ruleGet     = "Get returns the record stored under key, or the zero Record."
	ruleBytes   = "Records come back byte for byte; an empty slice or map is the same as nil."
	ruleShare   = "Slices and maps are not shared with the caller, in either direction."
	ruleHandles = "What one handle has stored every other handle on the storage sees."
	ruleAbsence = "Absence and conflict are never errors."
)

var readCases = []testCase{
	{name: "Absent", rule: ruleAbsence, run: testAbsent},
	{name: "Get", rule: ruleGet, run: testGet},
	{name: "RoundTrip", rule: ruleBytes, run: testRoundTrip},
	{name: "RoundTripRandom", rule: ruleBytes, run: testRoundTripRandom},
	{name: "SharesIn", rule: ruleShare, run: testSharesIn},
	{name: "SharesInOnTheWay", rule: ruleShare, run: testSharesInOnTheWay},
	{name: "SharesOut", rule: ruleShare, run: testSharesOut},
	{name: "Peer", rule: ruleHandles, needs: needPeer, run: testPeer},
}

func testAbsent(e *env) {
	if r, err := e.b.Get(e.ctx, "k"); err != nil {
		e.errorf("Get of an absent key failed: %v", err)
	} else {
		e.want("Get of an absent key", r, idem.Record{})
	}
	if _, err := e.b.Swap(e.ctx, "k", "no.such", newRecord(idem.InProgress)); err != nil {
		e.errorf("Swap with an old token of an absent key failed: %v", err)
	}
	r := e.put("k", newRecord(idem.InProgress))
	if _, err := e.b.Swap(e.ctx, "k", "", newRecord(idem.InProgress)); err != nil {
		e.errorf("Swap that finds a record failed: %v", err)
	}
	if _, err := e.b.Swap(e.ctx, "k", "no.such", newRecord(idem.InProgress)); err != nil {
		e.errorf("Swap that finds another record failed: %v", err)
	}
	e.wantStored("k", r)
}

func testGet(e *env) {
	for range 2 {
		if r := e.get(e.b, "k"); r.Token != "" || r.Status != 0 || r.Age != 0 || r.TTL != 0 {
			e.errorf("Get of an absent key returned %+v, want the zero Record", r)
		}
	}
	r := e.put("k", newRecord(idem.Completed))
	for range 3 {
		e.wantStored("k", r)
	}
	e.wantStored("k2", idem.Record{})
}

// remarkable returns records with the values that storages tend to damage.
func remarkable() map[string]idem.Record {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	// The large body is random, so that no compression hides a limit.
	large := make([]byte, 1<<20)
	for i := range large {
		large[i] = byte(rand.Uint32())
	}
	body := func(b []byte) idem.Record {
		r := newRecord(idem.Completed)
		r.Result = idem.Result{Body: b}
		return r
	}
	meta := func(m map[string]string) idem.Record {
		r := newRecord(idem.Completed)
		r.Result = idem.Result{Meta: m}
		return r
	}
	with := func(s idem.Status, change func(*idem.Record)) idem.Record {
		r := newRecord(s)
		change(&r)
		return r
	}
	rs := map[string]idem.Record{
		"no body":          body(nil),
		"an empty body":    body([]byte{}),
		"a zero byte":      body([]byte{0}),
		"every byte":       body(every),
		"a newline":        body([]byte("\r\n")),
		"a large body":     body(large),
		"no meta":          meta(nil),
		"an empty meta":    meta(map[string]string{}),
		"an empty value":   meta(map[string]string{"k": ""}),
		"an empty name":    meta(map[string]string{"": "v"}),
		"binary meta":      meta(map[string]string{string(every): string(every)}),
		"Latin-1 meta":     meta(map[string]string{"X-Name": "J\xfcrgen"}),
		"NUL in meta":      meta(map[string]string{"a\x00b": "c\x00d"}),
		"names by case":    meta(map[string]string{"name": "1", "Name": "2", "NAME": "3"}),
		"a long value":     meta(map[string]string{"long": strings.Repeat("ä", 10_000)}),
		"a bare record":    bare(idem.Released),
		"a full record":    full(idem.Completed),
		"a checkpoint":     with(idem.InProgress, func(r *idem.Record) { r.Checkpoint = every }),
		"no checkpoint":    with(idem.InProgress, func(r *idem.Record) { r.Checkpoint = []byte{} }),
		"omitted":          with(idem.Completed, func(r *idem.Record) { r.Result.Body, r.Result.Omitted = nil, true }),
		"a lease of 0":     with(idem.InProgress, func(r *idem.Record) { r.Lease = 0 }),
		"a lease of 3 ns":  with(idem.InProgress, func(r *idem.Record) { r.Lease = 3 }),
		"odd durations":    with(idem.InProgress, func(r *idem.Record) { r.Lease, r.TTL = 1_234_567_891, 987_654_321_987_654_321 }),
		"100 years":        with(idem.InProgress, func(r *idem.Record) { r.TTL = 100 * 365 * 24 * time.Hour }),
		"the longest time": with(idem.InProgress, func(r *idem.Record) { r.Lease, r.TTL = math.MaxInt64, math.MaxInt64 }),
		"the largest fence": with(idem.InProgress, func(r *idem.Record) {
			r.Fence = math.MaxInt64 // beyond what a float holds
		}),
		"a fence beyond 2^53": with(idem.InProgress, func(r *idem.Record) { r.Fence = 1<<53 + 1 }),
		"attempt 0":           with(idem.InProgress, func(r *idem.Record) { r.Attempt = 0 }),
		"many attempts":       with(idem.InProgress, func(r *idem.Record) { r.Attempt = math.MaxInt32 }),
		"a negative code":     with(idem.Completed, func(r *idem.Record) { r.Result.Code = -1 }),
		"the largest code":    with(idem.Completed, func(r *idem.Record) { r.Result.Code = math.MaxInt32 }),
		"the smallest code":   with(idem.Completed, func(r *idem.Record) { r.Result.Code = math.MinInt32 }),
		"no fingerprint":      with(idem.Completed, func(r *idem.Record) { r.Fingerprint = idem.Fingerprint{} }),
		"a fingerprint of 1s": with(idem.Completed, func(r *idem.Record) {
			copy(r.Fingerprint[:], bytes.Repeat([]byte{0xff}, len(r.Fingerprint)))
		}),
		"a long token": with(idem.Completed, func(r *idem.Record) { r.Token += strings.Repeat("x", 100-len(r.Token)) }),
	}
	for _, v := range []string{"0", "false", "null", `""`, "[]", "{}", "None", " ", "\"", "\\", "\\x00", "\\N"} {
		rs["the body "+v] = body([]byte(v))
		rs["the meta "+v] = meta(map[string]string{v: v})
	}
	return rs
}

func testRoundTrip(e *env) {
	peer := e.peer()
	for name, r := range remarkable() {
		e.want(name+", as returned by Swap", e.swap(e.b, name, "", r), r)
		e.want(name+", as returned by Get", e.get(e.b, name), r)
		e.want(name+", as returned to a peer", e.get(peer, name), r)
		e.want(name+", as returned by a Swap that it refused", e.swap(peer, name, "", newRecord(idem.InProgress)), r)
	}
	// The same again in the place of another record.
	now := e.put("k", newRecord(idem.InProgress))
	for name, r := range remarkable() {
		e.want(name+", as returned by a Swap that replaces", e.swap(e.b, "k", now.Token, r), r)
		e.want(name+", as returned by Get", e.get(peer, "k"), r)
		now = r
	}
}

func testRoundTripRandom(e *env) {
	rnd := e.random()
	random := func(limit int) []byte {
		b := make([]byte, rnd.IntN(limit))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		return b
	}
	for i := range rounds(200) {
		r := newRecord(idem.Status(1 + rnd.IntN(3)))
		r.Attempt, r.Fence = int(rnd.Int32()), rnd.Int64()
		r.Lease = time.Duration(rnd.Int64N(int64(time.Hour)))
		r.TTL = time.Hour + time.Duration(rnd.Int64())/2
		copy(r.Fingerprint[:], random(33))
		r.Checkpoint = random(300)
		r.Result = idem.Result{Code: int(int32(rnd.Uint32())), Body: random(3000), Omitted: rnd.IntN(2) == 0, Meta: map[string]string{}}
		for range rnd.IntN(5) {
			r.Result.Meta[string(random(20))] = string(random(50))
		}
		key := fmt.Sprintf("random-%d", i)
		e.want("Swap", e.swap(e.b, key, "", r), r)
		e.wantStored(key, r)
	}
}

// spoil changes everything in r that it may share with somebody.
func spoil(r idem.Record) {
	for _, b := range [][]byte{r.Checkpoint, r.Result.Body} {
		for i := range b {
			b[i] ^= 0xff
		}
	}
	for k := range r.Result.Meta {
		r.Result.Meta[k] = "spoilt"
	}
	if r.Result.Meta != nil {
		r.Result.Meta["more"] = "spoilt"
	}
}

func testSharesIn(e *env) {
	want := full(idem.Completed)
	given := copyRecord(want)
	e.swap(e.b, "k", "", given)
	spoil(given)
	e.wantStored("k", want)

	next := full(idem.Completed)
	given = copyRecord(next)
	e.swap(e.b, "k", want.Token, given)
	spoil(given)
	e.wantStored("k", next)

	// What was refused is nobody's either.
	given = full(idem.Completed)
	e.swap(e.b, "k", "", given)
	spoil(given)
	e.wantStored("k", next)
}

// testSharesInOnTheWay has callers whose contexts end while their Swaps are on their
// way. They leave, and use the memory of their records for something else. What is
// stored, at once or late, is what they gave.
func testSharesInOnTheWay(e *env) {
	rnd := e.random()
	const callers = 8
	wants := make([]map[string]idem.Record, callers)
	var all sync.WaitGroup
	for i := range wants {
		wants[i] = make(map[string]idem.Record)
		rnd := rand.New(rand.NewPCG(rnd.Uint64(), 0))
		all.Go(func() {
			for n := range rounds(25) {
				key, want := fmt.Sprintf("k%d-%d", i, n), full(idem.Completed)
				want.Result.Body = bytes.Repeat([]byte(want.Token), 500)
				wants[i][key] = want
				given := copyRecord(want)
				ctx, cancel := context.WithTimeout(e.ctx, time.Duration(rnd.IntN(2000))*time.Microsecond)
				_, _ = e.b.Swap(ctx, key, "", given)
				cancel()
				spoil(given)
				if stored := e.get(e.b, key); stored.Token != "" {
					e.want("Get after a Swap whose caller may have left", stored, want)
				}
			}
		})
	}
	all.Wait()
	took := 0
	for _, wants := range wants {
		for key, want := range wants {
			if stored := e.get(e.b, key); stored.Token != "" {
				e.want("Get long after a Swap whose caller may have left", stored, want)
				took++
			}
		}
	}
	e.logf("%d of %d Swaps took effect", took, callers*rounds(25))
}

func testSharesOut(e *env) {
	want := full(idem.Completed)
	spoil(e.swap(e.b, "k", "", copyRecord(want)))
	e.want("Get after the record that Swap returned was changed", e.get(e.b, "k"), want)
	spoil(e.get(e.b, "k"))
	e.want("Get after the record that Get returned was changed", e.get(e.b, "k"), want)
	spoil(e.swap(e.b, "k", "", newRecord(idem.InProgress)))
	e.want("Get after the record that a refused Swap returned was changed", e.get(e.b, "k"), want)
	spoil(e.swap(e.b, "k", "no.such", copyRecord(want)))
	e.want("Get after the record that a repeated Swap returned was changed", e.get(e.b, "k"), want)

	next := full(idem.Completed)
	spoil(e.swap(e.b, "k", want.Token, copyRecord(next)))
	e.want("Get after the record that a replacing Swap returned was changed", e.get(e.b, "k"), next)

	if l, ok := e.b.(idem.Lister); ok {
		for _, entry := range e.list(l, idem.Query{}) {
			spoil(entry.Record)
		}
		e.want("Get after the record that List returned was changed", e.get(e.b, "k"), next)
	}

	// Two callers must not have one copy between them.
	a, b := e.get(e.b, "k"), e.get(e.b, "k")
	spoil(a)
	e.want("a record after one that was read before it was changed", b, next)
}

// copyRecord is a copy that shares nothing, whatever Record.Clone does.
func copyRecord(r idem.Record) idem.Record {
	r.Checkpoint = bytes.Clone(r.Checkpoint)
	r.Result.Body = bytes.Clone(r.Result.Body)
	r.Result.Meta = maps.Clone(r.Result.Meta)
	return r
}

func testPeer(e *env) {
	peer, third := e.peer(), e.peer()
	// Reading first finds a handle that remembers an absence.
	e.want("Get by a peer of an absent key", e.get(peer, "k"), idem.Record{})
	first := e.put("k", newRecord(idem.InProgress))
	e.want("Get by a peer", e.get(peer, "k"), first)
	e.want("Swap by a peer of a key that has a record", e.swap(peer, "k", "", newRecord(idem.InProgress)), first)

	next := successor(first)
	e.want("Swap by a peer", e.swap(peer, "k", first.Token, next), next)
	e.want("Get of what a peer has stored", e.get(e.b, "k"), next)
	e.want("Swap with a token that a peer has replaced", e.swap(e.b, "k", first.Token, successor(first)), next)
	e.want("Get by a third handle", e.get(third, "k"), next)

	done := newRecord(idem.Completed)
	e.want("Swap by the first handle", e.swap(e.b, "k", next.Token, done), done)
	e.want("Get by a peer that knew the record before", e.get(peer, "k"), done)
	e.want("a repeated Swap by a peer", e.swap(third, "k", next.Token, done), done)
}
