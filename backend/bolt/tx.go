package bolt

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
)

var (
	errBound    = errors.New("the backend is bound to a transaction")
	errTxClosed = errors.New("the transaction is over")
)

// A binding ties a Backend to a transaction of the caller's, or, without one, to
// what can be answered without the writer.
type binding struct {
	c  *core
	tx *bbolt.Tx
}

// WithTx returns a Backend that reads and writes in tx, for use with
// [idem.Store.With]:
//
//	err := db.Update(func(tx *bbolt.Tx) error {
//		if err := change(tx); err != nil {
//			return err
//		}
//		return store.With(backend.WithTx(tx)).Complete(ctx, claim, result)
//	})
//
// What it writes is seen by others when tx commits, and never if it rolls back. It
// is used by one goroutine at a time, as tx is, and not after tx is over. tx must
// be one of the file of this Backend. In a read-only transaction it can read.
//
// The Backend that WithTx is called on waits for the end of tx when it writes:
// calling that inside tx waits for ever, or until the context is done.
func (b *Backend) WithTx(tx *bbolt.Tx) *Backend {
	return &Backend{core: b.core, bound: &binding{b.core, tx}}
}

// session returns the session in the transaction. All bindings of a transaction
// share it.
func (b *binding) session() (*session, error) {
	if b.tx.DB() == nil {
		return nil, b.c.failed("use a transaction", errTxClosed)
	}
	if !b.tx.Writable() {
		return nil, b.c.failed("write", errReadOnly)
	}
	c := b.c
	c.sessionMu.Lock()
	defer c.sessionMu.Unlock()
	if c.session != nil && c.session.tx == b.tx {
		return c.session, c.session.refresh(false)
	}
	s, err := c.newSession(b.tx)
	if err != nil {
		return nil, err
	}
	c.session = s
	return s, nil
}

func (b *binding) get(ctx context.Context, key string) (r idem.Record, err error) {
	switch {
	case b.tx == nil:
		return b.c.lookup(ctx, key)
	case b.tx.DB() == nil:
		return r, b.c.failed("use a transaction", errTxClosed)
	}
	err = b.c.fenced(func() error {
		hash := b.c.index.hash(key)
		if b.tx.Writable() {
			s, err := b.session()
			if err == nil {
				r, _, _, err = s.get(key, hash)
			}
			return err
		}
		t, err := b.c.table(b.tx)
		if err != nil {
			return err
		}
		r, err = b.c.lookupIn(newSnapshot(t), key, hash)
		if err == errIndexNewer {
			r, err = t.scanFor(key)
		}
		return err
	})
	return r, err
}

func (b *binding) swap(ctx context.Context, w *write) error {
	present, err := b.get(ctx, w.key)
	if err == nil && w.decided(present) {
		w.present = present
		return nil
	}
	if err == nil && b.tx == nil {
		err = errNeedsWriter
	}
	if err != nil {
		return idem.NoEffect(err)
	}
	// The transaction is the caller's: it must come to an end even if its end is
	// a rollback. So an error here leaves no effect that could count.
	err = b.c.fenced(func() error {
		s, err := b.session()
		if err != nil {
			return err
		}
		if w.present, w.swapped, err = s.swap(w); err != nil || !w.swapped {
			return err
		}
		if _, err := s.sweep(1); err != nil {
			if _, half := errors.AsType[*brokenError](err); half {
				return err
			}
		}
		return s.flush()
	})
	if err != nil {
		return idem.NoEffect(err)
	}
	return nil
}

func (b *binding) sweep(_ context.Context, limit int) (n int, err error) {
	if b.tx == nil {
		return 0, idem.NoEffect(errNeedsWriter)
	}
	err = b.c.fenced(func() error {
		s, err := b.session()
		if err != nil {
			return err
		}
		if n, err = s.sweep(max(0, limit)); err != nil {
			return err
		}
		return s.flush()
	})
	if err != nil {
		return 0, idem.NoEffect(err)
	}
	return n, nil
}

func (b *binding) view(fn func(t table) error) error {
	if b.tx == nil || b.tx.DB() == nil {
		return b.c.failed("use a transaction", errTxClosed)
	}
	return b.c.fenced(func() error {
		t, err := b.c.table(b.tx)
		if err != nil {
			return err
		}
		return fn(t)
	})
}

// errNeedsWriter tells that a key cannot be answered without the writer.
var errNeedsWriter = errors.New("the writer is needed")

// Do runs fn once for the key, like [idem.Store.Do], in one transaction of the
// file: the claim, what fn changes in tx, and the result are committed together,
// or nothing is. store must use this Backend.
//
//   - If the operation is completed, its result is returned, without waiting for
//     the writer.
//   - If another attempt has claimed the key outside of such a transaction, Do
//     waits for it, as [idem.Store.Do] does, while the file is free.
//   - Any error of fn, also one marked with [idem.NoEffect], and any panic rolls
//     everything back: there is no trace of the attempt, and it does not count. A
//     refusal that duplicates should get as well is returned as a Result.
//
// Nobody else can write to the file while fn runs, and duplicates wait until it has
// committed, so fn should be short, and must not use the store except through
// store.With(b.WithTx(tx)). The claim is not extended, and need not be: nobody can
// take it over before the commit.
//
// If the commit fails, the error is [idem.ErrUnavailable]. After a full disk
// nothing has happened, and Do can be called again. After another error the
// outcome is known when the file has been opened again, by calling Do once more.
func (b *Backend) Do(ctx context.Context, store *idem.Store, key string, fp idem.Fingerprint,
	fn func(ctx context.Context, tx *bbolt.Tx, c *idem.Claim) (idem.Result, error),
) (idem.Outcome, error) {
	if b.bound != nil {
		return idem.Outcome{}, &idem.Error{Op: "do", Key: key, Err: errBound}
	}
	for {
		out, waits, err := b.doOnce(ctx, store, key, fp, fn)
		if !waits {
			return out, err
		}
		if err := store.Wait(ctx, key); err != nil {
			return idem.Outcome{}, err
		}
	}
}

// doOnce is Do up to the point where it has to wait for another attempt.
func (b *Backend) doOnce(ctx context.Context, store *idem.Store, key string, fp idem.Fingerprint,
	fn func(ctx context.Context, tx *bbolt.Tx, c *idem.Claim) (idem.Result, error),
) (out idem.Outcome, waits bool, err error) {
	present, err := store.Lookup(ctx, key)
	if err != nil {
		return out, false, err
	}
	if present.Status == idem.Completed || present.LeaseLeft() > 0 {
		// Most likely there is nothing to write, and the Store can tell without
		// the writer.
		out, err = store.With(&Backend{core: b.core, bound: &binding{c: b.core}}).Do(ctx, key, fp, nil)
		if !errors.Is(err, errNeedsWriter) {
			return out, errors.Is(err, idem.ErrInProgress), err
		}
	}
	unavailable := func(err error) error {
		return &idem.Error{Op: "do", Key: key, Err: fmt.Errorf("%w: %w", idem.ErrUnavailable, err)}
	}
	if err := b.check(ctx); err != nil {
		return out, false, unavailable(err)
	}
	defer b.leave()
	if b.readOnly {
		return out, false, unavailable(b.failed("do", errReadOnly))
	}
	db, err := b.acquire(ctx, writing)
	if err != nil {
		return out, false, unavailable(err)
	}
	defer b.release()
	b.snapshots.pause()
	defer b.snapshots.resume()
	tx, err := b.beginWithin(ctx, db)
	if err != nil {
		return out, false, unavailable(err)
	}
	commits := false
	defer func() {
		if !commits { // fn's error, its panic, or a Goexit
			b.rollback(tx)
		}
	}()
	ran := false
	// What fn has done is recorded also if the caller is gone by then.
	out, err = store.With(b.WithTx(tx)).Do(context.WithoutCancel(ctx), key, fp,
		func(_ context.Context, c *idem.Claim) (idem.Result, error) {
			ran = true
			return fn(ctx, tx, c)
		})
	switch {
	case err != nil:
		return idem.Outcome{}, !ran && errors.Is(err, idem.ErrInProgress), err
	case !ran:
		return out, false, nil // completed meanwhile
	}
	commits = true
	if err := b.commit(tx); err != nil {
		return idem.Outcome{}, false, unavailable(err)
	}
	return out, false, nil
}

// beginWithin begins a write transaction, unless ctx is done before bbolt's lock
// is free.
func (c *core) beginWithin(ctx context.Context, db *bbolt.DB) (*bbolt.Tx, error) {
	type begun struct {
		tx  *bbolt.Tx
		err error
	}
	result := make(chan begun)
	c.writer.leaders.Go(func() {
		tx, err := c.begin(db, true)
		select {
		case result <- begun{tx, err}:
		case <-ctx.Done():
			if err == nil {
				c.rollback(tx)
			}
		}
	})
	select {
	case r := <-result:
		return r.tx, r.err
	case <-ctx.Done():
		return nil, c.gaveUp(ctx, "waiting for the writer")
	}
}
