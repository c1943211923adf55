package faulttest

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/idem-go/idem"
)

// A mutant is a storage with one fault, around one that has none. The faults are
// those that storages of this kind have had in earnest.
type mutant struct {
	b     idem.Backend
	fault string
	gap   time.Duration // how long what is not atomic takes at most

	mu     sync.Mutex
	rnd    *rand.Rand
	before map[string]idem.Record // what a key had before its last write
}

// checkThenAct is the fault that a program has which uses a storage without idem.
const checkThenAct = "looks first and writes later"

// mutants has a sentence for each fault.
var mutants = []string{
	checkThenAct,
	"completes without the fence",
	"releases without the fence",
	"abandons without the fence",
	"lets an extension revive a lost claim",
	"grants claims early, by a clock that is ahead",
	"never lets go of a claim, by a clock that stands still",
	"lets a second result replace the first",
	"ignores the payload",
	"evicts records",
	"reads what was there before",
	"counts attempts and fences from the start after a release",
	"loses an acknowledged result",
	"writes after it has acknowledged",
	"takes over without the checkpoint",
	"does not know its own claim again",
	"lets a late claim in after a release",
	"stores two keys as one",
	"sweeps claims whose lease is over",
	"keeps what has expired",
	"forgets unresolved claims",
}

func newMutant(b idem.Backend, fault string, gap time.Duration, rnd *rand.Rand) *mutant {
	return &mutant{b: b, fault: fault, gap: gap, rnd: rand.New(rand.NewPCG(rnd.Uint64(), 0)), before: make(map[string]idem.Record)}
}

func (m *mutant) dice(percent int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rnd.IntN(100) < percent
}

func (m *mutant) pause() {
	m.mu.Lock()
	d := time.Duration(m.rnd.Int64N(int64(m.gap)))
	m.mu.Unlock()
	time.Sleep(d)
}

// folded returns the key under which the mutant stores key.
func (m *mutant) folded(key string) string {
	if m.fault == "stores two keys as one" && key == "key-1" {
		return "key-2"
	}
	return key
}

func (m *mutant) Get(ctx context.Context, key string) (idem.Record, error) {
	key = m.folded(key)
	r, err := m.b.Get(ctx, key)
	if m.fault == "reads what was there before" && err == nil && m.dice(10) {
		m.mu.Lock()
		defer m.mu.Unlock()
		r = m.before[key]
	}
	return m.distort(r, idem.Record{}), err
}

// distort returns what the mutant says of a record to one who wants to write new.
func (m *mutant) distort(r, new idem.Record) idem.Record {
	switch m.fault {
	case "grants claims early, by a clock that is ahead":
		if r.Status == idem.InProgress {
			r.Age += r.Lease / 2
		}
	case "never lets go of a claim, by a clock that stands still":
		r.Age = 0
	case "ignores the payload":
		if new.Token != "" && r.Status != idem.Released && r.Token != "" {
			r.Fingerprint = new.Fingerprint
		}
	}
	return r
}

func (m *mutant) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	key = m.folded(key)
	present, err := m.b.Get(ctx, key)
	if err != nil {
		return present, err
	}
	if m.overwrites(present, new) {
		old = present.Token
	}
	switch m.fault {
	case checkThenAct:
		if present.Token != old {
			return present, nil
		}
		m.pause()
		return m.force(ctx, key, new)
	case "counts attempts and fences from the start after a release":
		if new.Status == idem.Released {
			new.Attempt, new.Fence = 0, 0
		}
	case "takes over without the checkpoint":
		if new.Attempt > present.Attempt {
			new.Checkpoint = nil
		}
	case "loses an acknowledged result":
		if new.Status == idem.Completed && present.Token == old && m.dice(10) {
			return new, nil
		}
	case "writes after it has acknowledged":
		if new.Status == idem.Completed && present.Token == old && m.dice(50) {
			go func() {
				m.pause()
				_, _ = m.force(context.WithoutCancel(ctx), key, new)
			}()
			return new, nil
		}
	case "evicts records":
		if m.dice(1) && present.Token != "" {
			_, _ = m.force(ctx, key, expiredRecord)
		}
	case "keeps what has expired":
		if new.Status == idem.Completed {
			new.TTL *= 10
		}
	case "forgets unresolved claims":
		if new.Status == idem.InProgress {
			new.TTL = time.Hour
		}
	}
	got, err := m.b.Swap(ctx, key, old, new)
	if err == nil && got.Token == new.Token {
		m.mu.Lock()
		m.before[key] = present
		m.mu.Unlock()
		if present.Token == new.Token && m.fault == "does not know its own claim again" {
			// It says that somebody else is there.
			got.Token = "somebody else." + got.Token
		}
	}
	return m.distort(got, new), err
}

// overwrites tells whether the mutant writes new over a record that is in the way.
func (m *mutant) overwrites(present, new idem.Record) bool {
	other := attemptID(present.Token) != attemptID(new.Token)
	switch m.fault {
	case "completes without the fence":
		return new.Status == idem.Completed && other
	case "releases without the fence":
		return new.Status == idem.Released && other && present.Status == idem.InProgress
	case "abandons without the fence":
		return new.Status == idem.InProgress && new.Lease == 0 && other
	case "lets an extension revive a lost claim":
		return new.Status == idem.InProgress && new.Lease > 0 && other && new.Attempt < present.Attempt
	case "lets a second result replace the first":
		return new.Status == idem.Completed && !other
	case "lets a late claim in after a release":
		return new.Status == idem.InProgress && !other && present.Status == idem.Released
	}
	return false
}

// Sweep deletes what is expired, and the mutant's own idea of that.
func (m *mutant) Sweep(ctx context.Context, limit int) (int, error) {
	if l, ok := m.b.(idem.Lister); ok && m.fault == "sweeps claims whose lease is over" {
		entries, _, err := l.List(ctx, idem.Query{Lapsed: true, Limit: limit})
		if err != nil {
			return 0, err
		}
		for _, e := range entries {
			_, _ = m.b.Swap(ctx, e.Key, e.Record.Token, expiredRecord)
		}
	}
	return m.b.Sweep(ctx, limit)
}

// expiredRecord is no record from the moment at which it is written.
var expiredRecord = idem.Record{Token: "gone", Status: idem.Released}

// force writes new whatever is there.
func (m *mutant) force(ctx context.Context, key string, new idem.Record) (idem.Record, error) {
	for {
		present, err := m.b.Get(ctx, key)
		if err != nil {
			return present, err
		}
		got, err := m.b.Swap(ctx, key, present.Token, new)
		if err != nil || got.Token == new.Token {
			return new, err
		}
	}
}
