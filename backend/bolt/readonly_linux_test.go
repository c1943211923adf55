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
	"syscall"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

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
