package bolt

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"strings"
	"syscall"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/idem-go/idem"
)

var (
	errClosed   = errors.New("the backend is closed")
	errReadOnly = errors.New("it is open for reading only")

	// errPanicked marks what bbolt panicked with: it does so where it meets
	// damage.
	errPanicked = errors.New("bbolt panicked")
)

// failed is an error of bbolt's.
func (c *core) failed(doing string, err error) error {
	return fmt.Errorf("bolt: %s: %s: %w", c.path, doing, err)
}

// recovered is deferred where bbolt reads the file. It turns a panic into
// ErrCorrupt, which includes a fault in the mapped memory: a file that somebody
// has cut.
func (c *core) recovered(err *error, faults bool) {
	debug.SetPanicOnFault(faults)
	if p := recover(); p != nil {
		*err = c.corrupt("%w: %v", errPanicked, p)
	}
}

// begin begins a transaction.
func (c *core) begin(db *bbolt.DB, writable bool) (tx *bbolt.Tx, err error) {
	defer func() {
		if err != nil {
			err = c.failed("begin a transaction", err)
		}
		if errors.Is(err, errPanicked) {
			c.poison(err, true) // bbolt's locks are left as they were
		}
	}()
	defer c.recovered(&err, debug.SetPanicOnFault(true))
	return db.Begin(writable)
}

// rollback ends a transaction that is not to be committed.
func (c *core) rollback(tx *bbolt.Tx) {
	err := c.fenced(tx.Rollback)
	if errors.Is(err, errPanicked) {
		c.poison(err, true)
	}
}

// commit commits a transaction. A full disk is found before anything counts, and
// leaves the file as it was. After any other error it is unknown what the disk
// has, and what it will have after the next write: nothing is read or written
// any more before the file is opened again.
func (c *core) commit(tx *bbolt.Tx) error {
	db, before := tx.DB(), tx.ID()-1
	err := c.fenced(tx.Commit)
	if err == nil {
		return nil
	}
	panicked := errors.Is(err, errPanicked)
	err = c.failed("commit", err)
	if !panicked && diskFull(err) && c.unchanged(db, before) {
		return idem.NoEffect(err)
	}
	c.poison(err, panicked)
	return err
}

// diskFull reports whether err says that there is no room: on the disk, in the
// quota, or below the limit for files.
func diskFull(err error) bool {
	for _, errno := range []error{syscall.ENOSPC, syscall.EFBIG, syscall.EDQUOT} {
		// Some of bbolt's errors have the text alone.
		if errors.Is(err, errno) || strings.HasSuffix(err.Error(), errno.Error()) {
			return true
		}
	}
	return errors.Is(err, berrors.ErrMaxSizeReached)
}

// unchanged looks whether the file still has the state of the transaction txid,
// and nothing of a later one.
func (c *core) unchanged(db *bbolt.DB, txid int) bool {
	f, err := os.Open(db.Path())
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	m, err := readMeta(f)
	return err == nil && m.txid == uint64(txid)
}

// A poisoned is why nothing is done any more.
type poisoned struct {
	err    error
	locked bool // bbolt holds locks that nobody will unlock: the file cannot be closed
}

func (c *core) poison(err error, locked bool) {
	c.poisoned.CompareAndSwap(nil, &poisoned{err, locked})
}

// poisonError returns the error of all calls after the backend was poisoned.
func (c *core) poisonError() error {
	p := c.poisoned.Load()
	if p == nil {
		return nil
	}
	class := idem.ErrUnavailable
	if errors.Is(p.err, idem.ErrCorrupt) {
		class = idem.ErrCorrupt
	}
	return fmt.Errorf("%w: an earlier write failed, and what the file holds is known only after it has been opened again: %w", class, p.err)
}

// openError explains why a file could not be opened.
func openError(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("bolt: open %s: no permission: %w", path, err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("bolt: open %s: the file system is read-only; Options.ReadOnly opens the file for Get and List: %w", path, err)
	}
	return fmt.Errorf("bolt: open %s: %w", path, err)
}
