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
// and a lane takes of those who queue as many as it is to carry, in one round trip
// and one commit, again and again until the others can do the rest. What that saves is what
// dominates: round trips, statements, and flushes of the log. Lanes carry about
// the same, so that the server is at work on one while this program is on another;
// otherwise one would carry nearly all, and the others a call each. Where there are
// not enough for two, one carries all.
type lanes struct {
	b     *Backend
	limit limits
	usual int // at most so many lanes work at the same time when all is well

	mu      sync.Mutex
	singles int // calls that run by themselves
	working []*lane
	queue   []*call
	watched bool // help is coming if those who queue need it
}

// A lane is at work on calls.
type lane struct {
	calls int
	since time.Time
}

// limits say how calls of one kind are put together.
type limits struct {
	singles int // calls that run by themselves at the same time
	least   int // so many calls are worth another lane
	most    int // so many at most go together, unless one caller wants more
}

// Commits wait for the disk, which one batch does as fast as one call: 8 to 16 callers
// who write are quicker on one lane than on two, by 5 to 10 %, and cost a quarter less
// of both processors. Reads use the processor, and are quickest side by side until
// there are many.
var (
	forWrites = limits{singles: 1, least: 12, most: 256}
	forReads  = limits{singles: 8, least: 4, most: 64}
)

const (
	usualLanes = 2 // one more makes batches smaller, and each of them costs a commit
	mostLanes  = 8

	// A lane that is at work for so long may be stuck: a connection that went
	// silent must not hold up everybody.
	stuckAfter = 100 * time.Millisecond

	// What shares a round trip shares a transaction, and a fate: not too many
	// calls of one caller, and not too many bytes.
	largeBatch = 512
	heavyBatch = 1 << 20

	// So many statements for one key each take the server less than one for all.
	smallBatch = 8
)

// A call is an operation that somebody waits for.
type call struct {
	ctx    context.Context
	op     *operation
	queued time.Time
	with   int // how many calls its caller makes together

	// Set before done is closed.
	reply reply
	err   error
	done  chan struct{}
}

func newLanes(b *Backend, limit limits) *lanes {
	l := &lanes{b: b, limit: limit, usual: usualLanes}
	if b.pgx.pool == nil {
		l.limit.singles, l.usual = 1, 1 // there is one connection
	}
	return l
}

// ask runs an operation and returns its reply. Of an error of its statement only
// its own caller learns; others learn of a lost connection.
func (l *lanes) ask(ctx context.Context, op *operation) (reply, error) {
	l.mu.Lock()
	now := time.Now()
	if lanes, _ := l.atWork(now); lanes == 0 && l.singles < l.limit.singles {
		l.singles++
		l.mu.Unlock()
		rep, err := l.b.alone(ctx, op)
		l.mu.Lock()
		l.singles--
		l.mu.Unlock()
		return rep, err
	}
	c := &call{ctx: ctx, op: op, done: make(chan struct{}), queued: now}
	l.push(now, c)
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
func (l *lanes) askAll(ctx context.Context, ops []*operation) []result {
	calls := make([]*call, len(ops))
	now := time.Now()
	for i, op := range ops {
		calls[i] = &call{ctx: ctx, op: op, done: make(chan struct{}), queued: now, with: len(ops)}
	}
	l.mu.Lock()
	l.push(now, calls...)
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

// push queues calls, and opens the lanes that they are worth. l.mu is held.
func (l *lanes) push(now time.Time, calls ...*call) {
	if !l.watched {
		l.watched = true
		time.AfterFunc(stuckAfter, l.help)
	}
	l.queue = append(l.queue, calls...)
	most := max(l.limit.most, min(len(calls), largeBatch))
	for rest := len(l.queue); l.worthwhile(now, rest); rest -= most {
		l.open(now)
	}
}

// atWork returns how many lanes are at work, and on how many calls. Those that
// are stuck do not count. l.mu is held.
func (l *lanes) atWork(now time.Time) (lanes, calls int) {
	for _, ln := range l.working {
		if now.Sub(ln.since) < stuckAfter || l.usual == 1 {
			lanes++
			calls += ln.calls
		}
	}
	return lanes, calls
}

// worthwhile reports whether so many calls are worth a lane more. If not, those
// that are at work will carry them, or the timer opens one: where the server is
// slow all lanes look stuck, and the program needs connections too. l.mu is held.
func (l *lanes) worthwhile(now time.Time, queued int) bool {
	if queued <= 0 || len(l.working) >= mostLanes {
		return false
	}
	lanes, calls := l.atWork(now)
	if lanes == 0 {
		return len(l.working) < l.usual
	}
	return lanes < l.usual && queued >= l.limit.least && queued*l.usual >= calls
}

// open opens a lane, which closes itself when there is nothing for it to do. l.mu
// is held.
func (l *lanes) open(now time.Time) {
	ln := &lane{since: now}
	l.working = append(l.working, ln)
	go func() {
		for {
			l.gather()
			calls := l.take(ln)
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
		if now == before || now >= l.usual*l.limit.most {
			return
		}
		before = now
		runtime.Gosched()
	}
}

// take returns the calls that a lane is to run: a share of all, or what one caller
// wants together. If there are none for it, it closes the lane.
func (l *lanes) take(ln *lane) []*call {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	again := ln.calls > 0
	l.working = slices.DeleteFunc(l.working, func(other *lane) bool { return other == ln })
	if len(l.queue) == 0 {
		return nil
	}
	lanes, others := l.atWork(now)
	if again && lanes > 0 && !l.worthwhile(now, len(l.queue)) {
		return nil
	}
	all := len(l.queue) + others
	side := max(1, min(l.usual, all/l.limit.least)) // lanes that all are worth
	most := min(l.limit.most, (all+side-1)/side)
	most = min(len(l.queue), max(most, min(l.queue[0].with, largeBatch)))
	n, bytes := 0, 0
	for n < most && (n == 0 || bytes < heavyBatch) {
		bytes += l.queue[n].op.size()
		n++
	}
	calls := slices.Clone(l.queue[:n])
	l.queue = slices.Delete(l.queue, 0, n)
	ln.calls, ln.since = n, now
	l.working = append(l.working, ln)
	return calls
}

// help opens a lane more when somebody has queued for long, and comes again for as
// long as somebody queues. It is not called off whenever the queue is empty for a
// moment: to set a timer for every batch costs more than to look in vain now and then.
func (l *lanes) help() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watched = len(l.queue) > 0; !l.watched {
		return
	}
	now := time.Now()
	rest := stuckAfter - now.Sub(l.queue[0].queued)
	if rest <= 0 {
		if len(l.working) < mostLanes && l.b.pgx.pool != nil {
			l.open(now)
		}
		rest = stuckAfter
	}
	time.AfterFunc(rest, l.help)
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
