package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/idem-go/idem"
)

// bolt examines a file.
func (d *diagnosis) bolt() {
	path := d.target.path
	info, err := os.Stat(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = d.target.absent("there is no such file")
		}
		d.unopened("file", err)
		return
	}
	d.permissions(path, info)
	d.fileSystem(path, info)
	d.holder(path)

	backend, err := d.target.open(d.session.ctx, toRead)
	switch {
	case errors.Is(err, idem.ErrLocked):
		d.unopened("lock", err)
		d.add(skip, "integrity", "", "not looked at: another process holds the file")
		return
	case err != nil:
		d.unopened("integrity", err)
		return
	}
	defer func() { _ = backend.Close() }()
	d.add(ok, "integrity", "", "every page and record of the file is sound, and of the present format")
	ctx, cancel := d.ask()
	defer cancel()
	st, err := backend.bolt.Stats(ctx)
	if err != nil {
		d.unopened("file", err)
		return
	}
	const small = 16 << 20 // not worth the trouble
	if st.Free > st.Size/2 && st.Size > small {
		d.add(warn, "free pages", "nothing is wrong; to make it smaller, stop the writers and copy it: "+d.target.storeLine("export", "--to", "bolt:new.db"),
			"%s of the file's %s are free, and are used before it grows", size(st.Free), size(st.Size))
	} else {
		d.add(ok, "free pages", "", "%s of the file's %s are free", size(st.Free), size(st.Size))
	}
	if st.Ahead > 0 {
		d.add(warn, "clock", "set the machine's clock; no lease gets longer by it, and results are kept longer by as much",
			"the last write is %s in the future: the clock was set back, or the file comes from another machine", brief(st.Ahead))
	} else {
		d.add(ok, "clock", "", "no record is from the future")
	}
	d.records(backend)
}

// permissions judges who may read and change the file.
func (d *diagnosis) permissions(path string, info os.FileInfo) {
	dir, err := os.Stat(filepath.Dir(path))
	mode := info.Mode().Perm()
	switch {
	case mode&0o002 != 0:
		d.add(bad, "permissions", "chmod o-w "+quote(path), "the mode is %v: every user may change the records", mode)
	case err == nil && dir.Mode().Perm()&0o002 != 0 && dir.Mode()&fs.ModeSticky == 0:
		d.add(bad, "permissions", "chmod o-w "+quote(filepath.Dir(path)), "the mode of the folder is %v: every user may replace the file", dir.Mode().Perm())
	case mode&0o004 != 0:
		d.add(warn, "permissions", "chmod o-r "+quote(path), "the mode is %v: every user may read the records, which have the output of commands", mode)
	default:
		d.add(ok, "permissions", "", "the mode is %v", mode)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		d.add(warn, "writing", "run this as the user who writes to it, or let this one", "this user may not write to the file: %v", errors.Unwrap(err))
		return
	}
	_ = f.Close()
}
