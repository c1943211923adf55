package conformancetest

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/idem-go/idem"
)

// A clock lets time pass for what is stored. Cases think in hours. Where the
// Harness can make records older an hour passes at once, else the stored
// durations are divided by scale, the ages that come back are multiplied with
// it, and an hour is some milliseconds of waiting.
type clock struct {
	e       *env
	scale   int64         // 1 with Harness.Advance and for cases without time
	slack   time.Duration // how far two clocks may read apart, in the time of the case
	started time.Time
	skipped time.Duration // by Harness.Advance

	mu     sync.Mutex
	waited time.Duration // on purpose
}

func newClock(e *env, timed bool, scale int64) *clock {
	c := &clock{e: e, scale: 1, slack: time.Second, started: time.Now()}
	if e.h.Advance == nil {
		if timed {
			c.scale = scale
		}
		c.slack = time.Duration(c.scale) * 5 * time.Millisecond
	}
	return c
}

// now returns the time since the case began, in the time of the case.
func (c *clock) now() time.Duration {
	return c.skipped + time.Since(c.started)*time.Duration(c.scale)
}

// pass lets d pass, and no less.
func (c *clock) pass(d time.Duration) {
	c.e.live()
	if c.e.h.Advance != nil {
		c.e.h.Advance(c.e.t, c.e.raw, d)
		c.skipped += d
		return
	}
	// The one thing to wait for is time itself.
	d += c.slack
	c.mu.Lock()
	c.waited += d
	c.mu.Unlock()
	wait := time.NewTimer(d / time.Duration(c.scale))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-c.e.ctx.Done():
		c.e.fatalf("the case ran out of time")
	}
}

// late reports whether so much time has passed on its own that a fault proves
// nothing: records may have expired that the case takes for live. The last try
// has time enough.
func (c *clock) late() bool {
	if c.scale == 1 || c.scale == lastScale {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()-c.waited > 5*time.Hour
}

// view returns b with the time of the case.
func (c *clock) view(b idem.Backend) idem.Backend {
	if c.scale == 1 {
		return b
	}
	h := &hasty{b, time.Duration(c.scale)}
	l, lists := b.(idem.Lister)
	w, watches := b.(idem.Watcher)
	switch {
	case lists && watches:
		return struct {
			*hasty
			hastyLister
			idem.Watcher
		}{h, hastyLister{h, l}, w}
	case lists:
		return struct {
			*hasty
			hastyLister
		}{h, hastyLister{h, l}}
	case watches:
		return struct {
			*hasty
			idem.Watcher
		}{h, w}
	}
	return h
}

// A moment brackets what happened in a call: not before and not after.
type moment struct{ from, to time.Duration }

// during returns when fn ran.
func (c *clock) during(fn func()) moment {
	from := c.now()
	fn()
	return moment{from, c.now()}
}

// between returns the shortest and the longest time from one moment to another,
// with what two clocks may differ by.
func (c *clock) between(a, b moment) (least, most time.Duration) {
	return max(0, b.from-a.to-c.slack), b.to - a.from + c.slack
}

// hasty is a Backend in which time passes faster: what it says are hours it
// stores as milliseconds.
type hasty struct {
	b     idem.Backend
	scale time.Duration
}

func (h *hasty) Get(ctx context.Context, key string) (idem.Record, error) {
	r, err := h.b.Get(ctx, key)
	return h.out(r), err
}

func (h *hasty) Swap(ctx context.Context, key, old string, r idem.Record) (idem.Record, error) {
	got, err := h.b.Swap(ctx, key, old, h.in(r))
	return h.out(got), err
}

// SwapAll makes every hasty backend a Batcher; what is none swaps one by one.
func (h *hasty) SwapAll(ctx context.Context, swaps []idem.Swap) []idem.Swapped {
	swapped := make([]idem.Swapped, len(swaps))
	b, ok := h.b.(idem.Batcher)
	if !ok {
		for i, s := range swaps {
			swapped[i].Record, swapped[i].Err = h.Swap(ctx, s.Key, s.Old, s.New)
		}
		return swapped
	}
	stored := slices.Clone(swaps)
	for i := range stored {
		stored[i].New = h.in(stored[i].New)
	}
	swapped = b.SwapAll(ctx, stored)
	for i := range swapped {
		swapped[i].Record = h.out(swapped[i].Record)
	}
	return swapped
}

func (h *hasty) Sweep(ctx context.Context, limit int) (int, error) { return h.b.Sweep(ctx, limit) }

// in rounds up: a duration above 0 stays above 0.
func (h *hasty) in(r idem.Record) idem.Record {
	up := func(d time.Duration) time.Duration {
		q := d / h.scale
		if d%h.scale > 0 {
			q++
		}
		return q
	}
	r.Lease, r.TTL = up(r.Lease), up(r.TTL)
	return r
}

// out stays within what a duration can hold.
func (h *hasty) out(r idem.Record) idem.Record {
	down := func(d time.Duration) time.Duration {
		if d > math.MaxInt64/h.scale {
			return math.MaxInt64
		}
		return d * h.scale
	}
	r.Lease, r.TTL, r.Age = down(r.Lease), down(r.TTL), down(r.Age)
	return r
}

type hastyLister struct {
	h *hasty
	l idem.Lister
}

func (h hastyLister) List(ctx context.Context, q idem.Query) ([]idem.Entry, string, error) {
	entries, next, err := h.l.List(ctx, q)
	for i := range entries {
		entries[i].Record = h.h.out(entries[i].Record)
	}
	return entries, next, err
}
