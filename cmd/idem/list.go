package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/idem-go/idem"
)

// listPage is how many records are read at a time; each may be as large as a
// result can be.
const listPage = 64

type listCommand struct {
	where
	Status    string        `enum:",in-progress,completed,released" default:"" placeholder:"STATUS" help:"Only those: in-progress, completed or released: idem list --status completed"`
	Lapsed    bool          `help:"Only those in progress whose lease is over, so that their outcome is unknown: idem list --lapsed"`
	OlderThan time.Duration `placeholder:"DURATION" help:"Only those last written longer ago than that: idem list --lapsed --older-than 1h"`
	Limit     int           `placeholder:"N" help:"At most so many: idem list --limit 20"`
	JSON      bool          `name:"json" xor:"format" help:"Print one JSON object a line: idem list --json | jq -r .key"`
	CSV       bool          `name:"csv" xor:"format" help:"Print comma-separated values with a heading, for a spreadsheet: idem list --csv > idem.csv"`
}

const listUsage = "idem list [FLAGS]"

const listHelp = `Prints a table on a terminal, where long keys lack their middle, else
tab-separated lines without a heading and with whole keys, and "-" for what a
record has not.
The columns are the same:
  KEY, SCOPE, STATUS, TRY (attempt), AGE (since the last write),
  LEASE (left; or over, or abandoned), EXPIRES (in), CODE (exit code)
Exact numbers, and what else there is, are in --json and --csv. --scope lists
the scopes below it too. Large stores are listed as they are read.

` + readingHelp

// Run lists what is stored.
func (c *listCommand) Run(s *session) error {
	t, err := c.at("", s.getenv)
	if err != nil {
		return badUsage("list", "%v", err)
	}
	if c.Limit < 0 || c.OlderThan < 0 {
		return badUsage("list", "--limit and --older-than cannot be negative")
	}
	scoped := t
	scoped.key = "any" // it is the scope that is checked
	if err := scoped.check(nil); err != nil {
		return t.refused("list", err)
	}
	backend, err := t.open(s.ctx, toRead)
	if err != nil {
		return t.refused("list", err)
	}
	defer func() { _ = backend.Close() }()

	out := c.printer(s)
	var broken error // of standard output
	err = c.each(s.ctx, backend, func(e idem.Entry) bool {
		broken = out.add(e)
		return broken == nil
	})
	if broken == nil {
		broken = out.end() // also of what came before an error
	}
	if err != nil {
		return t.refused("list", err)
	}
	return s.wrote(broken)
}

// A printer prints records one after the other.
type printer interface {
	add(e idem.Entry) error
	end() error
}

func (c *listCommand) printer(s *session) printer {
	switch columns := width(s.stdout); {
	case c.JSON:
		return jsonPrinter{s.stdout}
	case c.CSV:
		return newCSVPrinter(s.stdout)
	case columns > 0:
		return &table{session: s, columns: columns}
	}
	return tabPrinter{s.stdout}
}

type jsonPrinter struct{ w io.Writer }

func (p jsonPrinter) add(e idem.Entry) error { return printJSON(p.w, viewOf(e, false)) }
func (p jsonPrinter) end() error             { return nil }

type tabPrinter struct{ w io.Writer }

func (p tabPrinter) add(e idem.Entry) error {
	_, err := fmt.Fprintln(p.w, strings.Join(rowOf(e), "\t"))
	return err
}

func (p tabPrinter) end() error { return nil }

// A csvPrinter prints what --json has, without the Meta of results.
type csvPrinter struct {
	w      *csv.Writer
	headed bool
}

func newCSVPrinter(w io.Writer) *csvPrinter { return &csvPrinter{w: csv.NewWriter(w)} }

var csvHeading = []string{
	"key", "scope", "status", "lapsed", "attempt", "age_seconds", "lease_left_seconds", "expires_in_seconds",
	"code", "omitted", "body_bytes", "fence", "fingerprint",
}

func (p *csvPrinter) add(e idem.Entry) error {
	v := viewOf(e, false)
	seconds := func(f float64) string { return strconv.FormatFloat(f, 'f', 3, 64) }
	expires, code, omitted, bytes := "never", "", "", ""
	if v.ExpiresIn != nil {
		expires = seconds(*v.ExpiresIn)
	}
	if r := v.Result; r != nil {
		code, omitted, bytes = strconv.Itoa(r.Code), strconv.FormatBool(r.Omitted), strconv.Itoa(r.Bytes)
	}
	if err := p.head(); err != nil {
		return err
	}
	return p.w.Write([]string{
		v.Key, scopeName(v.Scope), v.Status, strconv.FormatBool(v.Lapsed), strconv.Itoa(v.Attempt),
		seconds(v.Age), seconds(v.LeaseLeft), expires, code, omitted, bytes, strconv.FormatInt(v.Fence, 10), v.Fingerprint,
	})
}

// head prints the heading, once.
func (p *csvPrinter) head() error {
	if p.headed {
		return nil
	}
	p.headed = true
	return p.w.Write(csvHeading)
}

// end prints what is left in the buffer. A list of nothing has a heading too.
func (p *csvPrinter) end() error {
	if err := p.head(); err != nil {
		return err
	}
	p.w.Flush()
	return p.w.Error()
}

// each calls yield with the records that are asked for, until it returns false.
func (c *listCommand) each(ctx context.Context, b idem.Lister, yield func(idem.Entry) bool) error {
	q := idem.Query{
		Prefix: idem.ScopePrefix(c.Scope...),
		Lapsed: c.Lapsed,
		Limit:  listPage,
	}
	for _, status := range []idem.Status{idem.InProgress, idem.Completed, idem.Released} {
		if c.Status == status.String() {
			q.Status = status
		}
	}
	found := 0
	for {
		entries, next, err := b.List(ctx, q)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Record.Age < c.OlderThan {
				continue
			}
			if !yield(e) {
				return nil
			}
			if found++; found == c.Limit {
				return nil
			}
		}
		if next == "" {
			return nil
		}
		q.Cursor = next
	}
}

// wrote turns an error of writing to standard output into how the subcommand
// ends.
func (s *session) wrote(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EPIPE):
		return passOn(exitSignal + int(syscall.SIGPIPE))
	}
	return fail(exitOutput, "", "write to stdout: %v", err)
}
