package conformancetest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/idem-go/idem"
)

var modelCases = []testCase{
	{name: "Random", rule: "A Backend is a compare-and-swap map from keys to records.", timed: true, run: testModel},
}

// A model is a map that does what a backend is to do. It knows ages only as
// well as the clock of the case does: a record may be surely there, surely
// expired, or either.
type model struct {
	e       *env
	b       []idem.Backend
	rnd     *rand.Rand
	records map[string]modelEntry
	tokens  map[string][]string // that a key has had
	history []string
	flawed  bool
}

type modelEntry struct {
	record idem.Record
	stored moment
}

func testModel(e *env) {
	rnd := e.random()
	for range rounds(4) {
		m := &model{
			e: e, b: e.handles(2), rnd: rnd,
			records: make(map[string]modelEntry), tokens: make(map[string][]string),
		}
		prefix := fmt.Sprintf("model-%x-", m.rnd.Uint32())
		for range rounds(250) {
			m.step(prefix + string(rune('a'+m.rnd.IntN(6))))
			if m.flawed {
				return
			}
		}
		e.sweepAll(1000, 1000)
	}
}

// note adds to the history, from which a failure shows the part about its key.
func (m *model) note(key, format string, args ...any) {
	m.history = append(m.history, fmt.Sprintf("%q: %s", key, fmt.Sprintf(format, args...)))
}

func (m *model) flaw(key, format string, args ...any) {
	m.flawed = true
	var about []string
	for _, line := range m.history {
		if len(line) > len(key)+2 && (line[1:1+len(key)] == key || line[:2] == `""`) {
			about = append(about, line)
		}
	}
	about = about[max(0, len(about)-12):]
	m.e.errorf("%s\n\tthe last calls that concern the key, its own at the end:\n\t\t%s", fmt.Sprintf(format, args...), strings.Join(about, "\n\t\t"))
}

// present returns what key may have at the moment: certain tells whether it
// does for sure, or not at all.
func (m *model) present(key string, at moment) (r idem.Record, certain bool) {
	entry, ok := m.records[key]
	if !ok {
		return idem.Record{}, true
	}
	least, most := m.e.clock.between(entry.stored, at)
	switch {
	case least >= entry.record.TTL:
		return idem.Record{}, true
	case most < entry.record.TTL:
		return entry.record, true
	}
	return entry.record, false
}

func (m *model) step(key string) {
	b := m.b[m.rnd.IntN(len(m.b))]
	switch m.rnd.IntN(10) {
	case 0, 1, 2:
		var got idem.Record
		at := m.e.clock.during(func() { got = m.e.get(b, key) })
		m.note(key, "Get returned %v", show(got))
		m.compare(key, "Get", got, at)
	case 3, 4, 5, 6, 7:
		m.swap(b, key)
	case 8:
		d := time.Duration(m.rnd.IntN(4)) * time.Hour
		m.e.clock.pass(d)
		m.note("", "%v passed", d)
	case 9:
		m.sweepOrList(b, key)
	}
}

// compare reports a record that is not the one of the model. Where the model
// cannot know, it learns.
func (m *model) compare(key, what string, got idem.Record, at moment) {
	want, certain := m.present(key, at)
	if !certain && got.Token == "" {
		delete(m.records, key)
		return
	}
	if d := diff(got, want); d != "" {
		m.flaw(key, "%s: %s\n\tgot:  %v\n\twant: %v", what, d, show(got), show(want))
		return
	}
	if want.Token == "" {
		delete(m.records, key)
		return
	}
	least, most := m.e.clock.between(m.records[key].stored, at)
	if got.Age < least || got.Age > most {
		m.flaw(key, "%s: the age is %v, want %v to %v", what, got.Age, least, most)
	}
}

func (m *model) swap(b idem.Backend, key string) {
	old, next := "", newRecord(idem.Status(1+m.rnd.IntN(3)))
	next.TTL = time.Duration(1+m.rnd.IntN(8))*time.Hour + 30*time.Minute
	if had := m.tokens[key]; len(had) > 0 && m.rnd.IntN(4) > 0 {
		old = had[len(had)-1] // most often that of the present record
		if m.rnd.IntN(4) == 0 {
			old = had[m.rnd.IntN(len(had))]
		}
	}
	if entry, ok := m.records[key]; ok && m.rnd.IntN(6) == 0 {
		next = entry.record // a Swap again whose reply was lost
	}
	var got idem.Record
	at := m.e.clock.during(func() { got = m.e.swap(b, key, old, next) })
	m.note(key, "Swap of %.9q for %v returned %v", old, show(next), show(got))
	before, certain := m.present(key, at)
	if !certain {
		// The answer tells whether the record was still there.
		if got.Token == before.Token && got.Token != next.Token {
			certain = true
		} else if got.Token != before.Token && old != before.Token {
			before, certain = idem.Record{}, true
		}
	}
	if !certain {
		// Old and new fit both: take what is stored now as the truth.
		now, read := m.e.getAt(m.e.b, key)
		delete(m.records, key)
		if now.Token != "" {
			m.records[key] = modelEntry{now, moment{at.from - now.Age - m.e.clock.slack, read.to}}
			m.tokens[key] = append(m.tokens[key], now.Token)
		}
		return
	}
	if before.Token == old && before.Token != next.Token {
		m.records[key] = modelEntry{next, at}
		m.tokens[key] = append(m.tokens[key], next.Token)
	} else if before.Token == "" {
		delete(m.records, key)
	}
	m.compare(key, "Swap", got, at)
}

func (m *model) sweepOrList(b idem.Backend, key string) {
	l, lists := b.(idem.Lister)
	if !lists || m.rnd.IntN(2) == 0 {
		limit := m.rnd.IntN(4)
		n := m.e.sweep(limit)
		m.note("", "Sweep(%d) returned %d", limit, n)
		if n > limit {
			m.flaw(key, "Sweep(%d) deleted %d records", limit, n)
		}
		return
	}
	listed := make(map[string]idem.Record)
	prefix := key[:len(key)-1]
	at := m.e.clock.during(func() {
		for _, entry := range m.e.list(l, idem.Query{Prefix: prefix, Limit: 1 + m.rnd.IntN(4)}) {
			listed[entry.Key] = entry.Record
		}
	})
	for c := range 6 {
		key := prefix + string(rune('a'+c))
		m.note(key, "List returned %v", show(listed[key]))
		m.compare(key, "List", listed[key], at)
	}
}
