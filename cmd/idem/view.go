package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/idem-go/idem"
)

// state says in a few words what has become of an attempt.
func state(r idem.Record) string {
	switch {
	case r.Lapsed():
		return "ended without a known outcome, last heard of " + brief(r.Age) + " ago"
	case r.Status == idem.InProgress:
		return "is running"
	}
	return fmt.Sprintf("was %v %s ago", r.Status, brief(r.Age))
}

// How leases end.
const (
	leaseOver      = "over"
	leaseAbandoned = "abandoned"
)

// lease says how a claim stands: what is left of its lease, or how it ended.
func lease(r idem.Record) string {
	switch {
	case r.Status != idem.InProgress:
		return "-"
	case r.Lease == 0:
		return leaseAbandoned
	case r.Lapsed():
		return leaseOver
	}
	return brief(r.LeaseLeft())
}

// longTime is more than any retention: what is kept that long, because its
// outcome is unknown and held, does not expire for practical purposes.
const longTime = 365 * 24 * time.Hour

func expiry(r idem.Record) string {
	left := max(0, r.TTL-r.Age)
	if left > longTime {
		return "never"
	}
	return brief(left)
}

// brief returns a duration in the two largest units that it has.
func brief(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 100*day:
		return fmt.Sprintf("%dd", d/day)
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d >= time.Second:
		return fmt.Sprintf("%ds", d/time.Second)
	case d >= time.Millisecond:
		return fmt.Sprintf("%dms", d/time.Millisecond)
	}
	return "0s"
}

// size returns a number of bytes, rounded to three digits at most.
func size(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	units := []string{"KiB", "MiB", "GiB", "TiB"}
	v, u := float64(n)/1024, 0
	for v >= 1023.5 && u < len(units)-1 {
		v, u = v/1024, u+1
	}
	if v < 9.95 {
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") + " " + units[u]
	}
	return fmt.Sprintf("%.0f %s", v, units[u])
}

// printable returns s with everything escaped that does not show on a terminal
// as itself, so that stored text can play no tricks there.
func printable(s string) string {
	shows := func(r rune) bool { return r != utf8.RuneError && unicode.IsPrint(r) }
	if strings.IndexFunc(s, func(r rune) bool { return !shows(r) }) < 0 {
		return s
	}
	quoted := strconv.Quote(s)
	return strings.ReplaceAll(strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`), `\\`, `\`)
}

// width returns how many columns w has if it is a terminal, else 0.
func width(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
		return columns
	}
	return 80
}

// A view is a record as JSON shows it, for show and list alike.
type view struct {
	Key         string   `json:"key"`
	Scope       []string `json:"scope"` // its levels
	Status      string   `json:"status"`
	Lapsed      bool     `json:"lapsed"` // in progress, and its lease is over
	Attempt     int      `json:"attempt"`
	Fence       int64    `json:"fence"`
	Fingerprint string   `json:"fingerprint"`
	Age         float64  `json:"age_seconds"`
	LeaseLeft   float64  `json:"lease_left_seconds"`
	ExpiresIn   *float64 `json:"expires_in_seconds"` // null: held, never
	Checkpoint  content  `json:"checkpoint,omitempty"`
	Result      *answer  `json:"result,omitempty"` // of a completed record
}

type answer struct {
	Code    int                `json:"code"`
	Omitted bool               `json:"omitted"`
	Bytes   int                `json:"body_bytes"` // as stored
	Meta    map[string]content `json:"meta,omitempty"`
	Body    content            `json:"body,omitempty"`   // of another program's result
	Output  []piece            `json:"output,omitempty"` // of a command, as it was printed
}

// A piece is what a command printed to one stream before it printed to the other.
type piece struct {
	From string  `json:"from"`
	Data content `json:"data"`
}

// A content is shown as a string where it is text, and else as an object with
// the bytes in Base64.
type content []byte

func (c content) MarshalJSON() ([]byte, error) {
	if utf8.Valid(c) {
		return json.Marshal(string(c))
	}
	return json.Marshal(map[string][]byte{"base64": c})
}

// viewOf returns an entry as JSON shows it; bodies and checkpoints only if asked
// for, since they may be large or confidential.
func viewOf(e idem.Entry, bodies bool) view {
	scope, key := idem.SplitKey(e.Key)
	r := e.Record
	v := view{
		Key: key, Scope: scope, Status: r.Status.String(), Lapsed: r.Lapsed(), Attempt: r.Attempt, Fence: r.Fence,
		Fingerprint: r.Fingerprint.String(), Age: r.Age.Seconds(), LeaseLeft: r.LeaseLeft().Seconds(),
	}
	if left := max(0, r.TTL-r.Age); left <= longTime {
		seconds := left.Seconds()
		v.ExpiresIn = &seconds
	}
	if bodies && len(r.Checkpoint) > 0 {
		v.Checkpoint = r.Checkpoint
	}
	if r.Status == idem.Completed {
		v.Result = answerOf(r.Result, bodies)
	}
	return v
}

func answerOf(r idem.Result, bodies bool) *answer {
	a := &answer{Code: r.Code, Omitted: r.Omitted, Bytes: len(r.Body)}
	if len(r.Meta) > 0 {
		a.Meta = make(map[string]content)
		for name, value := range r.Meta {
			a.Meta[printable(name)] = content(value)
		}
	}
	if !bodies || len(r.Body) == 0 {
		return a
	}
	if _, recorded := r.Meta[metaFormat]; recorded {
		if chunks, err := output(r); err == nil {
			for _, c := range chunks {
				a.Output = append(a.Output, piece{c.from.String(), c.data})
			}
			return a
		}
	}
	a.Body = r.Body
	return a
}

// printJSON prints v on a line of its own.
func printJSON(w io.Writer, v view) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
