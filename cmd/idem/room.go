package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A fact is one that a storage tells about itself, for people and for programs.
type fact struct {
	name, text string // as a report shows it
	key        string // as JSON and piped output call it
	value      any    // a number, of bytes where it is a size
}

// room returns how much room the storage takes.
func (s *storage) room(ctx context.Context) ([]fact, error) {
	ctx, cancel := soon(ctx)
	defer cancel()
	switch {
	case s.bolt != nil:
		st, err := s.bolt.Stats(ctx)
		if err != nil {
			return nil, err
		}
		return []fact{
			{"file", size(st.Size) + ", of which " + size(st.Free) + " are free for new records", "file_bytes", st.Size},
			{"", "", "free_bytes", st.Free},
			{"stored", counted(st.Records, "record", "records") + ", expired ones not yet swept included", "stored_records", st.Records},
		}, nil
	case s.postgres != nil:
		st, err := s.postgres.Stats(ctx)
		if err != nil {
			return nil, err
		}
		return []fact{
			{"table", size(st.Size) + " with its indexes, about " + counted(st.Live, "row", "rows") + " and " + grouped(st.Dead) + " dead", "table_bytes", st.Size},
			{"", "", "live_rows", st.Live},
			{"", "", "dead_rows", st.Dead},
			{"to sweep", overdue(st.Overdue), "overdue_rows", st.Overdue},
		}, nil
	}
	st, err := s.redis.Stats(ctx)
	if err != nil {
		return nil, err
	}
	var used, limit, keys int64
	var hidden []string
	for _, n := range st.Nodes {
		used, limit, keys = used+n.Used, limit+n.Max, keys+n.Keys
		hidden = n.Hidden
	}
	if len(hidden) > 0 {
		return []fact{{"memory", "unknown: the user may not ask for " + strings.Join(hidden, ", "), "hidden", hidden}}, nil
	}
	of := "; there is no limit"
	if limit > 0 {
		of = ", of " + size(limit) + " at most"
	}
	return []fact{
		{"memory", size(used) + " with what others store" + of, "used_bytes", used},
		{"", "", "max_bytes", limit},
		{"", "", "keys", keys},
	}, nil
}

// overdue says how many expired records wait for a sweep.
func overdue(n int64) string {
	more := ""
	if n == 10_000 {
		more = " or more"
	}
	return counted(n, "expired record", "expired records") + more
}

// grouped returns a number with its thousands apart.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// counted returns a number of things.
func counted(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return grouped(n) + " " + many
}

// grid lines up rows under a heading, the first column to the left and all others to
// the right. The first column is cut so that a line fits.
func grid(rows [][]string, columns int) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	total := 0
	for i, w := range widths {
		if i > 0 {
			total += w + 2
		}
	}
	widths[0] = min(widths[0], max(columns-total, 8))
	var b strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&b, "%-*s", widths[0], cut(row[0], widths[0]))
		for i, cell := range row[1:] {
			fmt.Fprintf(&b, "  %*s", widths[i+1], cell)
		}
		b.WriteString("\n")
	}
	return b.String()
}
