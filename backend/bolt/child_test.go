package bolt

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Tests that need another process run this test binary again: the variable names
// the job, and the arguments follow after "--".
const childEnv = "IDEM_BOLT_CHILD"

// childJobs are what a child can do. An error is printed, and is its exit code 1.
var childJobs = map[string]func(args []string) error{
	"hold":  childHold,
	"open":  childOpen,
	"write": childWrite,
	"share": childShare,
}

func runChild(job string) int {
	args := os.Args[1:]
	for i, arg := range args {
		if arg == "--" {
			args = args[i+1:]
			break
		}
	}
	run, ok := childJobs[job]
	if !ok {
		run, ok = linuxJobs[job]
	}
	if !ok {
		fmt.Fprintf(os.Stderr, "there is no job %q\n", job)
		return 2
	}
	if err := run(args); err != nil {
		fmt.Println("error:", err)
		return 1
	}
	return 0
}

// A child is a process that does a job.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// childCommand returns the command that does a job, to be started by the caller.
func childCommand(t testing.TB, job string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, append([]string{"--"}, args...)...)
	cmd.Env = append(os.Environ(), childEnv+"="+job, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	return cmd
}

// startChild starts a child, which dies with the test.
func startChild(t testing.TB, cmd *exec.Cmd) *child {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd, in, bufio.NewScanner(out)}
	t.Cleanup(c.kill)
	return c
}

// line returns the next line that the child prints, or "" at the end.
func (c *child) line() string {
	if !c.out.Scan() {
		return ""
	}
	return c.out.Text()
}

// kill kills the child, if it runs, and waits for its end.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.in.Close()
	_ = c.cmd.Wait()
}

// childHold opens a file and holds it until its input ends.
func childHold(args []string) error {
	b, err := Open(args[0], nil)
	if err != nil {
		return err
	}
	r := completed("child.1", 10)
	if _, err := b.Swap(context.Background(), "child", "", r); err != nil {
		return err
	}
	fmt.Println("held")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return b.Close()
}

// holdElsewhere has another process hold the file.
func holdElsewhere(t testing.TB, path string) *child {
	t.Helper()
	c := startChild(t, childCommand(t, "hold", path))
	if got := c.line(); got != "held" {
		t.Fatalf("the child says %q", got)
	}
	return c
}

// prompt fails the test if what is bounded by limit took far longer.
func prompt(t testing.TB, start time.Time, limit time.Duration, what string) {
	t.Helper()
	if took := time.Since(start); took > limit+5*time.Second {
		t.Errorf("%s took %v, and should end after about %v", what, took, limit)
	}
}

// mentions fails the test if err does not name what a reader needs.
func mentions(t testing.TB, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("the error %q does not mention %q", fmt.Sprint(err), w)
		}
	}
}
