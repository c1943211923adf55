package bolt

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

// A model is what a storage should contain, as a map.
type model struct {
	now     time.Duration
	records map[string]modelRecord
}

type modelRecord struct {
	r  idem.Record
	at time.Duration
}

func (m *model) get(key string) idem.Record {
	s, ok := m.records[key]
	if !ok || m.now-s.at >= s.r.TTL {
		return idem.Record{}
	}
	return s.r
}

func (m *model) swap(key, old string, r idem.Record) idem.Record {
	if p := m.get(key); p.Token == r.Token || p.Token != old {
		return p
	}
	m.records[key] = modelRecord{r, m.now}
	return r
}

func (m *model) clone() *model { return &model{m.now, maps.Clone(m.records)} }

// A modelRun does random things to backends on one file and to the model.
type modelRun struct {
	t        *testing.T
	rnd      *rand.Rand
	model    *model
	wall     *int64
	backends []*Backend
	reopen   func()
	tokens   int
	db       func() *bbolt.DB // for transactions; nil if there is none
}

func (m *modelRun) clock() (int64, int64) { return *m.wall, *m.wall }

// use makes b go by the model's clock.
func (m *modelRun) use(b *Backend) *Backend {
	b.clock.now, b.clock.last, b.clock.at = m.clock, 0, *m.wall
	return b
}

func (m *modelRun) pass(d time.Duration) {
	*m.wall += int64(d)
	m.model.now += d
}

// swap does one random Swap on a backend and on a model.
func (m *modelRun) swap(b idem.Backend, model *model) {
	m.t.Helper()
	key := fmt.Sprintf("k%d", m.rnd.IntN(40))
	m.tokens++
	r := randomRecord(m.rnd)
	r.Token = strconv.Itoa(m.tokens) + ".1"
	r.TTL = time.Duration(m.rnd.IntN(4)) * time.Hour
	if m.rnd.IntN(2) == 0 { // into a mixed log
		r.TTL += time.Duration(m.rnd.Int64N(int64(time.Hour)))
	}
	old := ""
	switch m.rnd.IntN(4) {
	case 0, 1:
		old = model.get(key).Token
	case 2:
		old = strconv.Itoa(m.rnd.IntN(m.tokens)) + ".1"
	}
	if p := model.get(key); p.Token != "" && m.rnd.IntN(10) == 0 {
		r.Token = p.Token // a Swap whose reply was lost
	}
	want := model.swap(key, old, r)
	got, err := b.Swap(m.t.Context(), key, old, r)
	if err != nil || !sameRecord(got, want) {
		m.t.Fatalf("Swap(%q, %q, %q) = %s, %v; want %s", key, old, r.Token, brief(got), err, brief(want))
	}
}

// brief shows what a failure is about.
func brief(r idem.Record) string {
	return fmt.Sprintf("{token %q, %v, TTL %v, age %v}", r.Token, r.Status, r.TTL, r.Age)
}

func (m *modelRun) check(b idem.Backend, model *model) {
	m.t.Helper()
	for i := range 40 {
		key := fmt.Sprintf("k%d", i)
		if got, want := get(m.t, b, key), model.get(key); !sameRecord(got, want) {
			m.t.Fatalf("Get(%q) = %s; want %s", key, brief(got), brief(want))
		}
	}
	// The list has each of them once.
	var listed []string
	q := idem.Query{Limit: 1 + m.rnd.IntN(20)}
	for {
		entries, next, err := b.(idem.Lister).List(m.t.Context(), q)
		if err != nil {
			m.t.Fatal(err)
		}
		for _, e := range entries {
			if want := model.get(e.Key); !sameRecord(e.Record, want) {
				m.t.Fatalf("List has %q with %s; want %s", e.Key, brief(e.Record), brief(want))
			}
			listed = append(listed, e.Key)
		}
		if next == "" {
			break
		}
		q.Cursor = next
	}
	want := 0
	for key := range model.records {
		if model.get(key).Token != "" {
			want++
		}
	}
	slices.Sort(listed)
	if listed = slices.Compact(listed); len(listed) != want {
		m.t.Fatalf("List has %d keys, want %d", len(listed), want)
	}
}

func (m *modelRun) step() {
	b := m.backends[m.rnd.IntN(len(m.backends))]
	switch n := m.rnd.IntN(100); {
	case n < 60:
		m.swap(b, m.model)
	case n < 75:
		key := fmt.Sprintf("k%d", m.rnd.IntN(40))
		if got, want := get(m.t, b, key), m.model.get(key); !sameRecord(got, want) {
			m.t.Fatalf("Get(%q) = %s; want %s", key, brief(got), brief(want))
		}
	case n < 80:
		m.pass(time.Duration(m.rnd.IntN(90)) * time.Minute)
	case n < 85:
		if _, err := b.Sweep(m.t.Context(), m.rnd.IntN(20)); err != nil {
			m.t.Fatal(err)
		}
	case n < 90:
		m.check(b, m.model)
	case n < 93:
		m.reopen()
	case m.db != nil:
		m.transaction()
	}
}

// transaction does several things in one transaction, through several handles, and
// commits it or not.
func (m *modelRun) transaction() {
	rollback := errors.New("roll back")
	end := []error{nil, rollback}[m.rnd.IntN(2)]
	inside := m.model.clone()
	err := m.db().Update(func(tx *bbolt.Tx) error {
		for range 1 + m.rnd.IntN(8) {
			bound := m.backends[m.rnd.IntN(len(m.backends))].WithTx(tx)
			switch m.rnd.IntN(8) {
			case 0:
				m.check(bound, inside)
			case 1:
				if _, err := bound.Sweep(m.t.Context(), m.rnd.IntN(5)); err != nil {
					m.t.Fatal(err)
				}
			case 2:
				m.check(m.backends[m.rnd.IntN(len(m.backends))], m.model)
			default:
				m.swap(bound, inside)
			}
		}
		return end
	})
	if err != end {
		m.t.Fatal(err)
	}
	if end == nil {
		m.model = inside
	}
}

// The backend behaves like a map, whatever is done to it in whatever order.
func TestModel(t *testing.T) {
	rnd := testenv.Rand(t)
	runs, steps := 30, 400
	if testing.Short() || testenv.Race {
		runs = 8
	}
	for run := range runs {
		for _, kind := range []string{"open", "handles", "colliding", "shared"} {
			t.Run(fmt.Sprintf("%s %d", kind, run), func(t *testing.T) {
				wall := int64(4_000_000_000_000_000_000) // later than the real one
				m := &modelRun{t: t, rnd: rnd, wall: &wall, model: &model{records: make(map[string]modelRecord)}}
				path := testPath(t)
				m.prepare(kind, path)
				for range steps {
					m.step()
				}
				for _, b := range m.backends {
					m.check(b, m.model)
					checkFile(t, b)
				}
			})
		}
	}
}

// prepare opens the backends of a kind.
func (m *modelRun) prepare(kind, path string) {
	switch kind {
	case "open":
		m.backends = []*Backend{m.use(open(m.t, path, nil))}
		m.reopen = func() {
			if err := m.backends[0].Close(); err != nil {
				m.t.Fatal(err)
			}
			m.backends = []*Backend{m.use(open(m.t, path, nil))}
		}
	case "shared":
		another := func() *Backend {
			return m.use(open(m.t, path, &Options{Shared: true}))
		}
		m.backends = []*Backend{another(), another(), another()}
		m.reopen = func() { m.backends[m.rnd.IntN(3)] = another() }
	default:
		db := openDB(m.t, path)
		m.db = func() *bbolt.DB { return db }
		another := func() *Backend {
			b := m.use(newOn(m.t, db, nil))
			if kind == "colliding" {
				b.index.mu.Lock()
				defer b.index.mu.Unlock()
				b.index.mask = 7
				b.index.seq, b.index.txid = 0, unknownTx
			}
			return b
		}
		m.backends = []*Backend{another(), another(), another()}
		m.reopen = func() { m.backends[m.rnd.IntN(3)] = another() }
	}
}
