package redis

import (
	"context"
	"runtime"
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

// refused notes that the answer was that nothing was done.
func (r *request) refused() {
	if r.sent == 1 {
		r.sent = 0
	}
}

// lanes share round trips between callers. Whoever finds a lane free starts it; it
// sends what is queued in one go, until the queue is empty. A lone caller does not
// wait for company.
//
// A lane whose connection hangs is set aside: it does not count any more, so that
// those who come later take another one.
type lanes struct {
	mu      sync.Mutex
	queue   []*request
	running int
	aside   int
}

const (
	lanesUsual = 2
	lanesAside = 16 // at most

	// A trip that takes so long may be one over a connection that hangs.
	asideAfter = 25 * time.Millisecond

	maxBatch      = 512
	maxBatchBytes = 1 << 20
)

// send queues r and waits for its answer or for ctx.
func (b *Backend) send(ctx context.Context, r *request) error {
	r.ctx, r.done, r.taken, r.err = ctx, make(chan struct{}), false, nil
	switch {
	case !b.lanes.push(r):
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

// push queues r and reports whether its caller has to start a lane.
func (l *lanes) push(r *request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, r)
	return l.start()
}

// start reports whether a lane has to be started.
func (l *lanes) start() bool {
	if len(l.queue) == 0 || l.running >= lanesUsual {
		return false
	}
	l.running++
	return true
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

// take takes the next batch out of the queue, or ends the lane if there is none.
func (l *lanes) take(batch []*request) []*request {
	l.mu.Lock()
	defer l.mu.Unlock()
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
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	if len(batch) == 0 {
		l.running--
	}
	return batch
}

// drive is a lane. With a request it is in the goroutine of the caller whose that
// is, and leaves when he has his answer.
func (b *Backend) drive(own *request) {
	var few [8]*request
	batch := few[:0]
	for {
		if len(batch) > 1 {
			// Those whom the last batch has woken may want to be in the next.
			runtime.Gosched()
		}
		clear(batch)
		if batch = b.lanes.take(batch[:0]); len(batch) == 0 {
			return
		}
		if !b.watched(batch) {
			return
		}
		if own == nil {
			continue
		}
		select {
		case <-own.done:
			if b.lanes.pass() {
				go b.drive(nil)
			}
			return
		default:
		}
	}
}

// pass ends the lane of a caller who leaves, and reports whether another has to go
// on with it.
func (l *lanes) pass() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	return l.start()
}

// watched makes a trip. It reports false if the lane was set aside meanwhile and is
// not needed any more.
func (b *Backend) watched(batch []*request) bool {
	l := &b.lanes
	var isOver, isAside bool // guarded by l.mu
	late := time.AfterFunc(asideAfter, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if isOver || l.aside == lanesAside {
			return
		}
		isAside = true
		l.aside++
		l.running--
		if l.start() {
			go b.drive(nil)
		}
	})
	b.trip(batch)
	late.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	isOver = true
	if !isAside {
		return true
	}
	l.aside--
	return l.start()
}
