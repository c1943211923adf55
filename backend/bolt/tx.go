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
	s, err := c.newSession(b.tx, 0)
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
				r, err = s.get(key, hash)
			}
			return err
		}
		t, err := b.c.table(b.tx)
		if err != nil {
			return err
		}
		err = b.c.lookupIn(&snapshot{table: t}, key, hash, &r)
		if err == errIndexNewer {
			r, err = t.scanFor(key)
		}
		return err
	})
	return r, err
}

func (b *binding) swap(ctx context.Context, w *write) error {
	present, err := b.get(ctx, w.key)
	if err == nil && w.decided(present.Token) {
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
		if _, err := s.sweep(1, front); err != nil {
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
		if n, err = s.sweep(max(0, limit), behind); err != nil {
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
	switch {
	case b.bound != nil:
		return idem.Outcome{}, &idem.Error{Op: "do", Key: key, Err: errBound}
	case fn == nil:
		return idem.Outcome{}, &idem.Error{Op: "do", Key: key, Err: fmt.Errorf("%w: there is no function to run", idem.ErrOptions)}
	}
	return store.DoTx(ctx, key, fp, func(ctx context.Context, body idem.TxBody) error {
		// A duplicate of an operation that is done, or that runs, is answered
		// without the writer.
		err := body(ctx, &Backend{core: b.core, bound: &binding{c: b.core}}, func(context.Context, *idem.Claim) (idem.Result, error) {
			return idem.Result{}, errNeedsWriter
		})
		if errors.Is(err, errNeedsWriter) {
			err = b.transact(ctx, body, fn)
		}
		return err
	})
}

// transact runs body in a transaction, which it commits unless body fails or has
// not run fn.
func (b *Backend) transact(ctx context.Context, body idem.TxBody, fn func(context.Context, *bbolt.Tx, *idem.Claim) (idem.Result, error)) error {
	if err := b.check(ctx); err != nil {
		return err
	}
	defer b.leave()
	if b.readOnly {
		return b.failed("do", errReadOnly)
	}
	db, err := b.acquire(ctx, writing)
	if err != nil {
		return err
	}
	defer b.release()
	b.snapshots.pause()
	defer b.snapshots.resume()
	tx, err := b.beginWithin(ctx, db)
	if err != nil {
		return err
	}
	ran, commits := false, false
	defer func() {
		if !commits { // an error, a panic, a Goexit, or nothing was written
			b.rollback(tx)
		}
	}()
	// What fn has done is recorded also if the caller is gone by then.
	err = body(context.WithoutCancel(ctx), b.WithTx(tx), func(_ context.Context, c *idem.Claim) (idem.Result, error) {
		ran = true
		return fn(ctx, tx, c)
	})
	if err != nil || !ran {
		return err
	}
	commits = true
	return b.commit(tx)
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
