package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/idem-go/idem"
)

// surveyScopes is how many scopes a survey tells apart. What comes after that many
// is counted together, so that a survey of any store has room in memory.
const surveyScopes = 1000

// ageSteps are the ages at which the bars of the histogram end; the last one has no
// end.
var ageSteps = []time.Duration{
	time.Minute, 10 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour, 2 * 24 * time.Hour, 7 * 24 * time.Hour,
}

// A tally counts records.
type tally struct {
	Records    int64 `json:"records"`
	Running    int64 `json:"running"`    // in progress, with lease left
	Unresolved int64 `json:"unresolved"` // in progress, and the lease is over
	Completed  int64 `json:"completed"`
	Released   int64 `json:"released"`

	// What is stored in bytes, without what the storage adds.
	Bodies      int64 `json:"body_bytes"`
	Meta        int64 `json:"meta_bytes"`
	Checkpoints int64 `json:"checkpoint_bytes"`
	Keys        int64 `json:"key_bytes"`

	youngest, oldest time.Duration // age
}

func (t *tally) add(e idem.Entry) {
	r := e.Record
	if t.Records == 0 {
		t.youngest = r.Age
	}
	t.youngest, t.oldest = min(t.youngest, r.Age), max(t.oldest, r.Age)
	t.Records++
	switch {
	case r.Lapsed():
		t.Unresolved++
	case r.Status == idem.InProgress:
		t.Running++
	case r.Status == idem.Completed:
		t.Completed++
	case r.Status == idem.Released:
		t.Released++
	}
	t.Bodies += int64(len(r.Result.Body))
	for name, value := range r.Result.Meta {
		t.Meta += int64(len(name) + len(value))
	}
	t.Checkpoints += int64(len(r.Checkpoint))
	t.Keys += int64(len(e.Key))
}

func (t *tally) bytes() int64 { return t.Bodies + t.Meta + t.Checkpoints + t.Keys }

// A survey is what a look at all records has come to.
type survey struct {
	all      tally
	byStatus map[string]*tally // "running", "unresolved", "completed", "released"
	scopes   map[string]*tally // by their stored prefix
	others   tally             // of the scopes beyond surveyScopes
	ages     []int64           // by ageSteps

	omitted int64      // results whose body is not stored
	held    int64      // attempts that do not expire
	overday int64      // unresolved for longer than a day
	oldest  idem.Entry // the unresolved attempt that was heard of the longest time ago
	odd     oddities
}

// statuses are the names in byStatus, in the order in which they are shown.
var statuses = []string{"running", "unresolved", "completed", "released"}

// oddities are records that no program with this library writes.
type oddities struct {
	tooLong   int64 // completed, and kept for longer than the longest retention
	longLease int64 // running for longer than the longest lease
	anExample string
}

func newSurvey() *survey {
	v := &survey{byStatus: make(map[string]*tally), scopes: make(map[string]*tally), ages: make([]int64, len(ageSteps)+1)}
	for _, name := range statuses {
		v.byStatus[name] = &tally{}
	}
	return v
}

// statusOf returns the name of a record's status, which tells apart claims that run
// from those that nobody knows the outcome of.
func statusOf(r idem.Record) string {
	switch {
	case r.Lapsed():
		return "unresolved"
	case r.Status == idem.InProgress:
		return "running"
	}
	return r.Status.String()
}

func (v *survey) add(e idem.Entry) {
	r := e.Record
	v.all.add(e)
	if t := v.byStatus[statusOf(r)]; t != nil {
		t.add(e)
	}
	levels, _ := idem.SplitKey(e.Key)
	scope := idem.ScopePrefix(levels...)
	t := v.scopes[scope]
	switch {
	case t != nil:
	case len(v.scopes) < surveyScopes:
		t = &tally{}
		v.scopes[strings.Clone(scope)] = t
	default:
		t = &v.others
	}
	t.add(e)
	step, _ := slices.BinarySearchFunc(ageSteps, r.Age, func(end, age time.Duration) int {
		if end <= age {
			return -1
		}
		return 1
	})
	v.ages[step]++
	v.judge(e)
}

// judge notes what is remarkable about a record.
func (v *survey) judge(e idem.Entry) {
	r := e.Record
	odd := int64(0)
	switch {
	case r.Lapsed():
		if r.TTL > longTime {
			v.held++
		}
		if r.Age > 24*time.Hour {
			v.overday++
		}
		if v.oldest.Key == "" || r.Age > v.oldest.Record.Age {
			v.oldest = idem.Entry{Key: strings.Clone(e.Key), Record: idem.Record{Attempt: r.Attempt, Age: r.Age, TTL: r.TTL, Status: r.Status, Lease: r.Lease}}
		}
	case r.Status == idem.InProgress && r.Lease > idem.MaxRetention:
		v.odd.longLease++
		odd++
	case r.Status == idem.Completed:
		if r.Result.Omitted {
			v.omitted++
		}
		if r.TTL > idem.MaxRetention {
			v.odd.tooLong++
			odd++
		}
	}
	if odd > 0 && v.odd.anExample == "" {
		v.odd.anExample = strings.Clone(e.Key)
	}
}

// A scopeTally is a scope with what is in it.
type scopeTally struct {
	levels []string
	*tally
}

// byScope returns the scopes, the largest first.
func (v *survey) byScope() []scopeTally {
	all := make([]scopeTally, 0, len(v.scopes))
	for prefix, t := range v.scopes {
		levels, _ := idem.SplitKey(prefix)
		all = append(all, scopeTally{levels, t})
	}
	slices.SortFunc(all, func(a, b scopeTally) int {
		if c := cmp.Compare(b.Records, a.Records); c != 0 {
			return c
		}
		return slices.Compare(a.levels, b.levels)
	})
	return all
}

// eachEntry calls yield with every record that the query selects, page by page,
// until that returns an error.
func eachEntry(ctx context.Context, b idem.Lister, q idem.Query, yield func(idem.Entry) error) error {
	if q.Limit == 0 {
		q.Limit = listPage
	}
	for {
		entries, next, err := b.List(ctx, q)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := yield(e); err != nil {
				return err
			}
		}
		if next == "" {
			return nil
		}
		q.Cursor = next
	}
}

// look makes a survey of the records with a prefix.
func look(s *session, b idem.Lister, prefix string) (*survey, error) {
	bar := s.progress("reading records")
	defer bar.end()
	v := newSurvey()
	n := 0
	err := eachEntry(s.ctx, b, idem.Query{Prefix: prefix}, func(e idem.Entry) error {
		v.add(e)
		if n++; n%listPage == 0 {
			bar.add(listPage)
		}
		return nil
	})
	return v, err
}
