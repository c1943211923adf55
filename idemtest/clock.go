package idemtest

import (
	"context"
	"math"
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
	moved   chan struct{}    // closed when time is moved
}

// A stamp is when a record was written, by the Clock.
type stamp struct {
	skipped time.Duration
	lapses  int
}

// Aging returns b with records whose age the returned Clock adds to. It is a
// Lister and a Watcher if b is. An aged record that has outlived its TTL is no
// record any more, as in every storage; but Sweep is b's own and does not delete
// it yet.
func Aging(b idem.Backend) (idem.Backend, *Clock) {
	c := &Clock{written: make(map[string]stamp), moved: make(chan struct{})}
	core := &aging{b, c}
	return decorated(core, b,
		func(l idem.Lister) idem.Lister { return agingLister{l, c} },
		func(w idem.Watcher) idem.Watcher { return agingWatcher{w, core} }), c
}

// Advance makes all that is stored now older by d. A negative d does nothing: no
// storage's records become younger.
func (c *Clock) Advance(d time.Duration) {
	c.move(func() { c.skipped += min(max(0, d), math.MaxInt64-c.skipped) })
}

// Lapse lets the lease of every claim that is stored now run out, however long
// it is. It is what a process does that is stopped or dies for those who come
// after it. A claim that is extended afterwards has a lease again.
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
func (c *Clock) stamp(token string) (skipping bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.written[token]; !ok {
		c.written[token] = stamp{c.skipped, c.lapses}
	}
	return c.skipped > 0
}

// age returns r with its age by the Clock, or the zero Record if it is expired.
func (c *Clock) age(r idem.Record) idem.Record {
	if r.Token == "" {
		return r
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.written[r.Token] // of another handle: as if before all that was skipped
	more := c.skipped - s.skipped
	r.Age += min(more, math.MaxInt64-r.Age)
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
	if skipping := d.c.stamp(new.Token); skipping && old != "" {
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
		if old != "" || present.Token != "" || got.Token == "" {
			return present, nil
		}
		replaced = got.Token
	}
}

func (d *aging) Sweep(ctx context.Context, limit int) (int, error) { return d.b.Sweep(ctx, limit) }

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
	done := make(chan error, 1)
	go func() { done <- d.w.Watch(watching, key, token) }()
	select {
	case err := <-done:
		return err
	case <-moved:
		cancel()
		<-done
		return nil
	}
}
