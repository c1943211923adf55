package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/idem-go/idem"
)

// A report counts what became of the rows.
type report struct {
	booked    int
	cents     int64 // that were booked
	replayed  int
	conflicts int
	rejected  int
	problems  []string
}

// reportOf counts what became of a batch. What is wrong with a row is no error; an
// error means that none of the batch counts.
func reportOf(batch []row, ends []idem.Ending) (r report, err error) {
	for i, end := range ends {
		row := batch[i]
		switch {
		case errors.Is(end.Err, idem.ErrMismatch):
			r.conflict(row.line, row.id)
		case errors.Is(end.Err, idem.ErrKey):
			r.problem(row.line, row.id, end.Err)
		case end.Err != nil:
			return report{}, end.Err
		case end.Replayed:
			r.replayed++
		default:
			r.booked++
			r.cents += row.cents
		}
	}
	return r, nil
}

// conflict notes a row whose payment is booked with other content.
func (r *report) conflict(line int, id string) {
	r.conflicts++
	r.problems = append(r.problems, fmt.Sprintf("line %d: %s is booked with another account or amount: ask the sender", line, id))
}

// problem notes a row that is no payment.
func (r *report) problem(line int, id string, err error) {
	r.rejected++
	r.problems = append(r.problems, fmt.Sprintf("line %d: %q is not booked: %v", line, id, err))
}

func (r *report) add(more report) {
	r.booked += more.booked
	r.cents += more.cents
	r.replayed += more.replayed
	r.conflicts += more.conflicts
	r.rejected += more.rejected
	r.problems = append(r.problems, more.problems...)
}

func (r *report) rows() int { return r.booked + r.replayed + r.conflicts + r.rejected }

// shown is how many problems are printed.
const shown = 10

func (r *report) print(w io.Writer, path string) {
	for i, p := range r.problems {
		if i == shown {
			fmt.Fprintf(w, "... and %d more\n", len(r.problems)-shown)
			break
		}
		fmt.Fprintln(w, p)
	}
	fmt.Fprintf(w, "%s: %d rows\n", path, r.rows())
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "booked\t%d\t  amount %s\n", r.booked, money(r.cents))
	fmt.Fprintf(out, "replayed\t%d\t  booked before, by this run or an earlier one\n", r.replayed)
	fmt.Fprintf(out, "conflicts\t%d\t  same payment, other content: not booked\n", r.conflicts)
	fmt.Fprintf(out, "rejected\t%d\t  not a payment: not booked\n", r.rejected)
	_ = out.Flush()
}
