package postgres

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// Lanes are how calls share connections. A few statements run at a time; calls
// that come while all lanes are busy queue up, and the lane that is free next
// takes them all, in one round trip and one commit. A lone caller finds a free
// lane and waits for nobody. What they save is what dominates: round trips,
// and flushes of the log.
type lanes struct {
	src   *pgxSource
	width int // lanes that are used when all is well

	mu    sync.Mutex
	busy  int // lanes at work
	queue []*call
	help  *time.Timer // opens a lane more when those at work are stuck
}

const (
	normalLanes = 2
	mostLanes   = 8
	largeBatch  = 256 // calls in one round trip; they share one commit and its fate
	stuckAfter  = 100 * time.Millisecond
)

// A call is one statement that somebody waits for.
type call struct {
	ctx    context.Context
	sql    string
	args   []any
	queued time.Time

	// Set before done is closed.
	reply reply
	err   error
	done  chan struct{}
}

func newLanes(src *pgxSource) *lanes {
	l := &lanes{src: src, width: normalLanes}
	if src.pool == nil {
		l.width = 1
	}
	return l
}

// ask runs a statement and returns its reply. Of an error of the statement
// only its own caller learns; others learn of a lost connection.
func (l *lanes) ask(ctx context.Context, sql string, args []any) (reply, error) {
	c := &call{ctx: ctx, sql: sql, args: args}
	l.mu.Lock()
	if l.busy < l.width {
		l.busy++
		l.mu.Unlock()
		defer l.next()
		l.alone(c)
		return c.reply, c.err
	}
	c.done, c.queued = make(chan struct{}), time.Now()
	l.queue = append(l.queue, c)
	if len(l.queue) == 1 {
		l.watch()
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

// alone runs a call by itself.
func (l *lanes) alone(c *call) {
	c.err = l.src.with(c.ctx, func(s session) (err error) {
		c.reply, err = queryReply(c.ctx, s, c.sql, c.args)
		return err
	})
}

// next gives the lane of a call that has ended to those who queue.
func (l *lanes) next() {
	if calls := l.take(); calls != nil {
		go func() {
			for ; calls != nil; calls = l.take() {
				l.run(calls)
			}
		}()
	}
}

// take returns the calls that a free lane is to run. If there are none the lane
// is closed.
func (l *lanes) take() []*call {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.queue), largeBatch)
	if n == 0 {
		l.busy--
		if l.help != nil {
			l.help.Stop()
		}
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
		stuck := len(l.queue) > 0 && time.Since(l.queue[0].queued) >= stuckAfter && l.busy < mostLanes && l.src.pool != nil
		if stuck {
			l.busy++
		}
		if len(l.queue) > 0 {
			l.help.Reset(stuckAfter)
		}
		l.mu.Unlock()
		if stuck {
			l.next()
		}
	})
}

// run runs calls together.
func (l *lanes) run(calls []*call) {
	calls = slices.DeleteFunc(calls, func(c *call) bool {
		if c.ctx.Err() == nil {
			return false
		}
		c.err = &unavailable{c.ctx.Err()}
		close(c.done)
		return true
	})
	if len(calls) == 0 {
		return
	}
	err := l.together(calls)
	if err != nil && refused(err) {
		// One of them is at fault, and the transaction that they shared is
		// undone. Each is asked by itself.
		for _, c := range calls {
			l.alone(c)
			close(c.done)
		}
		return
	}
	for _, c := range calls {
		if err != nil {
			c.err = err
		}
		close(c.done)
	}
}

// together runs calls in one pipeline, which is one transaction. When it
// returns nil they are committed and have their replies.
func (l *lanes) together(calls []*call) error {
	ctx, cancel := whileWanted(calls)
	defer cancel()
	if len(calls) > 1 {
		// In the order of the keys, so that no two batches wait for each other.
		slices.SortStableFunc(calls, func(a, b *call) int { return cmp.Compare(a.order(), b.order()) })
	}
	conn, release, err := l.src.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	var batch pgx.Batch
	for _, c := range calls {
		batch.Queue(c.sql, c.args...)
	}
	results := conn.SendBatch(ctx, &batch)
	for _, c := range calls {
		rows, err := results.Query()
		if err != nil {
			results.Close()
			return err
		}
		c.reply, c.err = reply{}, nil
		for rows.Next() {
			c.reply, c.err = scanReply(rows.Scan) // damage is this caller's alone
		}
		if err := rows.Err(); err != nil {
			results.Close()
			return err
		}
	}
	return results.Close() // reads the answer to the commit
}

// order is where a call stands among those of a batch: reads first, then by the
// advisory lock of the key.
func (c *call) order() int64 {
	if len(c.args) > 1 {
		return c.args[1].(int64)
	}
	return -1 << 63
}

// whileWanted returns a context that is cancelled when the last of the callers
// has given up.
func whileWanted(calls []*call) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(calls[0].ctx))
	var waiting atomic.Int64
	waiting.Store(int64(len(calls)))
	stops := make([]func() bool, len(calls))
	for i, c := range calls {
		stops[i] = context.AfterFunc(c.ctx, func() {
			if waiting.Add(-1) == 0 {
				cancel()
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}
