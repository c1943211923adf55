package bolt

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
)

// BB-1: a file that is held elsewhere is reported, soon and by name.
func TestBB1_HeldFile(t *testing.T) {
	check := func(t *testing.T, path string, opts *Options, limit time.Duration) {
		t.Helper()
		start := time.Now()
		b, err := Open(path, opts)
		if !errors.Is(err, idem.ErrLocked) {
			t.Fatalf("Open = %v, %v; want ErrLocked", b, err)
		}
		mentions(t, err, path)
		prompt(t, start, limit, "Open")
	}
	for name, hold := range map[string]func(t *testing.T, path string){
		"another process": func(t *testing.T, path string) { holdElsewhere(t, path) },
		"this process":    func(t *testing.T, path string) { open(t, path, nil) },
		"a program's own": func(t *testing.T, path string) { openDB(t, path) },
	} {
		t.Run(name, func(t *testing.T) {
			path := testPath(t)
			open(t, path, nil).Close()
			hold(t, path)
			check(t, path, nil, time.Second)
			check(t, path, &Options{OpenTimeout: 300 * time.Millisecond}, 300*time.Millisecond)
			check(t, path, &Options{OpenTimeout: time.Millisecond, ReadOnly: true}, time.Millisecond)
			check(t, path, &Options{OpenTimeout: time.Millisecond, Shared: true}, time.Millisecond)
		})
	}
	t.Run("a killed process", func(t *testing.T) {
		path := testPath(t)
		holdElsewhere(t, path).kill()
		b := open(t, path, nil)
		if r := get(t, b, "child"); r.Token != "child.1" {
			t.Errorf("the killed process had stored a record; now there is %+v", r)
		}
	})
	t.Run("freed in time", func(t *testing.T) {
		path := testPath(t)
		holder := open(t, path, nil)
		opened := make(chan error)
		go func() {
			b, err := Open(path, &Options{OpenTimeout: time.Minute})
			if err == nil {
				err = b.Close()
			}
			opened <- err
		}()
		if err := holder.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-opened; err != nil {
			t.Errorf("Open of a file that is closed meanwhile: %v", err)
		}
	})
	t.Run("readers together", func(t *testing.T) {
		path := testPath(t)
		b := open(t, path, nil)
		swap(t, b, "k", "", completed("a.1", 10))
		b.Close()
		for range 2 {
			if r := get(t, open(t, path, &Options{ReadOnly: true}), "k"); r.Token != "a.1" {
				t.Errorf("the record is %+v", r)
			}
		}
	})
}

// Several processes and handles that find no file make one together.
func TestOpenCreatesOnce(t *testing.T) {
	for range 20 {
		path := testPath(t)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				b, err := Open(path, &Options{OpenTimeout: time.Minute})
				if err != nil {
					t.Error(err)
					return
				}
				_, err = b.Swap(t.Context(), fmt.Sprint(i), "", completed("a.1", 1))
				if err := errors.Join(err, b.Close()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		b := open(t, path, &Options{MustExist: true})
		for i := range 8 {
			if r := get(t, b, fmt.Sprint(i)); r.Token == "" {
				t.Errorf("the record of caller %d is lost", i)
			}
		}
		left, err := os.ReadDir(filepath.Dir(path))
		if err != nil || len(left) != 1 {
			t.Errorf("there are %v, %v; want one file", left, err)
		}
	}
}

func TestOptionsOutOfRange(t *testing.T) {
	db := openDB(t, testPath(t))
	if _, err := New(db, &Options{Shared: true}); !errors.Is(err, idem.ErrOptions) {
		t.Errorf("New with Shared: %v", err)
	}
	if _, err := New(nil, nil); !errors.Is(err, idem.ErrOptions) {
		t.Errorf("New without a database: %v", err)
	}
	if _, err := Open(testPath(t), &Options{OpenTimeout: -1}); !errors.Is(err, idem.ErrOptions) {
		t.Errorf("Open with a negative OpenTimeout: %v", err)
	}
	unsafe, err := bbolt.Open(testPath(t), 0o600, &bbolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer unsafe.Close()
	if _, err := New(unsafe, nil); !errors.Is(err, idem.ErrOptions) {
		t.Errorf("New with NoSync: %v", err)
	}
}

func TestMustExist(t *testing.T) {
	path := testPath(t)
	_, err := Open(path, &Options{MustExist: true})
	if !errors.Is(err, idem.ErrStoreLost) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of a missing file: %v", err)
	}
	mentions(t, err, path)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file was made: %v", err)
	}
	db := openDB(t, testPath(t))
	if _, err := New(db, &Options{MustExist: true}); !errors.Is(err, idem.ErrStoreLost) {
		t.Errorf("New without a bucket: %v", err)
	}
	newOn(t, db, nil)
	newOn(t, db, &Options{MustExist: true})
	if _, err := New(db, &Options{MustExist: true, Bucket: "other"}); !errors.Is(err, idem.ErrStoreLost) {
		t.Errorf("New without that bucket: %v", err)
	}
}

// Two names in one file are two storages.
func TestTwoBuckets(t *testing.T) {
	db := openDB(t, testPath(t))
	a, b := newOn(t, db, &Options{Bucket: "a"}), newOn(t, db, &Options{Bucket: "a2"})
	swap(t, a, "k", "", completed("a.1", 1))
	swap(t, b, "k", "", completed("b.1", 1))
	for _, reopened := range []*Backend{newOn(t, db, &Options{Bucket: "a"}), a} {
		if r := get(t, reopened, "k"); r.Token != "a.1" {
			t.Errorf("the record is %+v", r)
		}
	}
}

// What Open has made, a program can open by itself and give to New, and back.
func TestOpenThenNew(t *testing.T) {
	path := testPath(t)
	b := open(t, path, nil)
	fill(t, b, 500, numbered, func(i int) idem.Record { return completed(fmt.Sprintf("t%d.1", i), 100) })
	b.Close()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	b = newOn(t, db, nil)
	swap(t, b, "more", "", running("a.1"))
	checkFile(t, b)
	db.Close()
	b = open(t, path, nil)
	if r := get(t, b, "more"); r.Token != "a.1" {
		t.Errorf("the record is %+v", r)
	}
	checkFile(t, b)
}

// A copy that was made while the store was in use opens, and goes on.
func TestOpenBackup(t *testing.T) {
	db := openDB(t, testPath(t))
	b := newOn(t, db, nil)
	for i := range 6 {
		swap(t, b, numbered(i), "", completed("a.1", 10))
		for commits := range 4 {
			copied := testPath(t)
			if err := db.View(func(tx *bbolt.Tx) error { return tx.CopyFile(copied, 0o600) }); err != nil {
				t.Fatal(err)
			}
			c := open(t, copied, nil)
			for j := range commits {
				swap(t, c, fmt.Sprintf("in the copy %d", j), "", completed("b.1", 10))
			}
			c.Close()
			if r := get(t, open(t, copied, nil), numbered(i)); r.Token != "a.1" {
				t.Fatalf("copy %d after %d commits: %+v", i, commits, r)
			}
		}
	}
}

func TestReadOnlyOption(t *testing.T) {
	path := testPath(t)
	b := open(t, path, nil)
	swap(t, b, "k", "", completed("a.1", 10))
	b.Close()
	before := readFile(t, path)
	for name, opts := range map[string]*Options{"own": {ReadOnly: true}, "shared": {ReadOnly: true, Shared: true}} {
		t.Run(name, func(t *testing.T) {
			b := open(t, path, opts)
			checkReadOnly(t, b)
		})
	}
	t.Run("a caller's", func(t *testing.T) {
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		checkReadOnly(t, newOn(t, db, nil))
	})
	if string(readFile(t, path)) != string(before) {
		t.Error("the file was changed")
	}
}

func checkReadOnly(t testing.TB, b *Backend) {
	t.Helper()
	ctx := t.Context()
	if r := get(t, b, "k"); r.Token != "a.1" {
		t.Errorf("Get: %+v", r)
	}
	if es, _, err := b.List(ctx, idem.Query{}); err != nil || len(es) != 1 {
		t.Errorf("List: %v, %v", es, err)
	}
	if got, err := b.Swap(ctx, "k", "", running("b.1")); err != nil || got.Token != "a.1" {
		t.Errorf("a Swap that is in conflict: %+v, %v", got, err)
	}
	if _, err := b.Swap(ctx, "other", "", running("b.1")); err == nil {
		t.Error("a Swap of a free key: no error")
	} else {
		mentions(t, err, "reading only")
	}
	if _, err := b.Sweep(ctx, 10); err == nil {
		t.Error("Sweep: no error")
	}
	_, err := b.Do(ctx, newStore(t, b, nil), "other", fp, neverInTx(t))
	if !errors.Is(err, idem.ErrUnavailable) {
		t.Errorf("Do: %v", err)
	}
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
