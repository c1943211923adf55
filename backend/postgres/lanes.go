package postgres

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Lanes are how calls share connections. A call that comes alone runs at once, on
// a connection of its own. When more come than may run side by side they queue,
// and a lane takes all who queue together, in one round trip and one commit,
// again and again until nobody queues. What that saves is what dominates: round
// trips, statements, and flushes of the log. Nobody waits for company.
type lanes struct {
	b     *Backend
	limit limits

	mu      sync.Mutex
	singles int // calls that run by themselves
	busy    int // lanes at work
	queue   []*call
	help    *time.Timer // opens a lane more when those at work are stuck
}

// limits say how calls of one kind are put together.
type limits struct {
	singles int // calls that run by themselves at the same time
	lanes   int // lanes that work at the same time when all is well
	crowd   int // so many in the queue are worth the next lane
}

// Commits wait for the disk, which one batch does as fast as one call; reads use
// the processor, and are quickest side by side until there are many.
var (
	forWrites = limits{singles: 1, lanes: 2, crowd: 64}
	forReads  = limits{singles: 8, lanes: 3, crowd: 16}
)

const (
	mostLanes  = 8
	stuckAfter = 100 * time.Millisecond

	// What shares a round trip shares a transaction, and a fate: not too many
	// calls, and not too many bytes.
	largeBatch = 512
	heavyBatch = 1 << 20

	// So many statements for one key each take the server less than one for all.
	smallBatch = 3
)

// A call is an operation that somebody waits for.
type call struct {
	ctx    context.Context
	op     operation
	queued time.Time

	// Set before done is closed.
	reply reply
	err   error
	done  chan struct{}
}

func newLanes(b *Backend, limit limits) *lanes {
	if b.pgx.pool == nil {
		limit.singles, limit.lanes = 1, 1 // there is one connection
	}
	return &lanes{b: b, limit: limit}
}

// ask runs an operation and returns its reply. Of an error of its statement only
// its own caller learns; others learn of a lost connection.
func (l *lanes) ask(ctx context.Context, op operation) (reply, error) {
	l.mu.Lock()
	if l.busy == 0 && l.singles < l.limit.singles {
		l.singles++
		l.mu.Unlock()
		rep, err := l.b.alone(ctx, op)
		l.mu.Lock()
		l.singles--
		l.mu.Unlock()
		return rep, err
	}
	c := &call{ctx: ctx, op: op, done: make(chan struct{}), queued: time.Now()}
	l.queue = append(l.queue, c)
	if len(l.queue) == 1 {
		l.watch()
	}
	if l.busy == 0 || l.busy < l.limit.lanes && len(l.queue) >= l.limit.crowd {
		l.open()
	}
	l.mu.Unlock()

	select {
	case <-c.done:
		return c.reply, c.err
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.queue, c); i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
		return reply{}, &unavailable{ctx.Err()}
	}
	return reply{}, ctx.Err() // it is on its way
}

// askAll runs operations in as few round trips as they fit in.
func (l *lanes) askAll(ctx context.Context, ops []operation) []result {
	calls := make([]*call, len(ops))
	now := time.Now()
	for i, op := range ops {
		calls[i] = &call{ctx: ctx, op: op, done: make(chan struct{}), queued: now}
	}
	l.mu.Lock()
	if len(l.queue) == 0 {
		l.watch()
	}
	l.queue = append(l.queue, calls...)
	for l.busy == 0 || l.busy < l.limit.lanes && len(l.queue) > l.busy*largeBatch {
		l.open()
	}
	l.mu.Unlock()

	results := make([]result, len(calls))
	for i, c := range calls {
		select {
		case <-c.done:
			results[i] = result{c.reply, c.err}
			continue
		case <-ctx.Done():
		}
		l.leave(ctx, calls[i:], results[i:])
		break
	}
	return results
}

// leave gives up calls that are not answered.
func (l *lanes) leave(ctx context.Context, calls []*call, results []result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	leaves, queued := make(map[*call]bool, len(calls)), make(map[*call]bool)
	for _, c := range calls {
		leaves[c] = true
	}
	l.queue = slices.DeleteFunc(l.queue, func(c *call) bool {
		queued[c] = leaves[c]
		return leaves[c]
	})
	for i, c := range calls {
		select {
		case <-c.done:
			results[i] = result{c.reply, c.err}
		default:
			results[i].err = ctx.Err() // it is on its way
			if queued[c] {
				results[i].err = &unavailable{ctx.Err()}
			}
		}
	}
}

// open opens a lane, which closes itself when nobody queues. l.mu is held.
func (l *lanes) open() {
	l.busy++
	go func() {
		for {
			l.gather()
			calls := l.take()
			if calls == nil {
				return
			}
			l.run(calls)
		}
	}()
}

// gather lets those who have just been answered come back with what they want
// next, so that it goes into the same batch.
func (l *lanes) gather() {
	for before := -1; ; {
		l.mu.Lock()
		now := len(l.queue)
		l.mu.Unlock()
		if now == before || now >= largeBatch {
			return
		}
		before = now
		runtime.Gosched()
	}
}

// take returns the calls that a lane is to run. If there are none it closes the
// lane.
func (l *lanes) take() []*call {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, bytes := 0, 0
	for n < min(len(l.queue), largeBatch) && (n == 0 || bytes < heavyBatch) {
		bytes += l.queue[n].op.size()
		n++
	}
	if n == 0 {
		l.busy--
		l.help.Stop()
		return nil
	}
	calls := slices.Clone(l.queue[:n])
	l.queue = slices.Delete(l.queue, 0, n)
	return calls
}

// watch opens another lane when those at work do not come back: a connection
// that went silent must not hold up everybody. l.mu is held.
func (l *lanes) watch() {
	if l.help != nil {
		l.help.Reset(stuckAfter)
		return
	}
	l.help = time.AfterFunc(stuckAfter, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.queue) == 0 {
			return
		}
		if time.Since(l.queue[0].queued) >= stuckAfter && l.busy < mostLanes && l.b.pgx.pool != nil {
			l.open()
		}
		l.help.Reset(stuckAfter)
	})
}

// run runs calls and answers them.
func (l *lanes) run(calls []*call) {
	calls = slices.DeleteFunc(calls, func(c *call) bool {
		if c.ctx.Err() == nil {
			return false
		}
		c.err = &unavailable{c.ctx.Err()}
		close(c.done)
		return true
	})
	if len(calls) > 1 {
		ctx, cancel := whileWanted(calls)
		share := l.b.together
		if len(calls) <= smallBatch {
			share = l.b.few
		}
		err := share(ctx, calls)
		cancel()
		if err == nil || !refused(err) {
			for _, c := range calls {
				if err != nil {
					c.err = err
				}
				close(c.done)
			}
			return
		}
		// One of them is at fault, and the transaction that they shared is
		// undone. Each runs by itself.
	}
	for _, c := range calls {
		c.reply, c.err = l.b.alone(c.ctx, c.op)
		close(c.done)
	}
}

// whileWanted returns a context that is cancelled when the last of the callers
// has given up.
func whileWanted(calls []*call) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(calls[0].ctx))
	var waiting atomic.Int64
	waiting.Store(int64(len(calls)))
	stops := make([]func() bool, 0, len(calls))
	for _, c := range calls {
		if c.ctx.Done() == nil {
			continue // he never gives up
		}
		stops = append(stops, context.AfterFunc(c.ctx, func() {
			if waiting.Add(-1) == 0 {
				cancel()
			}
		}))
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}
