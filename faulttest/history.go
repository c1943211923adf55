package faulttest

import (
	"fmt"
	"hash/maphash"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/idem-go/idem"
)

// A history is what the callers of a storage were told.
type history struct {
	plan  plan
	start time.Time

	mu    sync.Mutex
	calls []porcupine.Operation
	err   error // an answer that is wrong in every state
	figures
}

// Figures say how much a history has tried.
type figures struct {
	Histories int
	Calls     int
	Faults    int // requests and answers that something happened to
	Unknown   int // calls that nobody got an answer to
	Takeovers int // claims that were granted after the lease of another
	Refused   int // calls of attempts that had lost their claim
	Expired   int // claims of keys that had had a record
}

func (f *figures) add(other figures) {
	f.Histories += other.Histories
	f.Calls += other.Calls
	f.Faults += other.Faults
	f.Unknown += other.Unknown
	f.Takeovers += other.Takeovers
	f.Refused += other.Refused
	f.Expired += other.Expired
}

func newHistory(p plan) *history {
	return &history{plan: p, start: time.Now(), figures: figures{Histories: 1}}
}

// now returns the time since the history began.
func (h *history) now() int64 { return int64(time.Since(h.start)) }

// broken notes down an answer that no Store may give.
func (h *history) broken(what string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.err = fmt.Errorf("%s: %w", what, err)
	}
}

// note writes down a call, its answer, and what it has sent without an answer.
func (w *worker) note(q request, a answer, s *sent) {
	unsure, last := s.result()
	h := w.history
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.said != unknown {
		h.add(q, a, w.number)
	}
	q.ret = q.call + int64(late)
	for _, r := range unsure {
		if r.told {
			h.Unknown++
		}
		h.add(w.unanswered(q, r), answer{said: unknown}, w.number)
	}
	if a.said == unknown && len(unsure) > 0 && (q.op == begin || q.op == reclaim) {
		g := w.unanswered(q, attempted{last, unsure[len(unsure)-1].takeover, true})
		g.op, g.frees = giveBack, !g.takeover
		h.add(g, answer{said: unknown}, w.number)
	}
}

// unanswered returns the request that a record without an answer may have been.
func (w *worker) unanswered(q request, r attempted) request {
	if q.op == begin || q.op == reclaim {
		q.id, q.attempt, q.fence, q.takeover = attemptID(r.Token), r.Attempt, r.Fence, r.takeover
		q.payload = short(r.Fingerprint)
	}
	return q
}

// add is called with the lock held.
func (h *history) add(q request, a answer, worker int) {
	h.Calls++
	switch {
	case a.said == granted && a.takeover:
		h.Takeovers++
	case a.said == granted && a.record.attempt == 1 && q.call > int64(idem.MinRetention/2):
		h.Expired++
	case a.said == lost && q.id != "":
		h.Refused++
	}
	h.calls = append(h.calls, porcupine.Operation{ClientId: worker, Input: q, Output: a, Call: q.call, Return: q.ret})
}

var seed = maphash.MakeSeed()

// model returns what porcupine checks a history against, key by key.
func (h *history) model() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: byKey,
		Init:      func() []any { return []any{state{clockSlack: h.plan.slack}} },
		Step: func(s, q, a any) []any {
			var next []any
			for _, n := range s.(state).step(q.(request), a.(answer)) {
				next = append(next, n)
			}
			return next
		},
		Equal:             func(a, b any) bool { return a.(state) == b.(state) },
		Hash:              func(s any) uint64 { return maphash.Comparable(seed, s.(state)) },
		DescribeOperation: func(q, a any) string { return describe(q.(request), a.(answer)) },
		DescribeState:     func(s any) string { return s.(state).String() },
	}
	return m.ToModel()
}

func byKey(calls []porcupine.Operation) [][]porcupine.Operation {
	keys := make(map[string][]porcupine.Operation)
	for _, c := range calls {
		k := c.Input.(request).key
		keys[k] = append(keys[k], c)
	}
	var parts [][]porcupine.Operation
	for _, part := range keys {
		parts = append(parts, part)
	}
	return parts
}

// checkFor is how long the check of one history may take. It takes milliseconds;
// one that does not get done has failed.
const checkFor = 20 * time.Second

// check looks for an order of the calls in which all answers are right.
func (h *history) check() porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(h.model(), h.calls, checkFor)
}

// keep writes the keys that were answered wrongly into a new folder, as text and as
// pictures, and returns where.
func (h *history) keep() (string, error) {
	dir, err := os.MkdirTemp("", "idem-history-")
	if err != nil {
		return "", err
	}
	model := h.model()
	for _, part := range byKey(h.calls) {
		result, info := porcupine.CheckOperationsVerbose(model, part, checkFor)
		if result == porcupine.Ok {
			continue
		}
		slices.SortFunc(part, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
		var text strings.Builder
		for _, c := range part {
			fmt.Fprintf(&text, "%12v %12v  caller %-3d %s\n", time.Duration(c.Call), time.Duration(c.Return), c.ClientId, describe(c.Input.(request), c.Output.(answer)))
		}
		name := filepath.Join(dir, part[0].Input.(request).key)
		if err := os.WriteFile(name+".txt", []byte(text.String()), 0o644); err != nil {
			return dir, err
		}
		if err := porcupine.VisualizePath(model, info, name+".html"); err != nil {
			return dir, err
		}
	}
	return dir, nil
}

// describe returns a call as a person reads it.
func describe(q request, a answer) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s(", q.op)
	sep := ""
	part := func(name string, value any, present bool) {
		if present {
			fmt.Fprintf(&b, "%s%s %v", sep, name, value)
			sep = ", "
		}
	}
	part("payload", q.payload, q.op == begin)
	part("id", q.id, q.id != "")
	part("attempt", q.attempt, q.attempt != 0)
	part("fence", q.fence, q.fence != 0)
	part("result", q.result, q.result != "")
	part("note", q.note, q.note != "")
	part("hold", "", q.hold && q.op == begin)
	part("frees", "", q.frees && q.op == release)
	part("local", "", q.local)
	fmt.Fprintf(&b, ") %s", a.said)
	if a.takeover {
		b.WriteString(", takeover")
	}
	if a.record != (seen{}) {
		b.WriteString(" " + a.record.String())
	} else if q.op == lookup {
		b.WriteString(" absent")
	}
	return b.String()
}

func (r seen) String() string {
	lapsed := ""
	if r.lapsed {
		lapsed = " lapsed"
	}
	return fmt.Sprintf("[%v%s attempt %d fence %d id %s %s result %q note %q]", r.status, lapsed, r.attempt, r.fence, r.id, r.payload, r.result, r.note)
}

func (s state) String() string {
	r := seen{status: s.status, attempt: s.attempt, fence: s.fence, id: s.id, payload: s.payload, result: s.result, note: s.note, lapsed: s.abandoned}
	return fmt.Sprintf("%v lease ends %v to %v", r, time.Duration(s.leaseEnds.from), time.Duration(s.leaseEnds.to))
}
