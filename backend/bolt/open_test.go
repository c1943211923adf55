package bolt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
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
	_, err := b.Do(ctx, newStore(t, b, nil), "other", fp, neverRunTx)
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

// A file, directory or file system that may not be written gives a clear error at
// once, which is not ErrLocked; ReadOnly can read it.
func TestReadOnlyFile(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Skip(t, "root", "the test mounts a file system and changes its user id")
	}
	good := testPath(t)
	b := open(t, good, nil)
	swap(t, b, "k", "", completed("a.1", 10))
	b.Close()
	content := readFile(t, good)

	// A place that the user 65534 can reach.
	place := func(t *testing.T, fileMode, dirMode os.FileMode) (path string) {
		t.Helper()
		dir := testenv.Dir(t)
		path = filepath.Join(dir, "idem.db")
		if fileMode != 0 {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, fileMode); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(dir, dirMode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	asNobody := func(t *testing.T, path string) string {
		t.Helper()
		self := filepath.Join(testenv.Dir(t), "test")
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile(self, readFile(t, exe), 0o755), os.Chmod(filepath.Dir(self), 0o755)); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self, "--", path)
		cmd.Env = append(os.Environ(), childEnv+"=read-only", "GORACE=atexit_sleep_ms=0")
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("the child: %v\n%s", err, out)
		}
		return string(out)
	}
	t.Run("file", func(t *testing.T) {
		out := asNobody(t, place(t, 0o444, 0o755))
		if !strings.Contains(out, "write: permission") || !strings.Contains(out, "read: a.1") {
			t.Error(out)
		}
	})
	t.Run("directory", func(t *testing.T) {
		out := asNobody(t, place(t, 0, 0o555))
		if !strings.Contains(out, "write: permission") || !strings.Contains(out, "read: missing") {
			t.Error(out)
		}
	})
	t.Run("unreadable", func(t *testing.T) {
		out := asNobody(t, place(t, 0o200, 0o755))
		if !strings.Contains(out, "write: permission") || !strings.Contains(out, "read: permission") {
			t.Error(out)
		}
	})
	t.Run("mount", func(t *testing.T) {
		dir := testenv.Dir(t)
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
			testenv.Skip(t, "mount", "tmpfs cannot be mounted: %v", err)
		}
		defer syscall.Unmount(dir, 0)
		path := filepath.Join(dir, "idem.db")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{path, path + "2"} {
			_, err := Open(p, nil)
			if !errors.Is(err, syscall.EROFS) || errors.Is(err, idem.ErrLocked) {
				t.Errorf("Open: %v", err)
			}
			mentions(t, err, p, "read-only", "Options.ReadOnly")
		}
		b, err := Open(path, &Options{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		if r := get(t, b, "k"); r.Token != "a.1" {
			t.Errorf("the record is %+v", r)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// childReadOnly opens a file as a user who may not write it, and says what it gets.
func childReadOnly(args []string) error {
	say := func(what string, opts *Options) error {
		b, err := Open(args[0], opts)
		switch {
		case errors.Is(err, idem.ErrLocked):
			fmt.Println(what + ": locked")
		case errors.Is(err, fs.ErrPermission):
			fmt.Println(what+": permission", err)
		case errors.Is(err, idem.ErrStoreLost):
			fmt.Println(what+": missing", err)
		case err != nil:
			return err
		default:
			r, err := b.Get(context.Background(), "k")
			fmt.Println(what+":", r.Token, err)
			return b.Close()
		}
		return nil
	}
	return errors.Join(say("write", nil), say("read", &Options{ReadOnly: true}))
}
