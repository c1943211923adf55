package idemtest

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/idem-go/idem"
)

// A Clock makes the records of a storage older than they are, so that a test
// need not wait for a lease or a retention to end. It is safe for concurrent
// use.
//
// It knows the records by what is written through its backend; other handles on
// the same storage are not aged, and what they write after Advance or Lapse
// counts as written before.
type Clock struct {
	mu      sync.Mutex
	skipped time.Duration
	lapses  int
	written map[string]stamp // by token
	keys    map[string]bool  // that were written
	moved   chan struct{}    // closed when time is moved
}

// A stamp is when a record was written, by the Clock.
type stamp struct {
	skipped time.Duration
	lapses  int
}

// Aging returns b with records whose age the returned Clock adds to. It is a
// Lister, a Watcher and a Prober if b is.
func Aging(b idem.Backend) (idem.Backend, *Clock) {
	c := &Clock{written: make(map[string]stamp), keys: make(map[string]bool), moved: make(chan struct{})}
	core := &aging{b, c}
	return decorated(core, b,
		func(l idem.Lister) idem.Lister { return agingLister{l, c} },
		func(w idem.Watcher) idem.Watcher { return agingWatcher{w, core} }), c
}

// Advance makes all that is stored now older by d. A negative d is a clock that was
// set back: records become younger, but no age is negative.
func (c *Clock) Advance(d time.Duration) { c.move(func() { c.skipped = add(c.skipped, d) }) }

// Lapse lets the lease of every claim that is stored now run out, however long
// it is, as if all who hold one had died a while ago. A claim that is extended
// afterwards has a lease again.
func (c *Clock) Lapse() { c.move(func() { c.lapses++ }) }

func (c *Clock) move(by func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	by()
	close(c.moved)
	c.moved = make(chan struct{})
}

// stamp remembers that a record is about to be written. Its repetition, because
// the reply was lost, does not make it younger.
func (c *Clock) stamp(key, token string) (skipping bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys[key] = true
	if _, ok := c.written[token]; !ok {
		c.written[token] = stamp{c.skipped, c.lapses}
	}
	return c.skipped != 0
}

// aged reports whether time was moved since the record with the token was written.
func (c *Clock) aged(token string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.written[token]
	return !ok && c.skipped != 0 || ok && s.skipped != c.skipped
}

func (c *Clock) forget(token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.written, token)
}

// age returns r with its age by the Clock, or the zero Record if it is expired.
func (c *Clock) age(r idem.Record) idem.Record {
	if r.Token == "" {
		return r
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.written[r.Token] // of another handle: as if before all that was skipped
	r.Age = max(0, add(r.Age, c.skipped-s.skipped))
	if s.lapses < c.lapses && r.Status == idem.InProgress {
		r.Age = max(r.Age, r.Lease)
	}
	if r.Expired() {
		return idem.Record{}
	}
	return r
}

type aging struct {
	b idem.Backend
	c *Clock
}

func (d *aging) Get(ctx context.Context, key string) (idem.Record, error) {
	r, err := d.b.Get(ctx, key)
	return d.c.age(r), err
}

// Swap treats a record that is expired by the Clock as none.
func (d *aging) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	if skipping := d.c.stamp(key, new.Token); skipping && old != "" {
		// Whether the record to be replaced is expired shows only if it is read.
		if r, err := d.Get(ctx, key); err != nil || r.Token == "" {
			return r, err
		}
	}
	for replaced := old; ; {
		got, err := d.b.Swap(ctx, key, replaced, new)
		if err != nil {
			return idem.Record{}, err
		}
		present := d.c.age(got)
		if old != "" || present.Token != "" || got.Token == new.Token && !d.c.aged(new.Token) {
			return present, nil
		}
		if got.Token == new.Token { // it was stored once before, and is expired
			if got, err = d.bury(ctx, key, got); err != nil {
				return idem.Record{}, err
			}
			d.c.forget(new.Token)
			d.c.stamp(key, new.Token)
		}
		replaced = got.Token
	}
}

// bury replaces a record that is expired by the Clock with one that b takes for
// expired too, and returns what is stored then.
func (d *aging) bury(ctx context.Context, key string, r idem.Record) (idem.Record, error) {
	return d.b.Swap(ctx, key, r.Token, idem.Record{Token: r.Token + buried, Status: idem.Released, Attempt: r.Attempt, Fence: r.Fence, TTL: 1})
}

const buried = " expired"

// Sweep deletes what is expired by b's clock, and then what is so by the Clock
// alone.
func (d *aging) Sweep(ctx context.Context, limit int) (int, error) {
	n, err := d.b.Sweep(ctx, limit)
	if err != nil {
		return n, err
	}
	aged := 0
	for _, key := range d.c.known() {
		if n+aged >= limit {
			break
		}
		r, err := d.b.Get(ctx, key)
		if err != nil {
			return n, err
		}
		if r.Token == "" || d.c.age(r).Token != "" {
			continue
		}
		got, err := d.bury(ctx, key, r)
		if err != nil {
			return n, err
		}
		if got.Token == r.Token+buried {
			aged++
		}
	}
	if aged > 0 {
		_, err = d.b.Sweep(ctx, aged)
	}
	return n + aged, err
}

type agingLister struct {
	l idem.Lister
	c *Clock
}

// List filters by lapsed lease itself: b knows nothing of the Clock.
func (d agingLister) List(ctx context.Context, q idem.Query) ([]idem.Entry, string, error) {
	wide := q
	wide.Lapsed = false
	entries, next, err := d.l.List(ctx, wide)
	kept := entries[:0]
	for _, e := range entries {
		e.Record = d.c.age(e.Record)
		if e.Record.Token != "" && q.Matches(e.Key, e.Record) {
			kept = append(kept, e)
		}
	}
	return kept, next, err
}

type agingWatcher struct {
	w idem.Watcher
	d *aging
}

// Watch returns early when time is moved, so that whoever waits looks again.
func (d agingWatcher) Watch(ctx context.Context, key, token string) error {
	d.d.c.mu.Lock()
	moved := d.d.c.moved
	d.d.c.mu.Unlock()
	if r, err := d.d.Get(ctx, key); err == nil && r.Token != token {
		return nil
	}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = d.w.Watch(watching, key, token)
	}()
	select {
	case <-done:
		return err
	case <-moved:
		cancel()
		<-done
		return nil
	}
}

// known returns the keys that were written through the Clock's backend.
func (c *Clock) known() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.keys))
}

// add returns the sum of two durations, or the largest one.
func add(a, b time.Duration) time.Duration {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
