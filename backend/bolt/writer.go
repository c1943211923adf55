package bolt

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
)

// A write is a Swap, or a part of a Sweep, on its way through the writer.
type write struct {
	// A Swap has the key and its hash, the token that must be there, that of the
	// new record, and the new record encoded for its log.
	key   string
	hash  uint64
	old   string
	token string
	log   logName
	value []byte

	sweep int // at most so many records, in a Sweep

	ctx  context.Context
	done chan struct{} // closed when the results are set

	settled bool        // there is nothing to write
	present idem.Record // what is in the way of a Swap
	swapped bool
	swept   int
	err     error
}

// decided reports whether the token that is present answers the Swap without a
// write: another record is in the way, or the new one is there already.
func (w *write) decided(present string) bool { return present == w.token || present != w.old }

// A writer commits what is queued in batches: one transaction, and one wait for
// the disk, for all who come while the one before is written. Nobody waits for
// company, and nothing runs while the queue is empty.
type writer struct {
	mu      sync.Mutex
	queue   []*write
	leading bool // somebody commits batches until the queue is empty

	leaders sync.WaitGroup
}

// How much goes into one batch.
const (
	maxBatch      = 2048
	maxBatchBytes = 16 << 20
)

// write queues writes together and waits for their results or for ctx. It returns
// an error, or nil, for each.
func (c *core) write(ctx context.Context, ws ...*write) []error {
	errs := make([]error, len(ws))
	if len(ws) == 0 {
		return errs
	}
	for _, w := range ws {
		w.ctx, w.done = ctx, make(chan struct{})
	}
	q := &c.writer
	q.mu.Lock()
	q.queue = append(q.queue, ws...)
	if !q.leading {
		q.leading = true
		// The leader is a goroutine of its own, since nothing can interrupt it:
		// neither the wait for bbolt's lock, which another part of the program
		// may hold, nor that for the disk.
		q.leaders.Go(c.lead)
	}
	q.mu.Unlock()
	for i, w := range ws {
		select {
		case <-w.done:
			errs[i] = w.err
		case <-ctx.Done():
			c.leaveQueue(ctx, ws[i:], errs[i:])
			return errs
		}
	}
	return errs
}

// leaveQueue gives up writes that are not answered.
func (c *core) leaveQueue(ctx context.Context, ws []*write, errs []error) {
	leaves, queued := make(map[*write]bool, len(ws)), make(map[*write]bool)
	for _, w := range ws {
		leaves[w] = true
	}
	q := &c.writer
	q.mu.Lock()
	q.queue = slices.DeleteFunc(q.queue, func(w *write) bool {
		queued[w] = leaves[w]
		return leaves[w]
	})
	q.mu.Unlock()
	for i, w := range ws {
		if queued[w] {
			errs[i] = idem.NoEffect(c.gaveUp(ctx, "waiting for the writer"))
			continue
		}
		select {
		case <-w.done:
			errs[i] = w.err
		default: // it is being committed
			errs[i] = c.gaveUp(ctx, "waiting for the commit")
		}
	}
}

// take removes the next batch from the queue.
func (q *writer) take() []*write {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, size := 0, 0
	for n < len(q.queue) && n < maxBatch && (n == 0 || size < maxBatchBytes) {
		size += len(q.queue[n].value)
		n++
	}
	batch := slices.Clone(q.queue[:n])
	q.queue = slices.Delete(q.queue, 0, n)
	return batch
}

// finished reports whether the queue is empty, and ends the leadership if so.
func (q *writer) finished() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.leading = len(q.queue) > 0
	return !q.leading
}

// lead commits batches until the queue is empty.
func (c *core) lead() {
	for {
		// Those whom the last batch has woken may want to be in the next.
		runtime.Gosched()
		if c.writer.finished() {
			return
		}
		c.leadBatch()
	}
}

// leadBatch commits one batch and tells those who wait.
func (c *core) leadBatch() {
	var batch []*write
	err := c.update(context.Background(), func(tx *bbolt.Tx) error {
		if batch == nil { // the lock was long in coming, and the queue has grown
			batch = c.writer.take()
		}
		return c.applyAll(tx, &batch)
	})
	if batch == nil {
		batch = c.writer.take()
	}
	for _, w := range batch {
		if err != nil && w.err == nil {
			w.err = err
		}
		close(w.done)
	}
}

// errAgain asks for another transaction without the write that has failed.
var errAgain = errors.New("the batch has to be applied again")

// errNothing rolls back a transaction that has changed nothing.
var errNothing = errors.New("nothing to commit")

// update runs fn in a read-write transaction and commits it. fn may ask for
// another one with errAgain. An error that is not marked with NoEffect means
// that the commit may have taken place.
func (c *core) update(ctx context.Context, fn func(*bbolt.Tx) error) error {
	db, err := c.acquire(ctx, writing)
	if err != nil {
		return idem.NoEffect(err)
	}
	defer c.release()
	c.snapshots.pause()
	defer c.snapshots.resume()
	for {
		tx, err := c.begin(db, true)
		if err != nil {
			return idem.NoEffect(err)
		}
		if err = c.fenced(func() error { return fn(tx) }); err == nil {
			return c.commit(tx)
		}
		c.rollback(tx)
		switch {
		case err == errNothing:
			return nil
		case err != errAgain:
			return idem.NoEffect(err)
		}
	}
}

// fenced runs fn and turns a panic of bbolt, which it answers damage with, into
// an error.
func (c *core) fenced(fn func() error) (err error) {
	defer c.recovered(&err, debug.SetPanicOnFault(true))
	return fn()
}

// applyAll applies a batch. The error of one write is that of its caller alone:
// where it leaves the transaction half changed, the write is taken out and the
// rest applied again.
func (c *core) applyAll(tx *bbolt.Tx, batch *[]*write) error {
	s, err := c.newSession(tx, len(*batch))
	if err != nil {
		return err
	}
	s.alone = true
	next := 0
	err = c.fenced(func() error {
		for ; next < len(*batch); next++ {
			if err := s.apply((*batch)[next]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		w := (*batch)[next]
		w.err = idem.NoEffect(err)
		close(w.done)
		*batch = slices.Delete(*batch, next, next+1)
		return errAgain
	}
	if !s.written {
		return errNothing
	}
	// Expired records go at the rate at which new ones come. Whether that
	// succeeds is no concern of these callers, unless the transaction suffers.
	if _, err := s.sweep(int(s.head.seq-s.seq), front); err != nil {
		if _, half := errors.AsType[*brokenError](err); half {
			return err
		}
	}
	return s.flush()
}

// apply does one write. What it returns leaves the transaction half changed; all
// other errors are the write's own.
func (s *session) apply(w *write) error {
	w.present, w.swapped, w.swept, w.err = idem.Record{}, false, 0, nil
	var err error
	switch {
	case w.ctx.Err() != nil:
		err = s.c.gaveUp(w.ctx, "waiting for the writer")
	case w.sweep > 0:
		w.swept, err = s.sweep(w.sweep, behind)
	default:
		w.present, w.swapped, err = s.swap(w)
	}
	if _, half := errors.AsType[*brokenError](err); half {
		return err
	}
	if err != nil {
		w.err = idem.NoEffect(err)
	}
	return nil
}

// gaveUp is the error of a caller whose context was done first. It does not wrap
// the context's cause, which can be the error of another operation.
func (c *core) gaveUp(ctx context.Context, while string) error {
	return fmt.Errorf("bolt: %s: %s: %w", c.path, while, ctx.Err())
}
