package bolt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/idem-go/idem"
)

// An ownFile is a file that this package opens by itself.
type ownFile struct {
	path string
	opts Options
}

// mode is what a transaction is for.
type mode int

const (
	reading mode = iota
	writing
)

// Open opens the file at path, or makes it, and reads all its records. Close
// closes it.
//
// Open waits Options.OpenTimeout for another process, or another part of this
// one, that has the file open, and then gives [idem.ErrLocked]. A file that is
// damaged, or is not one of this package's, gives [idem.ErrCorrupt]; an empty one
// gives [idem.ErrStoreLost]. In both cases it stays as it is.
func Open(path string, opts *Options) (*Backend, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	c := newCore(path, o)
	c.file = &ownFile{path, o}
	m := writing
	if o.ReadOnly {
		m = reading
	}
	db, err := c.file.open(context.Background(), m, true)
	if err != nil {
		return nil, err
	}
	if err := c.load(db, o); err != nil {
		if closing := db.Close(); closing != nil {
			err = fmt.Errorf("%w; %w", err, closing)
		}
		return nil, err
	}
	if !o.Shared {
		c.db = db
		c.snapshots.keep = true
		return &Backend{core: c}, nil
	}
	c.shared = make(chan struct{}, 1)
	if err := db.Close(); err != nil {
		return nil, c.failed("close", err)
	}
	return &Backend{core: c}, nil
}

// acquire returns the open file for one call, which ends with release. With
// Shared the calls of one process take turns, too.
func (c *core) acquire(ctx context.Context, m mode) (*bbolt.DB, error) {
	if err := c.poisonError(); err != nil {
		return nil, err
	}
	if c.shared == nil {
		return c.db, nil
	}
	select {
	case c.shared <- struct{}{}:
	case <-ctx.Done():
		return nil, c.gaveUp(ctx, "waiting for the file")
	}
	if c.readOnly {
		m = reading
	}
	db, err := c.file.open(ctx, m, false)
	if err != nil {
		<-c.shared
		return nil, err
	}
	c.db = db
	return db, nil
}

// release ends what acquire began.
func (c *core) release() {
	if c.shared == nil {
		return
	}
	if p := c.poisoned.Load(); p == nil || !p.locked {
		// What was committed is on the disk: an error of closing changes nothing.
		_ = c.db.Close()
	}
	c.db = nil
	<-c.shared
}

// open opens the file and gives it to bbolt. The first time it makes sure that the
// whole structure of the file is sound, later only that it is the whole file.
func (o *ownFile) open(ctx context.Context, m mode, first bool) (*bbolt.DB, error) {
	f, err := o.openLocked(ctx, m, first)
	if err != nil {
		return nil, err
	}
	if err := o.examine(f, first); err != nil {
		_ = f.Close()
		return nil, err
	}
	db, err := bbolt.Open(o.path, 0o600, &bbolt.Options{
		// The lock belongs to the open file, so bbolt finds it taken by itself.
		OpenFile:     func(string, int, os.FileMode) (*os.File, error) { return f, nil },
		Timeout:      o.opts.OpenTimeout,
		ReadOnly:     m == reading,
		FreelistType: bbolt.FreelistMapType,
		// A free list that is written with every commit is expensive after a
		// sweep; one that is not costs a look at every page when the file is
		// opened, which Shared cannot afford.
		NoFreelistSync: !o.opts.Shared,
		NoStatistics:   true,
	})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, o.locked()
	case err != nil:
		return nil, openError(o.path, err)
	}
	return db, nil
}

// openLocked opens the file and waits for its lock.
func (o *ownFile) openLocked(ctx context.Context, m mode, first bool) (*os.File, error) {
	flag := os.O_RDWR
	if m == reading {
		flag = os.O_RDONLY
	}
	giveUp := time.Now().Add(o.opts.OpenTimeout)
	for {
		f, err := os.OpenFile(o.path, flag, 0)
		switch {
		case errors.Is(err, fs.ErrNotExist) && first && !o.opts.MustExist && !o.opts.ReadOnly:
			if err := o.create(); err != nil {
				return nil, openError(o.path, err)
			}
			continue
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("bolt: open %s: %w: the file is missing: %w", o.path, idem.ErrStoreLost, err)
		case err != nil:
			return nil, openError(o.path, err)
		}
		if err := o.lock(ctx, f, m == writing, giveUp); err != nil {
			_ = f.Close()
			return nil, err
		}
		if stillThere(f, o.path) {
			return f, nil
		}
		_ = f.Close() // somebody has put another file in its place
	}
}

// lock waits for the lock of an open file. There is no way to be woken when it is
// free and to be able to give up as well, so it is tried for. The intervals stay
// short: where others take turns quickly, it is free for moments only.
func (o *ownFile) lock(ctx context.Context, f *os.File, exclusive bool, giveUp time.Time) error {
	for delay := 200 * time.Microsecond; ; delay = min(2*delay, 2*time.Millisecond) {
		got, err := tryLock(f, exclusive)
		if err != nil {
			return openError(o.path, err)
		}
		if got {
			return nil
		}
		left := time.Until(giveUp)
		if left <= 0 {
			return o.locked()
		}
		// Two processes must not meet for ever at the same beat.
		pause := time.NewTimer(min(left, delay/2+rand.N(delay)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("bolt: open %s: waiting for another process that holds it: %w", o.path, ctx.Err())
		}
	}
}

func (o *ownFile) locked() error {
	advice := "; Options.Shared lets processes take turns"
	if o.opts.Shared {
		advice = ""
	}
	return fmt.Errorf("bolt: open %s: %w, or another part of this one, and was for %v%s", o.path, idem.ErrLocked, o.opts.OpenTimeout, advice)
}

// stillThere reports whether f is what path leads to.
func stillThere(f *os.File, path string) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(opened, named)
}

// examine makes sure that bbolt can be trusted with the file.
func (o *ownFile) examine(f *os.File, first bool) error {
	info, err := f.Stat()
	if err != nil {
		return openError(o.path, err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("bolt: open %s: it is not a file", o.path)
	}
	if info.Size() == 0 {
		return fmt.Errorf("bolt: open %s: %w: the file is empty, and no file of this package ever is; restore it, or delete it to begin without records", o.path, idem.ErrStoreLost)
	}
	if first {
		err = checkStructure(f)
	} else {
		_, err = checkMeta(f)
	}
	if err != nil {
		return fmt.Errorf("bolt: open %s: %w: %w", o.path, idem.ErrCorrupt, err)
	}
	return nil
}

// create makes the file with an empty bucket. It is made under another name and
// linked when it is whole, so that a crash leaves no half a file, and of several
// processes that do this at once one succeeds and the others use its file.
func (o *ownFile) create() (err error) {
	dir, base := filepath.Split(o.path)
	f, err := os.CreateTemp(filepath.Clean(dir), base+".new-*")
	if err != nil {
		return err
	}
	temp := f.Name()
	defer func() { _ = os.Remove(temp) }()
	if err := f.Close(); err != nil {
		return err
	}
	db, err := bbolt.Open(temp, 0o600, &bbolt.Options{NoFreelistSync: !o.opts.Shared, FreelistType: bbolt.FreelistMapType, Timeout: time.Second})
	if err != nil {
		return err
	}
	err = db.Update(newCore(o.path, o.opts).makeBucket)
	if closing := db.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return err
	}
	err = os.Link(temp, o.path)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		err = copyNew(temp, o.path) // not all file systems have links
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Clean(dir))
}

// copyNew copies a file to a name that is not in use.
func copyNew(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	if err == nil {
		err = dst.Sync()
	}
	if closing := dst.Close(); err == nil {
		err = closing
	}
	if err != nil {
		_ = os.Remove(to)
	}
	return err
}
