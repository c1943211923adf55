//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/idem-go/idem/internal/testenv"
)

// patience is how long a test waits for something that is bound to happen.
const patience = 60 * time.Second

var program string // of idem, built once

func TestMain(m *testing.M) {
	if mode := os.Getenv("IDEM_TEST_CHILD"); mode != "" {
		child(mode)
		return
	}
	// In the background of a shell, or under nohup, signals may be ignored, and
	// what is started here would inherit that. What is caught is not inherited.
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGTERM} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	code := buildAndRun(m)
	stopServers()
	os.Exit(testenv.Leaks(code))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "idem-cmd")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "idem")
	build := exec.Command("go", "build", "-o", program)
	if testenv.Race {
		build.Args = append(build.Args, "-race")
	}
	build.Args = append(build.Args, ".")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// A box is a folder in which idem is run for real, with a store of its own.
type box struct {
	t   *testing.T
	dir string
	env []string
	url string // of the store, if it is not the default one
}

func newBox(t *testing.T) *box {
	t.Helper()
	dir := testenv.Dir(t)
	return &box{t: t, dir: dir, env: []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + dir,
		"XDG_STATE_HOME=" + filepath.Join(dir, "state"),
		"GORACE=atexit_sleep_ms=0", // with -race, each call would end with a second of sleep
	}}
}

func (b *box) path(name string) string { return filepath.Join(b.dir, name) }

// store is the path of the default store.
func (b *box) store() string { return b.path("state/idem/idem.db") }

// A done is how a call of idem ended.
type done struct {
	code           int
	stdout, stderr string
}

func (d done) String() string {
	return fmt.Sprintf("exit code %d\nstdout: %q\nstderr: %q", d.code, d.stdout, d.stderr)
}

// cmd returns a call of idem that has not been started.
func (b *box) cmd(args ...string) *exec.Cmd {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*patience)
	b.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = b.dir, b.env
	return cmd
}

// idem runs idem to its end.
func (b *box) idem(args ...string) done {
	b.t.Helper()
	return finish(b.t, b.cmd(args...), nil)
}

// idemWith runs idem to its end with a standard input.
func (b *box) idemWith(stdin string, args ...string) done {
	b.t.Helper()
	cmd := b.cmd(args...)
	cmd.Stdin = strings.NewReader(stdin)
	return finish(b.t, cmd, nil)
}

// finish runs cmd to its end, or, if it was started, waits for that.
func finish(t *testing.T, cmd *exec.Cmd, p *running) done {
	t.Helper()
	var out, errs bytes.Buffer
	var err error
	if p == nil {
		cmd.Stdout, cmd.Stderr = &out, &errs
		err = cmd.Run()
	} else {
		err = cmd.Wait()
		out, errs = *p.out, *p.errs
	}
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	code := cmd.ProcessState.ExitCode()
	if w := cmd.ProcessState.Sys().(syscall.WaitStatus); w.Signaled() {
		code = -int(w.Signal())
	}
	if strings.Contains(errs.String(), "DATA RACE") {
		t.Errorf("%v: %s", cmd.Args, errs.String())
	}
	return done{code, out.String(), errs.String()}
}

// A running is a call of idem that was started.
type running struct {
	t         *testing.T
	cmd       *exec.Cmd
	out, errs *bytes.Buffer
}

func (b *box) start(args ...string) *running {
	b.t.Helper()
	p := &running{b.t, b.cmd(args...), new(bytes.Buffer), new(bytes.Buffer)}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.errs
	if err := p.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	return p
}

func (p *running) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *running) wait() done {
	p.t.Helper()
	return finish(p.t, p.cmd, p)
}

// A gate is a FIFO by which a test and a command wait for each other.
type gate struct {
	t *testing.T
	f *os.File
}

func (b *box) gate(name string) *gate {
	b.t.Helper()
	if err := syscall.Mkfifo(b.path(name), 0o600); err != nil {
		b.t.Fatal(err)
	}
	// Open at both ends, so that neither side waits in opening it.
	f, err := os.OpenFile(b.path(name), os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { f.Close() })
	return &gate{b.t, f}
}

// wait waits until a command has written a line to the gate, and returns it.
func (g *gate) wait() string {
	g.t.Helper()
	if err := g.f.SetReadDeadline(time.Now().Add(patience)); err != nil {
		g.t.Fatal(err)
	}
	var line []byte
	for c := make([]byte, 1); ; line = append(line, c[0]) {
		if _, err := g.f.Read(c); err != nil {
			g.t.Fatalf("waiting at the gate %s: %v", g.f.Name(), err)
		}
		if c[0] == '\n' {
			return string(line)
		}
	}
}

// open lets a command that reads a line from the gate go on.
func (g *gate) open() {
	g.t.Helper()
	if _, err := g.f.WriteString("go\n"); err != nil {
		g.t.Fatal(err)
	}
}

func (b *box) read(name string) string {
	b.t.Helper()
	data, err := os.ReadFile(b.path(name))
	if err != nil && !os.IsNotExist(err) {
		b.t.Fatal(err)
	}
	return string(data)
}

func (b *box) write(name, content string) {
	b.t.Helper()
	if err := os.WriteFile(b.path(name), []byte(content), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// expect checks how a call ended: its exit code, what it printed exactly, and
// parts of its messages.
func (d done) expect(t *testing.T, code int, stdout string, messages ...string) {
	t.Helper()
	if d.code != code || d.stdout != stdout {
		t.Errorf("got %v\nwant exit code %d, stdout %q", d, code, stdout)
	}
	for _, m := range messages {
		if !strings.Contains(d.stderr, m) {
			t.Errorf("stderr is %q\nand lacks %q", d.stderr, m)
		}
	}
	if len(messages) == 0 && d.stderr != "" {
		t.Errorf("stderr is %q, want nothing", d.stderr)
	}
	for line := range strings.Lines(d.stderr) {
		if len(messages) > 0 && !strings.HasPrefix(line, "idem: ") {
			t.Errorf("a message does not begin with \"idem: \": %q", line)
		}
	}
}

// charge is a command whose effect is a line in ledger.txt.
var charge = []string{"sh", "-c", "echo charged | tee -a ledger.txt"}

// runArgs returns the arguments of idem run with flags for a command.
func runArgs(flags string, command ...string) []string {
	args := append([]string{"run"}, strings.Fields(flags)...)
	return append(append(args, "--"), command...)
}

// effects returns how many lines the ledger has.
func (b *box) effects() int { return strings.Count(b.read("ledger.txt"), "\n") }

func (b *box) wantEffects(n int) {
	b.t.Helper()
	if got := b.effects(); got != n {
		b.t.Errorf("the command had its effect %d times, want %d", got, n)
	}
}

// wantNothingWritten checks that the call has left no trace in the box.
func (b *box) wantNothingWritten() {
	b.t.Helper()
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range entries {
		b.t.Errorf("%s was written", e.Name())
	}
}
