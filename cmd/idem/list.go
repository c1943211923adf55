package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

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
	JSON      bool          `name:"json" help:"Print one JSON object a line: idem list --json | jq -r .key"`
}

const listUsage = "idem list [FLAGS]"

const listHelp = `Prints a table on a terminal, where long keys are cut off, else tab-separated
lines without a heading and with whole keys, and "-" for what a record has not.
The columns are the same:
  KEY, SCOPE, STATUS, TRY (attempt), AGE (since the last write),
  LEASE (left; or over, or abandoned), EXPIRES (in), CODE (exit code)
Exact numbers, and what else there is, are in --json. --scope lists the scopes
below it too.

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

	var print func(idem.Entry) error
	table := table{columns: width(s.stdout)}
	switch {
	case c.JSON:
		print = func(e idem.Entry) error { return printJSON(s.stdout, viewOf(e, false)) }
	case table.columns > 0:
		print = func(e idem.Entry) error { table.add(e); return nil }
	default:
		print = func(e idem.Entry) error {
			_, err := fmt.Fprintln(s.stdout, strings.Join(rowOf(e), "\t"))
			return err
		}
	}
	var broken error // of standard output
	err = c.each(s.ctx, backend, func(e idem.Entry) bool {
		broken = print(e)
		return broken == nil
	})
	if err != nil {
		return t.refused("list", err)
	}
	if broken == nil && len(table.rows) > 0 {
		broken = table.print(s.stdout)
	}
	return s.wrote(broken)
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

// The columns of a listing.
const (
	keyColumn = iota
	scopeColumn
	statusColumn
	tryColumn
	ageColumn
	leaseColumn
	expiresColumn
	codeColumn
	columnCount
)

var headings = []string{"KEY", "SCOPE", "STATUS", "TRY", "AGE", "LEASE", "EXPIRES", "CODE"}

// rowOf returns the cells of a record. Neither keys nor scopes have tabs in
// them.
func rowOf(e idem.Entry) []string {
	scope, key := idem.SplitKey(e.Key)
	r := e.Record
	row := []string{key, scopeName(scope), r.Status.String(), strconv.Itoa(r.Attempt), brief(r.Age), lease(r), expiry(r), "-"}
	if len(scope) == 0 {
		row[scopeColumn] = "-"
	}
	if r.Status == idem.Completed {
		row[codeColumn] = strconv.Itoa(r.Result.Code)
	}
	return row
}

// A table lines up rows for a terminal.
type table struct {
	columns int // of the terminal
	rows    [][]string
	scopes  bool // any row has a scope
}

func (t *table) add(e idem.Entry) {
	row := rowOf(e)
	t.scopes = t.scopes || row[scopeColumn] != "-"
	row[keyColumn], row[scopeColumn] = printable(row[keyColumn]), printable(row[scopeColumn])
	t.rows = append(t.rows, row)
}

// print prints the rows under a heading. Keys and scopes are cut so that a line
// fits the terminal; all else has its full width.
func (t *table) print(w io.Writer) error {
	rows := append([][]string{headings}, t.rows...)
	var widths [columnCount]int
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	const gap = 2
	shown := []int{keyColumn, scopeColumn, statusColumn, tryColumn, ageColumn, leaseColumn, expiresColumn, codeColumn}
	if !t.scopes {
		shown = append(shown[:scopeColumn], shown[scopeColumn+1:]...)
	}
	total := -gap
	for _, i := range shown {
		total += widths[i] + gap
	}
	if over := total - t.columns; over > 0 {
		if t.scopes {
			// The key tells more than the scope does.
			less := min(over, max(0, widths[scopeColumn]-max(len(headings[scopeColumn]), 8)))
			widths[scopeColumn] -= less
			over -= less
		}
		widths[keyColumn] = max(widths[keyColumn]-over, 8)
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for _, i := range shown {
			fmt.Fprintf(&line, "%-*s", widths[i]+gap, cut(row[i], widths[i]))
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// cut shortens s to at most n characters, and shows that it did.
func cut(s string, n int) string {
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	return string(runes[:n-1]) + "…"
}
