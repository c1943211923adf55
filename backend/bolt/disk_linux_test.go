package bolt

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

// linuxJobs are what a child can do on this system only.
var linuxJobs = map[string]func(args []string) error{
	"disk":      childDisk,
	"limit":     childLimit,
	"read-only": childReadOnly,
}

// untilFull stores records until that fails and returns the keys that are stored
// and the error. The records are of such a size that there is no room for a
// smaller one either.
func untilFull(b *Backend, name string) (keys []string, err error) {
	for i := 0; ; i++ {
		key := fmt.Sprintf("%s-%d", name, i)
		if _, err := b.Swap(context.Background(), key, "", completed(key+".1", 2000)); err != nil {
			return keys, err
		}
		keys = append(keys, key)
	}
}

// checkFull makes sure that a full disk was said to be one, and harms nothing.
func checkFull(b *Backend, keys []string, full error) error {
	switch {
	case !diskFull(full):
		return fmt.Errorf("the error of a full disk is %w", full)
	case !definite(full):
		return fmt.Errorf("the error of a full disk leaves it open whether the record was stored: %w", full)
	case len(keys) == 0:
		return errors.New("nothing could be stored at all")
	}
	for _, key := range append(keys, "absent") {
		r, err := b.Get(context.Background(), key)
		if err != nil || (r.Token == key+".1") != (key != "absent") {
			return fmt.Errorf("Get(%q) on a full disk: %+v, %w", key, r, err)
		}
	}
	return nil
}

// A disk that fills up: nothing is half done, reading goes on, and writing too
// when there is room again.
func TestDiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Skip(t, "root", "the test mounts a file system")
	}
	for name, opts := range map[string]*Options{"own": nil, "shared": {Shared: true}} {
		t.Run(name, func(t *testing.T) {
			dir := testenv.Dir(t)
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
				testenv.Skip(t, "mount", "tmpfs cannot be mounted: %v", err)
			}
			defer func() { _ = syscall.Unmount(dir, 0) }()
			ballast := filepath.Join(dir, "ballast")
			writeFile(t, ballast, make([]byte, 300_000))
			b, err := Open(filepath.Join(dir, "idem.db"), opts)
			if err != nil {
				t.Fatal(err)
			}
			closed := false
			defer func() {
				if !closed {
					_ = b.Close()
				}
			}()
			var stored []string
			for round := range 3 {
				keys, full := untilFull(b, fmt.Sprint(round))
				if err := checkFull(b, keys, full); err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				stored = append(stored, keys...)
				// A failed commit is retried by nobody: it must not come later.
				if r := get(t, b, fmt.Sprintf("%d-%d", round, len(keys))); r.Token != "" {
					t.Fatalf("round %d: the record that did not fit is there: %+v", round, r)
				}
				if err := os.Truncate(ballast, int64(200_000-100_000*round)); err != nil {
					t.Fatal(err)
				}
			}
			swap(t, b, "room again", "", completed("a.1", 10))
			checkFile(t, b)
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			closed = true
			again, err := Open(filepath.Join(dir, "idem.db"), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range stored {
				if r := get(t, again, key); r.Token != key+".1" {
					t.Errorf("%s: %+v", key, r)
				}
			}
			checkFile(t, again)
			if err := again.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The same with a limit for the size of files, for which no root is needed.
func TestFileSizeLimit(t *testing.T) {
	cmd := childCommand(t, "limit", testPath(t))
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("the child: %v\n%s", err, out)
	}
}

func childLimit(args []string) error {
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		return err
	}
	b, err := Open(args[0], nil)
	if err != nil {
		return err
	}
	small := before
	small.Cur = 700_000
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &small); err != nil {
		return err
	}
	keys, full := untilFull(b, "k")
	if err := checkFull(b, keys, full); err != nil {
		return err
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		return err
	}
	if _, err := b.Swap(context.Background(), "room again", "", completed("a.1", 10)); err != nil {
		return err
	}
	return b.Close()
}

// An error of the disk, at any write or sync of a claim, a completion or a sweep:
// the caller is told, the backend refuses everything after that, and when the file
// is opened again it is whole, with all that was acknowledged.
func TestDiskErrors(t *testing.T) {
	commandExists(t, "strace")
	type count struct{ failed, fine int }
	for _, op := range []string{"claim", "complete", "sweep"} {
		for _, call := range []string{"pwrite64", "fdatasync"} {
			t.Run(op+" "+call, func(t *testing.T) {
				var n count
				for nth := 1; nth <= 8; nth++ {
					if diskError(t, op, call, nth) {
						n.failed++
					} else {
						n.fine++
					}
				}
				t.Logf("%d rounds met the error, %d did not get as far", n.failed, n.fine)
				if n.failed < 2 {
					t.Errorf("only %d of 8 rounds met an error: the test proves nothing", n.failed)
				}
			})
		}
	}
}

// diskError runs one operation in a child whose n-th system call of a kind fails,
// and reports whether it did.
func diskError(t *testing.T, op, call string, nth int) (failed bool) {
	t.Helper()
	path := testPath(t)
	c := startChild(t, childCommand(t, "disk", path, op))
	if got := c.line(); got != "ready" {
		t.Fatalf("the child says %q", got)
	}
	tracer := exec.Command("strace", "-f", "-qq", "-p", fmt.Sprint(c.cmd.Process.Pid),
		"-e", "trace="+call, "-e", fmt.Sprintf("inject=%s:error=EIO:when=%d", call, nth), "-o", path+".trace")
	if err := tracer.Start(); err != nil {
		testenv.Skip(t, "strace", "%v", err)
	}
	defer func() {
		_ = tracer.Process.Signal(os.Interrupt)
		_ = tracer.Wait()
	}()
	if !traced(t, c.cmd.Process.Pid, tracer) {
		testenv.Skip(t, "strace", "it cannot trace a process here")
	}
	fmt.Fprintln(c.in, "go")
	result := c.line()
	after := c.line()
	_ = c.in.Close()
	end := c.line()
	switch {
	case strings.HasPrefix(result, "failed: "):
		if !strings.Contains(result, "input/output error") || !strings.HasPrefix(after, "unavailable: ") || !strings.Contains(after, "input/output error") {
			t.Errorf("%s %d: %q, and then %q", call, nth, result, after)
		}
	case result == "done":
		if after != "available" {
			t.Errorf("%s %d: %q, and then %q", call, nth, result, after)
		}
	default:
		t.Fatalf("%s %d: the child says %q, %q, %q", call, nth, result, after, end)
	}
	c.kill()

	b := open(t, path, nil)
	checkFile(t, b)
	store := newStore(t, b, nil)
	if _, done, err := store.Begin(t.Context(), "acknowledged", fp); err != nil || done == nil || done.Result.Code != 7 {
		t.Errorf("%s %d: what was acknowledged before gives %+v, %v", call, nth, done, err)
	}
	r := get(t, b, "key")
	acked := result == "done"
	switch {
	case op == "claim" && acked, op == "sweep":
		if r.Status != idem.InProgress {
			t.Errorf("%s %d: %q, and the claim is %+v", call, nth, result, r)
		}
	case op == "complete" && (r.Status != idem.Completed && (acked || r.Status != idem.InProgress)):
		t.Errorf("%s %d: %q, and the record is %+v", call, nth, result, r)
	case op == "claim" && r.Status == idem.Completed:
		t.Errorf("%s %d: %q, and the record is %+v", call, nth, result, r)
	}
	return !acked
}

// traced waits until all threads of a process are traced by tracer.
func traced(t *testing.T, pid int, tracer *exec.Cmd) bool {
	t.Helper()
	ctx := within(t, 20*time.Second)
	for ctx.Err() == nil {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return false
		}
		all := true
		for _, thread := range threads {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", pid, thread.Name()))
			if err != nil || !strings.Contains(string(status), fmt.Sprintf("TracerPid:\t%d\n", tracer.Process.Pid)) {
				all = false
			}
		}
		if all {
			return true
		}
		if tracer.Process.Signal(syscall.Signal(0)) != nil {
			return false
		}
	}
	return false
}

// childDisk prepares a store, waits for the word, and does one operation.
func childDisk(args []string) error {
	path, op := args[0], args[1]
	b, err := Open(path, nil)
	if err != nil {
		return err
	}
	machine := newFakeClock()
	machine.use(b)
	store, err := idem.New(b, nil)
	if err != nil {
		return err
	}
	ctx := context.Background()
	var claim *idem.Claim
	for i := range 120 {
		r := completed(fmt.Sprintf("old%d.1", i), 500)
		if i%2 == 0 {
			r.TTL = time.Hour
		}
		if _, err := b.Swap(ctx, fmt.Sprintf("old-%d", i), "", r); err != nil {
			return err
		}
	}
	for _, key := range []string{"acknowledged", "key"} {
		if op == "claim" && key == "key" {
			break
		}
		if claim, _, err = store.Begin(ctx, key, fp); err != nil {
			return err
		}
		if key == "acknowledged" {
			if err := store.Complete(ctx, claim, idem.Result{Code: 7}); err != nil {
				return err
			}
		}
	}
	if op == "sweep" {
		machine.pass(time.Hour)
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	in.Scan()
	switch op {
	case "claim":
		_, _, err = store.Begin(ctx, "key", fp)
	case "complete":
		err = store.Complete(ctx, claim, idem.Result{Code: 8})
	case "sweep":
		_, err = b.Sweep(ctx, 1000)
	}
	if err != nil {
		fmt.Println("failed:", err)
	} else {
		fmt.Println("done")
	}
	_, after := store.Lookup(ctx, "acknowledged")
	switch {
	case errors.Is(after, idem.ErrUnavailable):
		fmt.Println("unavailable:", after)
	case after == nil:
		fmt.Println("available")
	default:
		fmt.Println("Lookup:", after)
	}
	in.Scan() // the end of the input: nothing is written any more
	return nil
}

// commandExists skips the test if a program is not there.
func commandExists(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		testenv.Skip(t, name, "%v", err)
	}
}
