package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/idem-go/idem"
)

type doctorCommand struct {
	place
	JSON bool `name:"json" help:"Print one JSON object: idem doctor --json | jq -r '.checks[] | select(.level == \"FAIL\") | .fact'"`
}

const doctorUsage = "idem doctor [FLAGS]"

const doctorHelp = `Looks at the store and all its records, changes nothing, and says what is wrong
and what to do, one line for each check: its level, its name, what is true, and
the remedy, with tabs between them where it is not a terminal.
  ok     as it should be
  warn   works, but somebody should know
  FAIL   records can be lost, cannot be written, or operations can run twice
  skip   could not be looked at; the line says why

  idem doctor --store postgres://localhost/shop

Exit codes: 0 if nothing FAILs, 2 if something does, also if the store cannot
be opened; 64 for bad flags, 74 if the output cannot be written.
`

// A level says how bad a finding is.
type level int

const (
	skip level = iota // not seen
	ok
	warn
	bad
)

func (l level) String() string { return [...]string{"skip", "ok", "warn", "FAIL"}[l] }

// MarshalText is for JSON.
func (l level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// A finding is what a check has found.
type finding struct {
	Check  string `json:"check"`
	Level  level  `json:"level"`
	Fact   string `json:"fact"`
	Remedy string `json:"remedy,omitempty"`
}

// A diagnosis collects findings.
type diagnosis struct {
	session  *session
	target   target
	findings []finding
}

func (d *diagnosis) add(l level, check, remedy, fact string, args ...any) {
	d.findings = append(d.findings, finding{check, l, fmt.Sprintf(fact, args...), remedy})
}

// worst returns the level of the worst finding.
func (d *diagnosis) worst() level {
	w := ok
	for _, f := range d.findings {
		w = max(w, f.Level)
	}
	return w
}

// Run examines the store.
func (c *doctorCommand) Run(s *session) error {
	t, err := c.whole(s.getenv)
	if err != nil {
		return badUsage("doctor", "%v", err)
	}
	d := &diagnosis{session: s, target: t}
	switch t.kind() {
	case "bolt":
		d.bolt()
	case "postgres":
		d.postgres()
	case "redis":
		d.redis()
	}
	switch {
	case c.JSON:
		err = d.printJSON(s.stdout)
	case width(s.stdout) > 0:
		err = d.print(s.stdout)
	default:
		err = d.printPiped(s.stdout)
	}
	if err != nil {
		return s.wrote(err)
	}
	if d.worst() == bad {
		return passOn(exitFindings)
	}
	return nil
}

// unopened notes that the store could not be opened.
func (d *diagnosis) unopened(check string, err error) {
	f, _ := errors.AsType[*failure](d.target.refused("doctor", err))
	fact := strings.TrimPrefix(f.fact, "store "+d.target.name+": ")
	d.add(bad, check, f.hint, "%s", fact)
}

// records examines what is stored, whatever the kind of store.
func (d *diagnosis) records(b idem.Lister) {
	v, err := look(d.session, b, "")
	if err != nil {
		d.unopened("records", err)
		return
	}
	d.add(ok, "records", "", "%s can be read: %s completed, %s running", counted(v.all.Records, "record", "records"), grouped(v.all.Completed), grouped(v.all.Running))
	list := d.target.storeLine("list", "--lapsed")
	u := v.byStatus["unresolved"]
	switch {
	case u.Records == 0:
		d.add(ok, "unresolved", "", "no attempt has ended without a known outcome")
	case v.overday > 0:
		d.add(warn, "unresolved", "find out what they did, and resolve or forget them: "+d.target.storeLine("list", "--lapsed", "--older-than", "24h"),
			"%s without a known outcome for more than a day, the oldest for %s; %s in all, %s of them held until somebody decides",
			counted(v.overday, "attempt is", "attempts are"), brief(v.oldest.Record.Age), grouped(u.Records), grouped(v.held))
	default:
		d.add(ok, "unresolved", "", "%s ended without a known outcome within the last day; see: %s", counted(u.Records, "attempt has", "attempts have"), list)
	}
	if v.odd.tooLong+v.odd.longLease > 0 {
		levels, key := idem.SplitKey(v.odd.anExample)
		example := d.target
		example.Scope, example.key = levels, key
		d.add(warn, "retention", "find out which program writes them; see: "+example.commandLine("show"),
			"%s beyond what this library allows: %s kept for longer than %s, %s with a lease of more than that",
			counted(v.odd.tooLong+v.odd.longLease, "record is", "records are"), grouped(v.odd.tooLong), brief(idem.MaxRetention), grouped(v.odd.longLease))
	} else {
		d.add(ok, "retention", "", "no result is kept for longer than %s, nor a lease", brief(idem.MaxRetention))
	}
}

// clock judges by how much the clock of a server is ahead of this machine's.
func (d *diagnosis) clock(which string, ahead time.Duration) {
	way := "ahead of"
	if ahead < 0 {
		way = "behind"
	}
	by := brief(ahead.Abs())
	switch {
	case ahead.Abs() < time.Second:
		d.add(ok, "clock", "", "%sit differs from this machine's by less than a second", which)
	case ahead.Abs() >= idem.MinRetention:
		d.add(bad, "clock", "set the clocks; fences could go down, and other systems would take a new attempt for an old one", "%sthe server's clock is %s %s this machine's", which, by, way)
	default:
		d.add(warn, "clock", "set the clocks; leases and expiry go by the server's alone, so nothing is taken over early", "%sthe server's clock is %s %s this machine's", which, by, way)
	}
}

// ask bounds the requests of a check.
func (d *diagnosis) ask() (context.Context, context.CancelFunc) { return soon(d.session.ctx) }

func (d *diagnosis) printJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(struct {
		Store  string    `json:"store"`
		Kind   string    `json:"kind"`
		Level  level     `json:"level"` // of the worst
		Checks []finding `json:"checks"`
	}{d.target.name, d.target.kind(), d.worst(), d.findings})
}

func (d *diagnosis) printPiped(w io.Writer) error {
	var b strings.Builder
	for _, f := range d.findings {
		fmt.Fprintf(&b, "%v\t%s\t%s\t%s\n", f.Level, f.Check, printable(f.Fact), printable(f.Remedy))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// print prints the findings for a terminal, and below the ones that are not ok what to do.
func (d *diagnosis) print(w io.Writer) error {
	const margin = 6 + 13
	columns := max(min(width(w), 100), 40)
	colours := map[level]colour{skip: bold, ok: green, warn: yellow, bad: red}
	var b strings.Builder
	fmt.Fprintf(&b, "store %s\n", printable(d.target.name))
	for _, f := range d.findings {
		lines := wrap(printable(f.Fact), columns-margin)
		for i, line := range lines {
			if i == 0 {
				fmt.Fprintf(&b, "%s%-13s%s\n", d.session.paint(w, colours[f.Level], fmt.Sprintf("%-6v", f.Level)), f.Check, line)
			} else {
				fmt.Fprintf(&b, "%*s%s\n", margin, "", line)
			}
		}
		for i, line := range wrap(printable(f.Remedy), columns-margin-3) {
			arrow := "-> "
			if i > 0 {
				arrow = "   "
			}
			fmt.Fprintf(&b, "%*s%s%s\n", margin, "", arrow, line)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// wrap breaks text into lines of at most n characters, where there are spaces.
func wrap(text string, n int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= n:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
