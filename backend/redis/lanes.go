package redis

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/idem-go/idem"
)

// A request is one caller's part of a round trip: a Get, or a Swap if it has a
// write.
type request struct {
	ctx   context.Context
	op    string
	name  string
	write *write

	taken bool          // out of the queue; guarded by lanes.mu
	done  chan struct{} // closed when what follows is set

	epoch  string // that it was sent with
	answer answer
	err    error
}

// A write is what a Swap stores.
type write struct {
	old, token string
	encoded    []byte
	reclaim    int64 // milliseconds
	sent       int   // how often it was written to a connection, unless that was refused
}

// MarshalBinary is how go-redis asks for an argument whenever it writes it to a
// connection, so it knows how often the command may have been carried out.
func (w *write) MarshalBinary() ([]byte, error) {
	w.sent++
	return w.encoded, nil
}

// lanes share round trips between callers. Whoever finds a lane free starts it; it
// sends what is queued in one go, until the queue is empty. A lone caller does not
// wait for company.
type lanes struct {
	mu      sync.Mutex
	queue   []*request
	running int
}

const (
	lanesUsual = 2
	lanesMost  = 16

	// A request that was not taken for so long is behind a connection that hangs.
	stalledAfter = 25 * time.Millisecond

	maxBatch      = 512
	maxBatchBytes = 1 << 20
)

// send queues r and waits for its answer or for ctx.
func (b *Backend) send(ctx context.Context, r *request) error {
	r.ctx, r.done, r.taken, r.err = ctx, make(chan struct{}), false, nil
	l := &b.lanes
	if l.push(r) {
		if ctx.Done() != nil {
			go b.drive()
		} else {
			b.driveFor(r) // it need not be able to leave, and is spared two switches
		}
		select {
		case <-r.done:
			return r.err
		case <-ctx.Done():
			return l.leave(ctx, r)
		}
	}
	stalled := time.NewTimer(stalledAfter)
	defer stalled.Stop()
	for {
		select {
		case <-r.done:
			return r.err
		case <-ctx.Done():
			return l.leave(ctx, r)
		case <-stalled.C:
			if l.bypass(r) {
				go b.drive()
			}
			stalled.Reset(stalledAfter)
		}
	}
}

// push queues r and reports whether its caller has to start a lane.
func (l *lanes) push(r *request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, r)
	if l.running >= lanesUsual {
		return false
	}
	l.running++
	return true
}

// bypass reports whether another lane has to be started for a request that waits.
func (l *lanes) bypass(r *request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.taken || l.running >= lanesMost {
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
		if r.write != nil {
			size += len(r.write.encoded)
		}
	}
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	if len(batch) == 0 {
		l.running--
	}
	return batch
}

// drive is a lane.
func (b *Backend) drive() {
	var batch []*request
	for {
		if len(batch) > 1 {
			// Those whom the last batch has woken may want to be in the next.
			runtime.Gosched()
		}
		if batch = b.lanes.take(batch[:0]); len(batch) == 0 {
			return
		}
		b.trip(batch)
		clear(batch) // its memory is used again
	}
}

// driveFor is a lane in the goroutine of the caller whose request r is, as long as
// that has no answer.
func (b *Backend) driveFor(r *request) {
	var one [1]*request
	batch := one[:0]
	for {
		if batch = b.lanes.take(batch[:0]); len(batch) == 0 {
			return
		}
		b.trip(batch)
		select {
		case <-r.done:
			if b.lanes.handOver() {
				go b.drive()
			}
			return
		default:
		}
	}
}

// handOver reports whether a lane has to go on without its caller, and ends it if
// not.
func (l *lanes) handOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) > 0 {
		return true
	}
	l.running--
	return false
}
