package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/idem-go/idem"
)

// statsScopes is how many scopes a table shows.
const statsScopes = 20

type statsCommand struct {
	where
	JSON bool `name:"json" help:"Print one JSON object: idem stats --json | jq .unresolved.records"`
}

const statsUsage = "idem stats [FLAGS]"

const statsHelp = `Reads all records and counts them, by status and by scope:
  running      in progress, with lease left
  unresolved   in progress, and the lease is over: the outcome is unknown
  completed    with a result to replay
  released     given back; such a key is free
BYTES are those of keys, bodies, metadata and checkpoints; what the storage
itself takes is told apart. Ages are those since the last write. Of the scopes
the 20 largest are shown, of more than 1000 the rest is counted together;
--json has up to 1000. Not on a terminal, lines of a name, a tab and a value
are printed.

While others write, a record that changes may be counted twice or in its old
state; in Redis any record may come twice.

` + readingHelp

// Run counts what is stored.
func (c *statsCommand) Run(s *session) error {
	t, err := c.at("", s.getenv)
	if err != nil {
		return badUsage("stats", "%v", err)
	}
	if err := t.checkScope(); err != nil {
		return t.refused("stats", err)
	}
	backend, err := t.open(s.ctx, toRead)
	if err != nil {
		return t.refused("stats", err)
	}
	defer func() { _ = backend.Close() }()
	v, err := look(s, backend, idem.ScopePrefix(c.Scope...))
	if err != nil {
		return t.refused("stats", err)
	}
	room, err := backend.room(s.ctx)
	if err != nil {
		s.say("the size of the storage is unknown: %s", t.trimmed(err))
	}
	if c.JSON {
		return s.wrote(printStatsJSON(s.stdout, t, v, room))
	}
	if width(s.stdout) > 0 {
		return s.wrote(printStats(s, t, v, room))
	}
	return s.wrote(printStatsPiped(s.stdout, t, v, room))
}

// checkScope reports what is wrong with the scope of a target without a key.
func (t target) checkScope() error {
	t.key = "any"
	return t.check(nil)
}

// scopeLabel is the name of a scope in a table; "-" for none.
func scopeLabel(levels []string) string {
	if len(levels) == 0 {
		return "-"
	}
	return scopeName(levels)
}

// printStats prints the report for a terminal.
func printStats(s *session, t target, v *survey, room []fact) error {
	var b strings.Builder
	line := func(name, value string) { fmt.Fprintf(&b, "%-12s%s\n", name, printable(value)) }
	line("store", t.name)
	if len(t.Scope) > 0 {
		line("scope", scopeName(t.Scope))
	}
	for _, f := range room {
		if f.name != "" {
			line(f.name, f.text)
		}
	}
	line("records", counted(v.all.Records, "record", "records")+" in "+counted(int64(len(v.scopes)), "scope", "scopes")+moreThan(v)+", "+size(v.all.bytes()))
	if v.omitted > 0 {
		line("omitted", counted(v.omitted, "result", "results")+" without a body: too large, or erased")
	}
	if u := v.byStatus["unresolved"]; u.Records > 0 {
		line("unresolved", fmt.Sprintf("%s, the oldest for %s", counted(u.Records, "attempt", "attempts"), brief(v.oldest.Record.Age)))
		levels, key := idem.SplitKey(v.oldest.Key)
		oldest := target{where: t.where, location: t.location, key: key}
		oldest.Scope = levels
		line("", "see: "+oldest.commandLine("show"))
	}
	if v.all.Records == 0 {
		_, err := io.WriteString(s.stdout, b.String())
		return err
	}

	rows := [][]string{{"STATUS", "RECORDS", "BYTES", "YOUNGEST", "OLDEST"}}
	for _, name := range statuses {
		if a := v.byStatus[name]; a.Records > 0 {
			rows = append(rows, []string{name, grouped(a.Records), size(a.bytes()), brief(a.youngest), brief(a.oldest)})
		}
	}
	b.WriteString("\n" + grid(rows, width(s.stdout)))

	if len(v.scopes) > 1 || len(v.byScope()[0].levels) > 0 {
		rows = [][]string{{"SCOPE", "RECORDS", "RUNNING", "UNRESOLVED", "COMPLETED", "BYTES", "OLDEST"}}
		row := func(name string, a *tally) {
			rows = append(rows, []string{printable(name), grouped(a.Records), grouped(a.Running), grouped(a.Unresolved), grouped(a.Completed), size(a.bytes()), brief(a.oldest)})
		}
		rest := v.others
		for i, sc := range v.byScope() {
			if i < statsScopes {
				row(scopeLabel(sc.levels), sc.tally)
			} else {
				rest.include(sc.tally)
			}
		}
		if rest.Records > 0 {
			row("(others)", &rest)
		}
		b.WriteString("\n" + grid(rows, width(s.stdout)))
	}
	b.WriteString("\n" + histogram(v.ages, width(s.stdout)))
	_, err := io.WriteString(s.stdout, b.String())
	return err
}

// include adds what another tally has counted.
func (t *tally) include(o *tally) {
	if t.Records == 0 {
		t.youngest = o.youngest
	}
	t.youngest, t.oldest = min(t.youngest, o.youngest), max(t.oldest, o.oldest)
	t.Records += o.Records
	t.Running += o.Running
	t.Unresolved += o.Unresolved
	t.Completed += o.Completed
	t.Released += o.Released
	t.Bodies += o.Bodies
	t.Meta += o.Meta
	t.Checkpoints += o.Checkpoints
	t.Keys += o.Keys
}

func moreThan(v *survey) string {
	if v.others.Records > 0 {
		return " and more"
	}
	return ""
}

// histogram draws the ages as bars.
func histogram(ages []int64, columns int) string {
	most := int64(1)
	for _, n := range ages {
		most = max(most, n)
	}
	room := int64(max(columns-30, 10))
	var b strings.Builder
	b.WriteString("AGE         RECORDS\n")
	for i, n := range ages {
		bar := n * room / most
		if n > 0 && bar == 0 {
			bar = 1
		}
		fmt.Fprintf(&b, "%s\n", strings.TrimRight(fmt.Sprintf("%-10s %8s  %s", ageLabel(i), grouped(n), strings.Repeat("█", int(bar))), " "))
	}
	return b.String()
}

// ageLabel names a bar of the histogram.
func ageLabel(i int) string {
	if i == len(ageSteps) {
		return "over " + stepName(ageSteps[i-1])
	}
	return "under " + stepName(ageSteps[i])
}

func stepName(d time.Duration) string {
	switch {
	case d >= 24*time.Hour:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	case d >= time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dm", d/time.Minute)
}

// printStatsPiped prints the report as lines of a name, a tab and a value, in exact
// numbers: bytes, and seconds.
func printStatsPiped(w io.Writer, t target, v *survey, room []fact) error {
	var b strings.Builder
	line := func(name string, value any) { fmt.Fprintf(&b, "%s\t%v\n", name, value) }
	seconds := func(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 3, 64) }
	line("store", t.name)
	for _, f := range room {
		line(f.key, f.value)
	}
	line("records", v.all.Records)
	line("bytes", v.all.bytes())
	line("omitted", v.omitted)
	for _, name := range statuses {
		a := v.byStatus[name]
		line(name, a.Records)
		line(name+" bytes", a.bytes())
		line(name+" oldest", seconds(a.oldest))
	}
	for _, sc := range v.byScope() {
		line("scope "+scopeLabel(sc.levels), sc.Records)
	}
	if v.others.Records > 0 {
		line("scopes beyond the first "+strconv.Itoa(surveyScopes), v.others.Records)
	}
	for i, n := range v.ages {
		line("age "+ageLabel(i), n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// A statsView is the report as JSON.
type statsView struct {
	Store      string         `json:"store"`
	Kind       string         `json:"kind"` // bolt, postgres or redis
	Scope      []string       `json:"scope"`
	Storage    map[string]any `json:"storage"`
	All        tallyView      `json:"all"`
	Running    tallyView      `json:"running"`
	Unresolved tallyView      `json:"unresolved"`
	Completed  tallyView      `json:"completed"`
	Released   tallyView      `json:"released"`
	Omitted    int64          `json:"omitted"`
	Held       int64          `json:"held"` // unresolved, and kept until somebody decides
	OverADay   int64          `json:"unresolved_over_a_day"`
	Oldest     *oldestView    `json:"oldest_unresolved"`
	Scopes     []scopeView    `json:"scopes"`
	Others     *tallyView     `json:"other_scopes"` // null, unless there are more than 1000
	Ages       []ageView      `json:"ages"`
}

type tallyView struct {
	tally
	Youngest float64 `json:"youngest_seconds"`
	Oldest   float64 `json:"oldest_seconds"`
}

type oldestView struct {
	Key     string   `json:"key"`
	Scope   []string `json:"scope"`
	Attempt int      `json:"attempt"`
	Age     float64  `json:"age_seconds"`
}

type scopeView struct {
	Scope []string `json:"scope"`
	tallyView
}

type ageView struct {
	Below   *float64 `json:"below_seconds"` // null: no end
	Records int64    `json:"records"`
}

func (t *tally) view() tallyView { return tallyView{*t, t.youngest.Seconds(), t.oldest.Seconds()} }

func printStatsJSON(w io.Writer, t target, v *survey, room []fact) error {
	view := statsView{
		Store: t.name, Kind: t.kind(), Scope: append([]string{}, t.Scope...), Storage: map[string]any{},
		All: v.all.view(), Running: v.byStatus["running"].view(), Unresolved: v.byStatus["unresolved"].view(),
		Completed: v.byStatus["completed"].view(), Released: v.byStatus["released"].view(),
		Omitted: v.omitted, Held: v.held, OverADay: v.overday, Scopes: []scopeView{},
	}
	for _, f := range room {
		view.Storage[f.key] = f.value
	}
	if v.oldest.Key != "" {
		levels, key := idem.SplitKey(v.oldest.Key)
		view.Oldest = &oldestView{key, levels, v.oldest.Record.Attempt, v.oldest.Record.Age.Seconds()}
	}
	for _, sc := range v.byScope() {
		view.Scopes = append(view.Scopes, scopeView{append([]string{}, sc.levels...), sc.view()})
	}
	if v.others.Records > 0 {
		others := v.others.view()
		view.Others = &others
	}
	for i, n := range v.ages {
		a := ageView{Records: n}
		if i < len(ageSteps) {
			below := ageSteps[i].Seconds()
			a.Below = &below
		}
		view.Ages = append(view.Ages, a)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(view)
}
