package postgres_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
	"github.com/idem-go/idem/internal/testpg"
)

// A call with a small limit looks at few records, whether they match or not, and a
// listing finds them all the same.
func TestListInSmallPages(t *testing.T) {
	url, schema := testpg.Schema(t)
	b := migrated(t, open(t, url, 2), &postgres.Options{Schema: schema})
	const n, limit = 120, 5
	var all, completed []string
	for i := range n {
		r := idem.Record{Token: "t.t", Status: idem.Released, Attempt: 1, TTL: time.Hour}
		key := fmt.Sprintf("k%03d", i)
		if i%40 == 39 {
			r.Status = idem.Completed
			completed = append(completed, key)
		}
		all = append(all, key)
		if _, err := b.Swap(t.Context(), key, "", r); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		status idem.Status
		want   []string
		calls  int // at most
	}{
		{0, all, n/limit + 1},
		{idem.Completed, completed, n/(4*limit) + 1},
		{idem.InProgress, nil, n/(4*limit) + 1},
	} {
		var got []string
		q := idem.Query{Status: tc.status, Limit: limit}
		calls := 0
		for {
			calls++
			entries, next, err := b.List(t.Context(), q)
			if err != nil || len(entries) > limit {
				t.Fatalf("List(%+v) = %d entries, %v", q, len(entries), err)
			}
			for _, e := range entries {
				got = append(got, e.Key)
			}
			if q.Cursor = next; next == "" {
				break
			}
		}
		if !slices.Equal(got, tc.want) || calls > tc.calls || calls < tc.calls-1 {
			t.Errorf("status %v: %d calls found %q, want %d calls and %q", tc.status, calls, got, tc.calls, tc.want)
		}
	}
}

// The plan that the server chooses for a page decides the order of its rows, and
// not which records are listed.
func TestListWhateverThePlan(t *testing.T) {
	for _, plan := range [][]string{
		{"enable_nestloop", "off", "enable_mergejoin", "off"},
		{"enable_nestloop", "off", "enable_hashjoin", "off"},
		{"enable_hashjoin", "off", "enable_mergejoin", "off"},
	} {
		f := newFixture(t, 4, plan...)
		const records = 300
		for i := range records {
			r := idem.Record{Token: fmt.Sprint("t", i), Status: idem.InProgress, Attempt: 1, Lease: time.Hour, TTL: 2 * time.Hour}
			if _, err := f.Swap(t.Context(), fmt.Sprint("k", i), "", r); err != nil {
				t.Fatal(err)
			}
		}
		for _, q := range []idem.Query{{Limit: 7}, {Limit: 64}, {Limit: 64, Status: idem.InProgress}} {
			listed := make(map[string]int)
			for page := 0; ; page++ {
				entries, next, err := f.List(t.Context(), q)
				if err != nil || page > records {
					t.Fatalf("%v: page %d: %v", plan, page, err)
				}
				for _, e := range entries {
					listed[e.Key]++
				}
				if q.Cursor = next; next == "" {
					break
				}
			}
			if len(listed) != records {
				t.Errorf("%v: %+v listed %d of %d records", plan, q, len(listed), records)
			}
			for key, times := range listed {
				if times != 1 {
					t.Errorf("%v: %+v listed %q %d times", plan, q, key, times)
				}
			}
		}
	}
}
