package redis

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/idem-go/idem"
)

// A request is one caller's part of a round trip: a Get or a Swap.
type request struct {
	ctx  context.Context
	op   string
	name string

	swap       bool // what follows is set
	old, token string
	encoded    []byte
	reclaim    int64 // milliseconds
	sent       int   // how often it may have been carried out

	taken bool          // out of the queue; guarded by lanes.mu
	done  chan struct{} // closed when what follows is set

	epoch  string // that it was sent with
	answer answer
	err    error
}

// MarshalBinary is how go-redis asks for an argument whenever it writes it to a
// connection, so the request knows how often it may have been carried out.
func (r *request) MarshalBinary() ([]byte, error) {
	r.sent++
	return r.encoded, nil
}

func (r *request) prepare(op string) {
	r.op = op
	if !r.swap {
		r.sent = 1 // what it does without effect is nothing to say no effect of
	}
}

// refused notes that the answer was that nothing was done.
func (r *request) refused() {
	if r.sent == 1 {
		r.sent = 0
	}
}

// lanes share round trips between callers. Whoever finds a lane free starts it; it
// sends what is queued in one go, again and again until the others can do the rest.
// A lone caller does not wait for company. Otherwise what is queued has to be worth
// a trip of its own, or one lane would carry nearly all, and the others one request
// each.
//
// A lane whose connection hangs is set aside: it does not count any more, so that
// those who wait and come later take another one.
type lanes struct {
	mu      sync.Mutex
	queue   []*request
	busy    []*lane
	running int  // of busy, that are not set aside
	watched bool // a timer will look after those who wait
}

// A lane is what carries out batches, one after another.
type lane struct {
	n     int       // how many requests the last batch has
	since time.Time // the last batch was taken
	aside bool
}

const (
	lanesUsual = 4
	lanesAside = 16 // at most

	// A trip is worth while with one request for so many that are on their way.
	onTheirWay = 3

	// A trip that takes so long may be one over a connection that hangs.
	asideAfter = 25 * time.Millisecond

	maxBatch      = 512
	maxBatchBytes = 1 << 20
)

// queued makes r ready for the queue.
func (r *request) queued(ctx context.Context) {
	r.ctx, r.done, r.taken, r.err = ctx, make(chan struct{}), false, nil
}

// send queues r and waits for its answer or for ctx.
func (b *Backend) send(ctx context.Context, r *request) error {
	r.queued(ctx)
	switch {
	case !b.lanes.push(r):
		b.watch()
	case ctx.Done() == nil:
		b.drive(r) // it need not be able to leave, and is spared two switches
	default:
		go b.drive(nil)
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return b.lanes.leave(ctx, r)
	}
}

// start queues requests that are ready for it, together.
func (b *Backend) start(requests []*request) {
	if b.lanes.push(requests...) {
		go b.drive(nil)
	} else {
		b.watch()
	}
}

// await waits for the answers to requests, or for ctx.
func (b *Backend) await(ctx context.Context, requests []*request) []error {
	errs := make([]error, len(requests))
	for i, r := range requests {
		select {
		case <-r.done:
			errs[i] = r.err
			continue
		case <-ctx.Done():
		}
		select {
		case <-r.done:
			errs[i] = r.err
		default:
			errs[i] = b.lanes.leave(ctx, r)
		}
	}
	return errs
}

// push queues requests and reports whether their caller has to start a lane.
func (l *lanes) push(requests ...*request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, requests...)
	return l.start()
}

// start reports whether a lane has to be started.
func (l *lanes) start() bool {
	if l.running >= lanesUsual || !l.worthwhile() {
		return false
	}
	l.running++
	return true
}

// worthwhile reports whether what is queued is worth a trip of its own. If not, a
// lane that is on its way will take it along.
func (l *lanes) worthwhile() bool {
	n := 0
	for _, ln := range l.busy {
		if !ln.aside {
			n += ln.n
		}
	}
	return len(l.queue) > 0 && len(l.queue)*onTheirWay >= n
}

// leave gives up a request. It has no effect if it was not taken.
func (l *lanes) leave(ctx context.Context, r *request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !r.taken {
		r.taken = true // the lane that finds it passes it by
		return idem.NoEffect(gaveUp(ctx, r.op, "waiting for a connection"))
	}
	return gaveUp(ctx, r.op, "waiting for the answer")
}

// take takes the next batch out of the queue. It ends the lane if there is none, or
// others do its work. It reports whether somebody has to wait.
func (l *lanes) take(ln *lane, batch []*request) (_ []*request, rest bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln.n = 0
	switch {
	case ln.aside:
		if !l.start() {
			l.end(ln)
			return nil, len(l.queue) > 0
		}
		ln.aside = false
	case !ln.since.IsZero() && !l.worthwhile():
		l.end(ln)
		return nil, len(l.queue) > 0
	}
	n, size := 0, 0
	for n < len(l.queue) && len(batch) < maxBatch && size < maxBatchBytes {
		r := l.queue[n]
		n++
		if r.taken {
			continue
		}
		r.taken = true
		batch = append(batch, r)
		size += len(r.encoded)
	}
	left := copy(l.queue, l.queue[n:])
	clear(l.queue[left:])
	l.queue = l.queue[:left]
	if len(batch) == 0 {
		l.end(ln)
		return nil, false
	}
	if ln.since.IsZero() {
		l.busy = append(l.busy, ln)
	}
	ln.n, ln.since = len(batch), time.Now()
	return batch, left > 0
}

// end ends a lane.
func (l *lanes) end(ln *lane) {
	if i := slices.Index(l.busy, ln); i >= 0 {
		l.busy = slices.Delete(l.busy, i, i+1)
	}
	if !ln.aside {
		l.running--
	}
}

// drive is a lane. With a request it is in the goroutine of the caller whose that
// is, and ends when he has his answer.
func (b *Backend) drive(own *request) {
	ln := &lane{}
	var few [8]*request
	batch := few[:0]
	for {
		if len(batch) > 1 {
			// Those whom the last batch has woken may want to be in the next.
			runtime.Gosched()
		}
		clear(batch)
		var rest bool
		if batch, rest = b.lanes.take(ln, batch[:0]); rest {
			b.watch()
		}
		if len(batch) == 0 {
			return
		}
		b.trip(batch)
		if own == nil {
			continue
		}
		select {
		case <-own.done:
			if b.lanes.pass(ln) {
				go b.drive(nil)
			}
			return
		default:
		}
	}
}

// pass ends the lane of a caller who leaves, and reports whether another has to go
// on with it.
func (l *lanes) pass(ln *lane) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(ln)
	return l.start()
}

// watch has a timer look after those who wait. While nobody does there is none.
func (b *Backend) watch() {
	l := &b.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.watched {
		l.watched = true
		time.AfterFunc(asideAfter, b.setAside)
	}
}

// setAside sets lanes that hang aside, and starts others in their place.
func (b *Backend) setAside() {
	l := &b.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ln := range l.busy {
		if !ln.aside && time.Since(ln.since) >= asideAfter && len(l.busy)-l.running < lanesAside {
			ln.aside = true
			l.running--
		}
	}
	for range lanesUsual {
		if l.start() {
			go b.drive(nil)
		}
	}
	l.watched = len(l.queue) > 0
	if l.watched {
		time.AfterFunc(asideAfter, b.setAside)
	}
}
