package conformancetest

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/idem-go/idem"
)

const (
	ruleListAll     = "Listing to the end returns every record that was there the whole time at least once."
	ruleListLimit   = "List returns at most q.Limit entries; it may return fewer, even none, with more to come."
	ruleListEnd     = "The cursor is empty at the end of the listing and only there."
	ruleListFilter  = "List returns only entries that match the query, by prefix in bytes, by status and by lapsed lease."
	ruleListExpired = "List does not return expired records."
	ruleListCursor  = "A cursor that List did not return is an error, never a fresh start."
)

var listCases = []testCase{
	{name: "All", rule: ruleListAll, needs: needLister, run: testListAll},
	{name: "AllDuringChanges", rule: ruleListAll, needs: needLister, run: testListDuringChanges},
	{name: "Records", rule: ruleBytes, needs: needLister, run: testListRecords},
	{name: "Age", rule: ruleAge, needs: needLister, timed: true, run: testListAge},
	{name: "Limit", rule: ruleListLimit, needs: needLister, run: testListLimit},
	{name: "End", rule: ruleListEnd, needs: needLister, run: testListEnd},
	{name: "Prefix", rule: ruleListFilter, needs: needLister, run: testListPrefix},
	{name: "Status", rule: ruleListFilter, needs: needLister, run: testListStatus},
	{name: "Lapsed", rule: ruleListFilter, needs: needLister, timed: true, run: testListLapsed},
	{name: "Expired", rule: ruleListExpired, needs: needLister, timed: true, run: testListExpired},
	{name: "Cursor", rule: ruleListCursor, needs: needLister, run: testListCursor},
}

// page returns one page of a listing.
func (e *env) page(l idem.Lister, q idem.Query) ([]idem.Entry, string) {
	e.t.Helper()
	entries, next, err := l.List(e.ctx, q)
	if err != nil {
		e.fatalf("List(%+v) failed: %v", q, err)
	}
	if q.Limit > 0 && len(entries) > q.Limit {
		e.errorf("List with a limit of %d returned %d entries", q.Limit, len(entries))
	}
	for _, entry := range entries {
		if !q.Matches(entry.Key, entry.Record) {
			e.errorf("List(%+v) returned %q: %v, which does not match", q, short(entry.Key), show(entry.Record))
		}
		if entry.Record.Token == "" || entry.Record.Expired() {
			e.errorf("List returned %q: %v, which is no record", short(entry.Key), show(entry.Record))
		}
	}
	return entries, next
}

// list lists to the end.
func (e *env) list(l idem.Lister, q idem.Query) (all []idem.Entry) {
	e.t.Helper()
	for range 10_000 {
		entries, next := e.page(l, q)
		all = append(all, entries...)
		if next == "" {
			return all
		}
		q.Cursor = next
	}
	e.fatalf("List(%+v) does not come to an end", q)
	return nil
}

// wantList reports if a listing to the end does not return exactly the wanted
// records, each at least once.
func (e *env) wantList(q idem.Query, want map[string]idem.Record) {
	e.t.Helper()
	listed := make(map[string]idem.Record)
	for _, entry := range e.list(e.b.(idem.Lister), q) {
		listed[entry.Key] = entry.Record
		if _, ok := want[entry.Key]; !ok {
			e.errorf("List(%+v) returned %q: %v, which is not asked for", q, short(entry.Key), show(entry.Record))
		}
	}
	for key, r := range want {
		e.want(fmt.Sprintf("List(%+v): the entry of %q", q, short(key)), listed[key], r)
	}
}

// fill stores n records of all statuses.
func (e *env) fill(prefix string, n int) map[string]idem.Record {
	e.t.Helper()
	all := make(map[string]idem.Record)
	for i := range n {
		key := fmt.Sprintf("%s%04d", prefix, i)
		all[key] = e.put(key, newRecord(idem.Status(1+i%3)))
	}
	return all
}

func testListAll(e *env) {
	e.wantList(idem.Query{}, nil)
	all := e.fill("k", 100)
	for _, limit := range []int{0, -1, 1, 3, 99, 100, 101, 100_000} {
		e.wantList(idem.Query{Limit: limit}, all)
	}
}

// testListDuringChanges lists while other records come, change and go.
func testListDuringChanges(e *env) {
	l := e.b.(idem.Lister)
	stable := e.fill("stable-", 150)
	peer := e.peer()
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			for _, key := range []string{fmt.Sprintf("a-%d", i), fmt.Sprintf("stable-%04d-%d", i%150, i), fmt.Sprintf("z-%d", i)} {
				r := newRecord(idem.InProgress)
				if i%2 == 0 {
					r.TTL = time.Millisecond
				}
				next := newRecord(idem.Completed)
				if _, err := peer.Swap(e.ctx, key, "", r); err != nil {
					e.errorf("Swap beside a List failed: %v", err)
					return
				}
				if _, err := peer.Swap(e.ctx, key, r.Token, next); err != nil {
					e.errorf("Swap beside a List failed: %v", err)
					return
				}
			}
			if _, err := peer.Sweep(e.ctx, 10); err != nil {
				e.errorf("Sweep beside a List failed: %v", err)
				return
			}
			if i >= 500 { // enough to be listed
				return
			}
		}
	})
	defer others.Wait()
	defer close(stop)
	for range rounds(8) {
		listed := make(map[string]idem.Record)
		for _, entry := range e.list(l, idem.Query{Limit: 7}) {
			listed[entry.Key] = entry.Record
		}
		for key, r := range stable {
			e.want(fmt.Sprintf("List beside changes: the entry of %q", key), listed[key], r)
		}
	}
}

func testListRecords(e *env) {
	want := make(map[string]idem.Record)
	for name, r := range remarkable() {
		want[name] = e.put(name, r)
	}
	e.wantList(idem.Query{}, want)
	e.wantList(idem.Query{Limit: 2}, want)
}

func testListAge(e *env) {
	r := newRecord(idem.InProgress)
	stored := e.clock.during(func() { e.put("k", r) })
	e.clock.pass(5 * time.Hour)
	var entries []idem.Entry
	read := e.clock.during(func() { entries = e.list(e.b.(idem.Lister), idem.Query{}) })
	if len(entries) == 0 {
		entries = []idem.Entry{{}}
	}
	e.checkAge("List", entries[0].Record, stored, read, r)
}

func testListLimit(e *env) {
	all := e.fill("k", 30)
	for _, limit := range []int{1, 2, 7, 29, 30, 31} {
		e.wantList(idem.Query{Limit: limit}, all) // page looks at the limit
		e.wantList(idem.Query{Limit: limit, Prefix: "k000"}, only(all, func(key string, _ idem.Record) bool { return strings.HasPrefix(key, "k000") }))
	}
}

// only returns the records for which keep is true.
func only(all map[string]idem.Record, keep func(string, idem.Record) bool) map[string]idem.Record {
	some := make(map[string]idem.Record)
	for key, r := range all {
		if keep(key, r) {
			some[key] = r
		}
	}
	return some
}

// testListEnd asks for pages of which most have nothing that matches, and then
// for what begins at a cursor again.
func testListEnd(e *env) {
	l := e.b.(idem.Lister)
	all := e.fill("k", 60)
	last := e.put("zzz", newRecord(idem.Completed))
	e.wantList(idem.Query{Prefix: "zzz", Limit: 1}, map[string]idem.Record{"zzz": last})
	all["zzz"] = last

	// The same cursor may be used twice, and leads to the same rest.
	seen := make(map[string]bool)
	entries, next := e.page(l, idem.Query{Limit: 20})
	for _, entry := range entries {
		seen[entry.Key] = true
	}
	if next == "" && len(seen) < len(all) {
		e.fatalf("the cursor is empty after %d of %d records", len(seen), len(all))
	}
	for range 2 {
		rest := make(map[string]bool)
		if next != "" {
			for _, entry := range e.list(l, idem.Query{Cursor: next, Limit: 20}) {
				rest[entry.Key] = true
			}
		}
		for key := range all {
			if !seen[key] && !rest[key] {
				e.errorf("the record %q is neither on the first page nor behind its cursor", key)
			}
		}
	}
	// A listing that finds nothing ends as well.
	e.wantList(idem.Query{Prefix: "no such prefix", Limit: 3}, nil)
	e.wantList(idem.Query{Prefix: "zzzz"}, nil)
}

func testListPrefix(e *env) {
	all := make(map[string]idem.Record)
	for _, key := range append(bounded(), hostileKeys...) {
		all[key] = e.put(key, newRecord(idem.InProgress))
	}
	for _, key := range []string{"tenant\x1fa", "tenant\x1fb", "tenant", "tenant2\x1fa", "Tenant\x1fa", "tenant\x1ea", "tenant\x20a"} {
		all[key] = e.put(key, newRecord(idem.Completed))
	}
	prefixes := append([]string{
		"", "k", "K", "tenant\x1f", "tenant", "é", "e", "\xc3", "\xf0\x9f", "k[", "kk", strings.Repeat("x", 200), strings.Repeat("x", idem.MaxStoredKey),
	}, hostileKeys...)
	for _, prefix := range prefixes {
		e.wantList(idem.Query{Prefix: prefix, Limit: 1000}, only(all, func(key string, _ idem.Record) bool { return strings.HasPrefix(key, prefix) }))
	}
	e.wantList(idem.Query{Prefix: "k", Limit: 2}, only(all, func(key string, _ idem.Record) bool { return strings.HasPrefix(key, "k") }))
}

func testListStatus(e *env) {
	all := e.fill("k", 30)
	for _, s := range []idem.Status{0, idem.InProgress, idem.Completed, idem.Released} {
		for _, limit := range []int{0, 4} {
			e.wantList(idem.Query{Status: s, Limit: limit}, only(all, func(_ string, r idem.Record) bool { return s == 0 || r.Status == s }))
			e.wantList(idem.Query{Status: s, Limit: limit, Prefix: "k001"}, only(all, func(key string, r idem.Record) bool {
				return (s == 0 || r.Status == s) && strings.HasPrefix(key, "k001")
			}))
		}
	}
	// A record that has changed its status is listed under the new one only.
	now := all["k0000"]
	for _, s := range []idem.Status{idem.Completed, idem.Released, idem.InProgress} {
		next := newRecord(s)
		e.want("Swap", e.swap(e.b, "k0000", now.Token, next), next)
		all["k0000"], now = next, next
		for _, listed := range []idem.Status{idem.InProgress, idem.Completed, idem.Released} {
			e.wantList(idem.Query{Status: listed}, only(all, func(_ string, r idem.Record) bool { return r.Status == listed }))
		}
	}
}

func testListLapsed(e *env) {
	all := make(map[string]idem.Record)
	var stored moment
	for i := range 12 {
		r := newRecord(idem.Status(1 + i%3))
		r.Lease, r.TTL = 2*time.Hour, 10_000*time.Hour
		if i >= 6 {
			r.Lease = 2000 * time.Hour
		}
		key := fmt.Sprintf("k%d", i)
		stored = e.clock.during(func() { all[key] = e.put(key, r) })
	}
	abandoned := newRecord(idem.InProgress)
	abandoned.Lease, abandoned.TTL = 0, 10_000*time.Hour
	all["abandoned"] = e.put("abandoned", abandoned)
	lapsed := func(after time.Duration) map[string]idem.Record {
		return only(all, func(_ string, r idem.Record) bool { return r.Status == idem.InProgress && r.Lease <= after })
	}
	// Before the short leases are over, if that could be seen in time.
	entries := e.list(e.b.(idem.Lister), idem.Query{Lapsed: true})
	if e.clock.now()-stored.from < time.Hour && len(entries) != 1 {
		e.errorf("List of lapsed records returned %d, want the abandoned one", len(entries))
	}
	e.clock.pass(4 * time.Hour)
	for _, limit := range []int{0, 1, 100} {
		e.wantList(idem.Query{Lapsed: true, Limit: limit}, lapsed(4*time.Hour))
		e.wantList(idem.Query{Lapsed: true, Status: idem.InProgress, Limit: limit}, lapsed(4*time.Hour))
		e.wantList(idem.Query{Lapsed: true, Status: idem.Completed, Limit: limit}, nil)
		e.wantList(idem.Query{Lapsed: true, Prefix: "ab", Limit: limit}, map[string]idem.Record{"abandoned": abandoned})
	}
}

func testListExpired(e *env) {
	live := e.litter(20)
	for _, limit := range []int{0, 3} {
		e.wantList(idem.Query{Limit: limit}, live)
		e.wantList(idem.Query{Limit: limit, Prefix: "0003"}, only(live, func(key string, _ idem.Record) bool { return strings.HasPrefix(key, "0003") }))
		e.wantList(idem.Query{Limit: limit, Status: idem.InProgress}, only(live, func(_ string, r idem.Record) bool { return r.Status == idem.InProgress }))
	}
	e.sweep(1000)
	e.wantList(idem.Query{}, live)
}

func testListCursor(e *env) {
	l := e.b.(idem.Lister)
	e.fill("k", 10)
	for _, cursor := range []string{"no such cursor", "\x00", "%", "' or 1=1 --", "\xff\xfe", "{}", strings.Repeat("x", 1000)} {
		entries, next, err := l.List(e.ctx, idem.Query{Cursor: cursor, Limit: 5})
		if err == nil {
			e.errorf("List from the cursor %q, which it never returned, gave %d entries and the cursor %q, want an error", short(cursor), len(entries), next)
		}
	}
	// Nothing is wrong afterwards.
	if n := len(e.list(l, idem.Query{})); n < 10 {
		e.errorf("List returned %d records, want 10", n)
	}
}
