//go:build unix

package main

import (
	"crypto/rand"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

func TestSignalsArePassedOn(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	got := b.gate("got")
	b.env = append(b.env, "IDEM_TEST_CHILD=signals:terminated")
	p := b.start(runArgs("--key k1 --ok-codes 7", testBinary(t))...)
	// Without a terminal of its own: what is sent to idem comes from somebody
	// who means idem alone.
	if line := got.wait(); line != fmt.Sprint("run by ", p.cmd.Process.Pid) {
		t.Fatal(line)
	}
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGTERM} {
		p.signal(s)
		if line := got.wait(); line != s.String() {
			t.Fatalf("the command received %q, want %q", line, s)
		}
	}
	p.wait().expect(t, 7, "map[hangup:1 interrupt:1 quit:1 terminated:1]\n")
	b.idem(runArgs("--key k1", testBinary(t))...).expect(t, 7, "map[hangup:1 interrupt:1 quit:1 terminated:1]\n")
}

func TestSignalThatEndsTheCommand(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	ready := b.gate("ready")
	b.gate("gate")
	p := b.start(runArgs("--key k1", "sh", "-c", "echo ready > ready; read go < gate")...)
	ready.wait()
	p.signal(syscall.SIGTERM)
	p.wait().expect(t, 143, "", "ended by signal 15 (terminated)", "the next run takes over")
}

// A signal that was ignored before idem began stays ignored, in the command
// too: this is how nohup works.
func TestIgnoredSignalsStayIgnored(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	ready := b.gate("ready")
	gate := b.gate("gate")
	idem := strings.Join([]string{quote(program), "run --key k1 -- sh -c 'echo ready > ready; read go < gate; kill -HUP $$; echo alive'"}, " ")
	cmd := b.cmd()
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", `trap "" HUP; exec ` + idem}
	out := &strings.Builder{}
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready.wait()
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	gate.open()
	if err := cmd.Wait(); err != nil || out.String() != "alive\n" {
		t.Errorf("stdout is %q, %v", out, err)
	}
}

func TestWaitingForADuplicate(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	ready, gate := b.gate("ready"), b.gate("gate")
	slow := []string{"sh", "-c", "echo ready > ready; read go < gate; echo charged | tee -a ledger.txt"}
	first := b.start(runArgs("--key k1", slow...)...)
	ready.wait()

	b.idem(runArgs("--key k1 --no-wait", slow...)...).expect(t, exitInProgress, "",
		`key "k1": attempt 1 is running, with `, "of its lease left; nothing was run", "without --no-wait")
	b.idem(runArgs("--key k1 --no-wait", "true")...).expect(t, exitMismatch, "", "attempt 1 is running")

	// One gives up, one waits to the end.
	told := b.startWatched(runArgs("--key k1 -v", slow...)...)
	told.waitFor("waiting for its result")
	impatient := b.startWatched(runArgs("--key k1 -v", slow...)...)
	impatient.waitFor("waiting for its result")
	impatient.signal(syscall.SIGINT)
	impatient.wait().expect(t, 130, "", `key "k1": interrupted (interrupt); nothing was run`)

	gate.open()
	first.wait().expect(t, 0, "charged\n")
	told.wait().expect(t, 0, "charged\n", "attempt 1 is running; waiting for its result", "this is a replay of attempt 1")
	b.wantEffects(1)
}

// A claim that could not be extended in time is taken over; the attempt that
// lost it has to stop.
func TestLostClaim(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	ready := b.gate("ready")
	b.gate("gate")
	command := []string{"sh", "-c", `echo run >> ledger.txt; [ $IDEM_ATTEMPT = 1 ] || exit 0; echo ready > ready; read go < gate`}
	p := b.start(runArgs("--key k1 --lease 1s", command...)...)
	ready.wait()
	p.signal(syscall.SIGSTOP) // the command goes on
	b.idem(runArgs("--key k1 --lease 1s", command...)...).expect(t, 0, "")
	p.signal(syscall.SIGCONT)
	p.wait().expect(t, exitNotRecorded, "", "attempt 1 has lost its claim while the command was running",
		"the command was ended by signal 15", "find out what has happened")
	b.wantEffects(2)
	b.idem("show", "k1").expectPart(t, 0, "status\tcompleted\nattempt\t2\n")
}

// A command may take longer than its lease.
func TestLeaseIsExtended(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	ready, gate := b.gate("ready"), b.gate("gate")
	slow := []string{"sh", "-c", "echo ready > ready; read go < gate; echo charged | tee -a ledger.txt"}
	p := b.start(runArgs("--key k1 --lease 1s", slow...)...)
	ready.wait()
	// The lease of another key, begun later and not extended, shows the time.
	other := b.start(runArgs("--key k2 --lease 1500ms", slow...)...)
	ready.wait()
	other.signal(syscall.SIGKILL)
	other.wait()
	b.idem(runArgs("--key k2", "sh", "-c", "true")...).expect(t, exitMismatch, "", "attempt 1")
	takeover := b.start(runArgs("--key k2", slow...)...)
	ready.wait() // at least 1.5 s later
	b.idem(runArgs("--key k1 --no-wait", slow...)...).expect(t, exitInProgress, "", "is running")
	gate.open()
	gate.open()
	for _, r := range []*running{p, takeover} {
		r.wait().expect(t, 0, "charged\n")
	}
	b.wantEffects(2)
}

// expectPart checks the exit code and a part of standard output.
func (d done) expectPart(t *testing.T, code int, part string) {
	t.Helper()
	if d.code != code || !strings.Contains(d.stdout, part) {
		t.Errorf("got %v\nwant exit code %d, stdout with %q", d, code, part)
	}
}

// startWatched starts idem so that a test can wait for what it says.
func (b *box) startWatched(args ...string) *watched {
	b.t.Helper()
	said := b.gate("said-" + rand.Text())
	w := &watched{running: &running{b.t, b.cmd(args...), nil, nil}, said: said}
	w.cmd.Stdout, w.cmd.Stderr = &w.printed, said.f
	if err := w.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	return w
}

type watched struct {
	*running
	said    *gate
	printed strings.Builder
	lines   strings.Builder // of standard error, as far as they were waited for
}

func (w *watched) waitFor(part string) {
	w.t.Helper()
	for {
		line := w.said.wait()
		w.lines.WriteString(line + "\n")
		if strings.Contains(line, part) {
			return
		}
	}
}

// wait waits for the end, which idem must have said something about.
func (w *watched) wait() done {
	w.t.Helper()
	_ = w.cmd.Wait()
	w.lines.WriteString(w.said.wait() + "\n")
	return done{w.cmd.ProcessState.ExitCode(), w.printed.String(), w.lines.String()}
}
