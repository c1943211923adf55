package main

import (
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/idem-go/idem"
)

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

// tableRows is how many rows are lined up together. A longer list begins again,
// with a heading, where the columns have to be wider.
const tableRows = 500

// A table lines up rows for a terminal.
type table struct {
	session *session
	columns int // of the terminal

	rows   [][]string // that are not printed yet
	layout layout     // of those that are
}

// A layout says which columns are shown, and how wide.
type layout struct {
	scopes bool // any row has a scope
	widths [columnCount]int
}

func (t *table) add(e idem.Entry) error {
	row := rowOf(e)
	row[keyColumn], row[scopeColumn] = printable(row[keyColumn]), printable(row[scopeColumn])
	t.rows = append(t.rows, row)
	if len(t.rows) < tableRows {
		return nil
	}
	return t.end()
}

// end prints the rows that are left.
func (t *table) end() error {
	if len(t.rows) == 0 {
		return nil
	}
	rows, needed, first := t.rows, t.needed(), t.layout.widths == [columnCount]int{}
	t.rows = nil
	var b strings.Builder
	if first || !t.layout.holds(needed) {
		if !first {
			b.WriteString("\n")
		}
		t.layout = needed
		b.WriteString(t.session.paint(t.session.stdout, bold, t.line(headings)) + "\n")
	}
	for _, row := range rows {
		b.WriteString(t.line(row) + "\n")
	}
	_, err := io.WriteString(t.session.stdout, b.String())
	return err
}

// needed returns the layout for the rows, which is no narrower than the one before.
// Keys and scopes are cut so that a line fits the terminal; all else has its full
// width.
func (t *table) needed() layout {
	l := t.layout
	for _, row := range append([][]string{headings}, t.rows...) {
		for i, cell := range row {
			l.widths[i] = max(l.widths[i], utf8.RuneCountInString(cell))
		}
		l.scopes = l.scopes || row[statusColumn] != headings[statusColumn] && row[scopeColumn] != "-"
	}
	total := -gap
	for _, i := range l.shown() {
		total += l.widths[i] + gap
	}
	if over := total - t.columns; over > 0 {
		if l.scopes {
			// The key tells more than the scope does.
			less := min(over, max(0, l.widths[scopeColumn]-max(len(headings[scopeColumn]), 8)))
			l.widths[scopeColumn] -= less
			over -= less
		}
		l.widths[keyColumn] = max(l.widths[keyColumn]-over, 8)
	}
	return l
}

// gap is how many spaces are between two columns.
const gap = 2

func (l layout) shown() []int {
	shown := []int{keyColumn, scopeColumn, statusColumn, tryColumn, ageColumn, leaseColumn, expiresColumn, codeColumn}
	if !l.scopes {
		shown = append(shown[:scopeColumn], shown[scopeColumn+1:]...)
	}
	return shown
}

// holds reports whether rows that need other fit into l as well.
func (l layout) holds(other layout) bool {
	for i, w := range other.widths {
		if w > l.widths[i] && (i != scopeColumn || other.scopes) {
			return false
		}
	}
	return l.scopes || !other.scopes
}

// line returns a row as it is printed.
func (t *table) line(row []string) string {
	var b strings.Builder
	spaces := 0 // that are due; there are none at the end of a line
	for _, i := range t.layout.shown() {
		cell := cut(row[i], t.layout.widths[i])
		b.WriteString(strings.Repeat(" ", spaces))
		spaces = t.layout.widths[i] + gap - utf8.RuneCountInString(cell)
		if i == leaseColumn && (cell == leaseOver || cell == leaseAbandoned) {
			cell = t.session.paint(t.session.stdout, yellow, cell)
		}
		b.WriteString(cell)
	}
	return b.String()
}

// cut shortens s to at most n characters, and shows where it did. It leaves both ends:
// keys that are made one after the other begin with the same time, or the same name.
func cut(s string, n int) string {
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	end := (n - 1) / 2
	return string(runes[:n-1-end]) + "…" + string(runes[len(runes)-end:])
}
