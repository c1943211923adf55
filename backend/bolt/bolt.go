// Package bolt keeps records in a bbolt file (go.etcd.io/bbolt): durable, in one
// process at a time, without a server.
//
// [Open] opens a file of its own. [New] works in a bucket of a file that the
// program has open already; business data in the same file can then change in
// the same transaction as the record: see [Backend.Do] and [Backend.WithTx].
//
// # Durability
//
// A call that returns nil is on the disk. Calls that come while another is being
// written are committed together, so many callers cost hardly more than one.
// After an error of the disk the backend refuses every call until the file is
// opened again, because nobody knows what a disk has that failed to write. A full
// disk is no such error: the call has no effect, reading goes on, and writing
// too when there is room.
//
// # Damage
//
// Records have checksums, and opening a file checks all of it, which takes about
// a second for a million records. A file that is damaged, cut or emptied is
// never repaired, replaced or partly read: it gives [idem.ErrCorrupt] or
// [idem.ErrStoreLost], and its bytes stay as they are. Restore a copy, or move it
// away, knowing that every operation in it could then run a second time.
//
// # Space
//
// Each write deletes an expired record as well; the rest is deleted by package
// janitor. The file does not shrink, but it stops growing at a steady load.
//
// # Time
//
// Age is measured by the wall clock of the machine, which is not allowed to go
// back: see the comment of type clock in the source. A clock that jumps ahead
// lets leases and records end early.
package bolt

import (
	"context"
	"crypto/rand"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
)

// Options configure a Backend. Nil Options and zero fields stand for the
// defaults.
type Options struct {
	// Bucket is the name of the storage within the file; "idem" by default. There
	// is a bucket of that name, and others with names that begin with it and a NUL.
	// Two backends with one name in one file are one storage.
	Bucket string

	// MustExist refuses a file, or for New a bucket, that is not there, with
	// idem.ErrStoreLost, instead of making it.
	MustExist bool

	// ReadOnly serves Get and List, also from a file that may not be written;
	// everything else is an error without effect. Several processes may have the
	// file open in this way at once, but not together with one that writes.
	ReadOnly bool

	// OpenTimeout is how long Open, and with Shared every call, waits for
	// another process that has the file open, before it gives idem.ErrLocked; 1 s
	// by default.
	OpenTimeout time.Duration

	// Shared makes Open hold the file only while a call uses it, so that several
	// processes can take turns. Each call costs the opening of the file, though
	// not the reading of all records: what others have appended is caught up
	// with. Only for Open.
	Shared bool
}

func (o *Options) withDefaults() (Options, error) {
	var with Options
	if o != nil {
		with = *o
	}
	if with.Bucket == "" {
		with.Bucket = "idem"
	}
	if with.OpenTimeout == 0 {
		with.OpenTimeout = time.Second
	}
	if with.OpenTimeout < 0 {
		return with, fmt.Errorf("bolt: %w: OpenTimeout %v is negative", idem.ErrOptions, with.OpenTimeout)
	}
	return with, nil
}

// A Backend implements [idem.Backend], [idem.Lister], [idem.Watcher],
// [idem.Prober] and [idem.Batcher] on a bbolt file. It is safe for concurrent use, except for one that WithTx has bound
// to a transaction.
type Backend struct {
	*core
	bound *binding // to a transaction; nil if free
}

// core is what a Backend shares with those bound to its transactions.
type core struct {
	path      string
	bucket    []byte
	readOnly  bool
	clock     clock
	index     *index
	writer    writer
	watchers  watchers
	snapshots snapshots

	db     *bbolt.DB // nil with Shared while no call uses the file
	file   *ownFile  // nil if the caller has opened the file
	shared chan struct{}

	calls    sync.RWMutex // held for reading by each call, for good by Close
	closed   chan struct{}
	closing  sync.Once
	closeErr error
	poisoned atomic.Pointer[poisoned]

	sessionMu sync.Mutex
	session   *session // of the last transaction that was bound
}

func newCore(path string, o Options) *core {
	return &core{
		path:     path,
		bucket:   []byte(o.Bucket),
		readOnly: o.ReadOnly,
		clock:    clock{now: systemClock()},
		index:    newIndex(),
		closed:   make(chan struct{}),
	}
}

// New returns a Backend that keeps its records in a bucket of db, which the caller
// opens, and closes after the last call. It makes the bucket if need be, and reads
// all records that are in it.
//
// Have one Backend for a file and share it. Others on the same db work too, but
// whoever waits on one for what is done through another notices it later, by up
// to 100 ms.
//
// db must not have been opened with NoSync: it would lose what was acknowledged.
// FreelistType hashmap is recommended. A read transaction that stays open for long
// keeps bbolt from enlarging the file, and with that every writer waiting.
func New(db *bbolt.DB, opts *Options) (*Backend, error) {
	o, err := opts.withDefaults()
	switch {
	case err != nil:
		return nil, err
	case db == nil:
		return nil, fmt.Errorf("bolt: %w: no database", idem.ErrOptions)
	case db.NoSync:
		return nil, fmt.Errorf("bolt: %s: %w: the file was opened with NoSync, which loses what was acknowledged", db.Path(), idem.ErrOptions)
	case o.Shared:
		return nil, fmt.Errorf("bolt: %s: %w: Shared is for Open; the caller of New holds the file", db.Path(), idem.ErrOptions)
	}
	o.ReadOnly = o.ReadOnly || db.IsReadOnly()
	c := newCore(db.Path(), o)
	c.db = db
	if err := c.load(db, o); err != nil {
		return nil, err
	}
	return &Backend{core: c}, nil
}

// load reads the storage in the file, or makes it.
func (c *core) load(db *bbolt.DB, o Options) error {
	for {
		tx, err := c.begin(db, false)
		if err != nil {
			return err
		}
		var found bool
		err = c.fenced(func() error { found, err = c.loadFrom(tx, o); return err })
		_ = tx.Rollback()
		if found || err != nil {
			return err
		}
		if err := c.fenced(func() error { return db.Update(c.makeBucket) }); err != nil {
			return c.failed("make the bucket", err)
		}
	}
}

// loadFrom reads the storage, or reports that it is to be made.
func (c *core) loadFrom(tx *bbolt.Tx, o Options) (found bool, err error) {
	if top := tx.Bucket(c.bucket); top != nil {
		return true, c.catchUp(table{c, tx, top})
	}
	if other, _ := tx.Cursor().First(); c.file != nil && other != nil {
		return false, c.corrupt("it is a bbolt file of another program: it has a bucket %q and no %q", other, c.bucket)
	}
	// The file that Open makes has its bucket from the beginning.
	used := c.file != nil && tx.ID() > 1
	if o.MustExist || o.ReadOnly || used {
		return false, c.lost("it has no bucket %q", c.bucket)
	}
	return false, nil
}

// makeBucket makes an empty bucket, unless somebody else has.
func (c *core) makeBucket(tx *bbolt.Tx) error {
	if tx.Bucket(c.bucket) != nil {
		return nil
	}
	top, err := tx.CreateBucket(c.bucket)
	if err != nil {
		return err
	}
	h := head{stamp: c.clock.read()}
	_, _ = rand.Read(h.id[:])
	return table{c, tx, top}.putHead(h)
}

// Close waits for the calls that run and makes all later ones fail. It closes the
// file if Open has opened it.
func (b *Backend) Close() error {
	if b.bound != nil {
		return b.failed("close", errBound)
	}
	b.closing.Do(func() { b.closeErr = b.close() })
	return b.closeErr
}

func (c *core) close() error {
	c.calls.Lock() // for good: no call begins any more
	close(c.closed)
	if c.file == nil {
		return nil
	}
	c.writer.leaders.Wait()
	if p := c.poisoned.Load(); p != nil && p.locked {
		return c.failed("close", fmt.Errorf("the file stays locked until the process ends: %w", p.err))
	}
	if c.db == nil {
		return nil
	}
	c.snapshots.pause()
	if err := c.db.Close(); err != nil {
		return c.failed("close", err)
	}
	return nil
}

// enter begins a call, unless the backend is closed.
func (c *core) enter() bool { return c.calls.TryRLock() }

func (c *core) leave() { c.calls.RUnlock() }

// check reports why a call cannot begin. If it can, the caller ends it with leave.
func (c *core) check(ctx context.Context) error {
	if ctx.Err() != nil {
		return c.gaveUp(ctx, "not asked")
	}
	if !c.enter() {
		return c.failed("not asked", errClosed)
	}
	if err := c.poisonError(); err != nil {
		c.leave()
		return err
	}
	return nil
}

// Get implements [idem.Backend].
func (b *Backend) Get(ctx context.Context, key string) (idem.Record, error) {
	if err := b.check(ctx); err != nil {
		return idem.Record{}, err
	}
	defer b.leave()
	if b.bound != nil {
		return b.bound.get(ctx, key)
	}
	return b.lookup(ctx, key)
}

// Probe implements [idem.Prober], by the index.
func (b *Backend) Probe(key string) bool { return b.index.known(b.index.hash(key)) }

// Swap implements [idem.Backend]. A Swap of a key that should be free, and is not,
// does not wait for the writer.
func (b *Backend) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	if err := b.check(ctx); err != nil {
		return idem.Record{}, idem.NoEffect(err)
	}
	defer b.leave()
	w, err := b.newWrite(ctx, key, old, new)
	switch {
	case err != nil || w.settled:
	case b.bound != nil:
		err = b.bound.swap(ctx, w)
	default:
		err = b.write(ctx, w)[0]
	}
	return w.outcome(new, err)
}

// newWrite returns a Swap on its way, which is settled if there is nothing to
// write.
func (b *Backend) newWrite(ctx context.Context, key, old string, new idem.Record) (w *write, err error) {
	w = &write{key: key, hash: b.index.hash(key), old: old, token: new.Token}
	// A caller that knows the record it replaces is rarely wrong, and asks the
	// writer.
	if b.bound == nil && (old == "" && b.index.known(w.hash) || b.readOnly) {
		w.present, err = b.lookup(ctx, key)
		if err != nil {
			return w, idem.NoEffect(err)
		}
		if w.settled = w.decided(w.present.Token); w.settled {
			return w, nil
		}
	}
	if w.value, err = encode(key, new); err != nil {
		return w, idem.NoEffect(b.failed("swap", err))
	}
	if b.readOnly && b.bound == nil {
		return w, idem.NoEffect(b.failed("swap", errReadOnly))
	}
	w.log = logOf(new)
	return w, nil
}

// outcome returns what a Swap of new returns that has ended with err.
func (w *write) outcome(new idem.Record, err error) (idem.Record, error) {
	switch {
	case err != nil:
		return idem.Record{}, err
	case !w.swapped:
		return w.present, nil
	}
	new = new.Clone()
	new.Age = 0
	return new, nil
}

// SwapAll implements [idem.Batcher], in one commit for each 2,048 swaps.
func (b *Backend) SwapAll(ctx context.Context, swaps []idem.Swap) []idem.Swapped {
	if err := b.check(ctx); err != nil {
		swapped := make([]idem.Swapped, len(swaps))
		for i := range swapped {
			swapped[i].Err = idem.NoEffect(err)
		}
		return swapped
	}
	defer b.leave()
	return idem.InTurn(swaps, func(swaps []idem.Swap) []idem.Swapped {
		swapped := make([]idem.Swapped, len(swaps))
		all, errs := make([]*write, len(swaps)), make([]error, len(swaps))
		var queue []*write
		var of []int
		for i, s := range swaps {
			all[i], errs[i] = b.newWrite(ctx, s.Key, s.Old, s.New)
			switch {
			case errs[i] != nil || all[i].settled:
			case b.bound != nil:
				errs[i] = b.bound.swap(ctx, all[i])
			default:
				queue, of = append(queue, all[i]), append(of, i)
			}
		}
		for n, err := range b.write(ctx, queue...) {
			errs[of[n]] = err
		}
		for i, w := range all {
			swapped[i].Record, swapped[i].Err = w.outcome(swaps[i].New, errs[i])
		}
		return swapped
	})
}

// sweepBatch is how many records are deleted in one transaction: other callers
// wait for as long as that takes.
const sweepBatch = 1000

// Sweep implements [idem.Backend].
func (b *Backend) Sweep(ctx context.Context, limit int) (n int, err error) {
	if err := b.check(ctx); err != nil {
		return 0, err
	}
	defer b.leave()
	if b.bound != nil {
		return b.bound.sweep(ctx, limit)
	}
	if b.readOnly {
		return 0, idem.NoEffect(b.failed("sweep", errReadOnly))
	}
	for n < limit {
		due, err := b.sweepable(ctx)
		if err != nil || !due {
			return n, err
		}
		w := &write{sweep: min(limit-n, sweepBatch)}
		if err := b.write(ctx, w)[0]; err != nil {
			return n, err
		}
		if n += w.swept; w.swept < w.sweep {
			break
		}
	}
	return n, nil
}

// sweepable reports whether there is an expired record.
func (c *core) sweepable(ctx context.Context) (due bool, err error) {
	err = c.view(ctx, func(t table) error {
		return t.eachLog(func(name logName, log *bbolt.Bucket) error {
			if due {
				return nil
			}
			_, v, err := t.due(name, log, 0, behind)
			due = v != nil
			return err
		})
	})
	return due, err
}

// expired reports whether a stored record, which has been verified, is expired.
func (c *core) expired(v []byte, at place) bool {
	return idem.Record{TTL: ttlOf(v, at), Age: c.age(v)}.Expired()
}

// age returns the age of a stored record, which has been verified.
func (c *core) age(v []byte) time.Duration {
	return time.Duration(max(0, c.clock.read()-stampOf(v)))
}

// view runs fn in a read transaction.
func (c *core) view(ctx context.Context, fn func(t table) error) (err error) {
	db, err := c.acquire(ctx, reading)
	if err != nil {
		return err
	}
	defer c.release()
	defer c.recovered(&err, debug.SetPanicOnFault(true))
	tx, err := c.begin(db, false)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	t, err := c.table(tx)
	if err != nil {
		return err
	}
	return fn(t)
}
