package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

// A survey of any number of scopes has room in memory, and loses nothing.
func TestSurveyOfManyScopes(t *testing.T) {
	v := newSurvey()
	const n = 3 * surveyScopes
	for i := range n {
		scope := fmt.Sprintf("tenant-%d", i)
		if i%3 == 0 {
			scope = "large"
		}
		v.add(idem.Entry{Key: idem.ScopePrefix(scope) + fmt.Sprint("k", i), Record: idem.Record{
			Status: idem.Completed, TTL: 24 * time.Hour, Age: time.Duration(i) * time.Second, Result: idem.Result{Body: []byte("0123456789")},
		}})
	}
	if len(v.scopes) != surveyScopes || v.all.Records != n || v.all.Bodies != 10*n || v.all.oldest != (n-1)*time.Second || v.all.youngest != 0 {
		t.Errorf("%d scopes, %+v", len(v.scopes), v.all)
	}
	var sum, aged int64
	for _, sc := range v.byScope() {
		sum += sc.Records
	}
	for _, a := range v.ages {
		aged += a
	}
	if sum+v.others.Records != n || aged != n {
		t.Errorf("%d records in scopes, %d in others and %d in ages, want %d", sum, v.others.Records, aged, n)
	}
	if first := v.byScope()[0]; scopeName(first.levels) != "large" || first.Records != n/3 {
		t.Errorf("the largest scope is %v with %d", first.levels, first.Records)
	}
}

func TestSurveyJudges(t *testing.T) {
	const day = 24 * time.Hour
	v := newSurvey()
	for key, r := range map[string]idem.Record{
		"running":   {Status: idem.InProgress, Lease: time.Hour, TTL: 25 * time.Hour, Age: time.Minute},
		"lapsed":    {Status: idem.InProgress, Lease: time.Hour, TTL: 25 * time.Hour, Age: 2 * time.Hour, Attempt: 2},
		"held":      {Status: idem.InProgress, Lease: 0, TTL: 100 * 365 * day, Age: 40 * day, Attempt: 3},
		"completed": {Status: idem.Completed, TTL: 7 * day, Age: 6 * day},
		"omitted":   {Status: idem.Completed, TTL: 7 * day, Age: day, Result: idem.Result{Omitted: true}},
		"too long":  {Status: idem.Completed, TTL: 8 * day, Age: 7 * day},
		"odd lease": {Status: idem.InProgress, Lease: 8 * day, TTL: 9 * day},
		"released":  {Status: idem.Released, TTL: time.Hour, Age: 59 * time.Minute},
	} {
		v.add(idem.Entry{Key: key, Record: r})
	}
	got := fmt.Sprintln(v.byStatus["running"].Records, v.byStatus["unresolved"].Records, v.byStatus["completed"].Records, v.byStatus["released"].Records,
		v.omitted, v.held, v.overday, v.odd.tooLong, v.odd.longLease, v.oldest.Key, v.oldest.Record.Attempt)
	if got != "2 2 3 1 1 1 1 1 1 held 3\n" {
		t.Errorf("the survey is %s", got)
	}
	if got := fmt.Sprint(v.ages); got != "[1 1 1 1 0 1 1 2]" {
		t.Errorf("the ages are %s", got)
	}
}

func TestNumbersToBeRead(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", 100000: "100,000", -1234: "-1,234"} {
		if got := grouped(n); got != want {
			t.Errorf("grouped(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestGridFits(t *testing.T) {
	rows := [][]string{{"SCOPE", "RECORDS", "BYTES"}, {strings.Repeat("ä", 100), "1,234", "9 B"}, {"b", "5", "123 MiB"}}
	for line := range strings.Lines(grid(rows, 40)) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 40 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
}

func TestWrap(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "",
		"one":                    "one",
		"one two three":          "one two|three",
		"longerthanten is whole": "longerthanten|is whole",
	} {
		if got := strings.Join(wrap(text, 10), "|"); got != want {
			t.Errorf("wrap(%q) = %q, want %q", text, got, want)
		}
	}
}
