//go:build unix

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/idem-go/idem/internal/testenv"
)

func TestTwiceIsOnce(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for range 2 {
		b.idem(runArgs("--key demo-1", charge...)...).expect(t, 0, "charged\n")
	}
	b.wantEffects(1)
	info, err := os.Stat(b.store())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Stat(filepath.Dir(b.store()))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 || dir.Mode().Perm() != 0o700 {
		t.Errorf("the store has the mode %v, its folder %v; want 0600 and 0700", info.Mode().Perm(), dir.Mode().Perm())
	}
}

func TestTenAtOnceIsOnce(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	var all sync.WaitGroup
	results := make([]done, 10)
	for i := range results {
		cmd := b.cmd(runArgs("--key demo-1", charge...)...)
		all.Go(func() {
			out, err := cmd.Output()
			results[i] = done{cmd.ProcessState.ExitCode(), string(out), fmt.Sprint(err)}
		})
	}
	all.Wait()
	for i, r := range results {
		if r.code != 0 || r.stdout != "charged\n" {
			t.Errorf("call %d: %v", i, r)
		}
	}
	b.wantEffects(1)
}

func TestAnotherCommandIsRefused(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.idem(runArgs("--key k1", charge...)...).expect(t, 0, "charged\n")
	for _, command := range [][]string{
		{"sh", "-c", "echo charged twice | tee -a ledger.txt"},
		{"sh", "-c", "echo charged | tee -a ledger.txt", "more"},
		{"sh", "-cecho charged | tee -a ledger.txt"},
		{"/bin/sh", "-c", "echo charged | tee -a ledger.txt"},
	} {
		b.idem(runArgs("--key k1", command...)...).expect(t, exitMismatch, "",
			`key "k1" belongs to another command or other input: attempt 1 was completed`, "nothing was run", "idem show k1")
	}
	b.wantEffects(1)
	b.idem(runArgs("--key k1 --scope other", charge...)...).expect(t, 0, "charged\n")
	b.wantEffects(2)
}

// A command that is told may look before it repeats itself.
func TestOP2_KilledAfterTheEffect(t *testing.T) {
	t.Parallel()
	const careful = `
		if [ "$IDEM_TAKEOVER" = 1 ] && grep -q "^$IDEM_KEY$" ledger.txt; then echo found; exit; fi
		echo "$IDEM_KEY" >> ledger.txt
		echo charged
		echo done > effect; read go < gate`
	run := func(t *testing.T, policy string) *box {
		b := newBox(t)
		effect := b.gate("effect")
		b.gate("gate")
		p := b.start(runArgs("--key k1 --lease 1s --on-lapse "+policy, "sh", "-c", careful)...)
		effect.wait()
		p.signal(syscall.SIGKILL)
		if d := p.wait(); d.code != -9 {
			t.Fatal(d)
		}
		return b
	}
	t.Run("takeover", func(t *testing.T) {
		t.Parallel()
		b := run(t, "takeover")
		// It waits until the lease is over.
		b.idem(runArgs("--key k1 --lease 1s -v", "sh", "-c", careful)...).expect(t, 0, "found\n",
			"is running; waiting", "ended without a known outcome; running the command again as attempt 2")
		b.idem(runArgs("--key k1", "sh", "-c", careful)...).expect(t, 0, "found\n")
		b.wantEffects(1)
	})
	t.Run("hold", func(t *testing.T) {
		t.Parallel()
		b := run(t, "hold")
		for range 2 {
			b.idem(runArgs("--key k1 --lease 1s --on-lapse hold", "sh", "-c", careful)...).expect(t, exitUnresolved, "",
				`key "k1": attempt 1 ended without a known outcome`, "nothing was run", "idem show k1", "if it had: idem resolve --attempt 1 --code 0 k1", "idem forget --attempt 1 k1")
		}
		b.wantEffects(1)
		b.idem("list", "--lapsed").expectPart(t, 0, "\tover\tnever\t-\n")
	})
}

func TestKilledIdemTakesTheCommandWithIt(t *testing.T) {
	t.Parallel()
	if killedWithParent() == nil {
		testenv.Skip(t, "linux", "this system does not end a command whose parent is killed")
	}
	b := newBox(t)
	ready := b.gate("ready")
	b.gate("gate")
	if err := syscall.Mkfifo(b.path("alive"), 0o600); err != nil {
		t.Fatal(err)
	}
	alive, err := os.OpenFile(b.path("alive"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	// SIGTERM would not end this one.
	p := b.start(runArgs("--key k1", "sh", "-c", `trap "" TERM; exec 3> alive; echo ready > ready; read go < gate`)...)
	ready.wait()
	p.signal(syscall.SIGKILL)
	p.wait()
	if err := alive.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := alive.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the command did not end with idem: %v", err)
	}
}

func TestUnknownOutcomeIsTakenOver(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	show := []string{"sh", "-c", `echo $IDEM_KEY $IDEM_SCOPE $IDEM_ATTEMPT $IDEM_TAKEOVER; echo $IDEM_FENCE >> fences; exit $(cat code)`}
	for attempt, code := range []int{3, 1, 255, 0} {
		b.write("code", strconv.Itoa(code))
		takeover := min(attempt, 1)
		var messages []string
		if code != 0 {
			messages = []string{fmt.Sprintf("the command exited with %d, so whether attempt %d had its effect is unknown; the next run takes over", code, attempt+1)}
		}
		b.idem(runArgs("--key k1 --scope a --scope b", show...)...).expect(t, code, fmt.Sprintf("k1 a/b %d %d\n", attempt+1, takeover), messages...)
	}
	b.idem(runArgs("--key k1 --scope a --scope b", show...)...).expect(t, 0, "k1 a/b 4 1\n")
	fences := strings.Fields(b.read("fences"))
	if len(fences) != 4 || !slices.IsSorted(fences) || len(slices.Compact(fences)) != 4 {
		t.Errorf("the fences do not rise: %v", fences)
	}
}

func TestUnknownOutcomeIsHeld(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	failing := []string{"sh", "-c", "echo tried; exit 4"}
	b.idem(runArgs("--key k1 --on-lapse hold", failing...)...).expect(t, 4, "tried\n", "the key is held until it is decided what has happened")
	b.idem(runArgs("--key k1 --on-lapse hold", failing...)...).expect(t, exitUnresolved, "", "nothing was run")
	b.idem(runArgs("--key k1", failing...)...).expect(t, 4, "tried\n", "attempt 2")
}

func TestOkCodes(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	refused := []string{"sh", "-c", "echo refused | tee -a ledger.txt; exit 3"}
	for range 2 {
		b.idem(runArgs("--key k1 --ok-codes 0,3", refused...)...).expect(t, 3, "refused\n")
	}
	b.wantEffects(1)
	// What is recorded stays recorded, whatever later calls call success.
	b.idem(runArgs("--key k1", refused...)...).expect(t, 3, "refused\n")
	b.wantEffects(1)
}

func TestEndedBySignal(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	// An exit code of that number is one thing, the signal another.
	b.idem(runArgs("--key k1 --ok-codes 0,143", "sh", "-c", "kill -TERM $$")...).expect(t, 143, "",
		"the command was ended by signal 15 (terminated), so whether attempt 1 had its effect is unknown")
	b.idem(runArgs("--key k1", "sh", "-c", "kill -TERM $$")...).expect(t, 143, "", "attempt 2")
	b.idem(runArgs("--key k2", "sh", "-c", "kill -KILL $$")...).expect(t, 137, "", "signal 9")
}

func TestCommandThatCannotBeStarted(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.write("data", "no program")
	b.idem(runArgs("--key k1", "no-such-command-here")...).expect(t, exitNotFound, "", "cannot be started", "the key is free")
	b.idem(runArgs("--key k1", "./no-such-file")...).expect(t, exitNotFound, "", "cannot be started")
	b.idem(runArgs("--key k1", "./data")...).expect(t, exitCannotRun, "", "cannot be started")
	b.idem(runArgs("--key k1", b.dir)...).expect(t, exitCannotRun, "", "cannot be started")
	// Nothing has happened: the key is free for another command, which takes
	// over from nobody, even under Hold.
	b.idem(runArgs("--key k1 --on-lapse hold", "sh", "-c", "echo $IDEM_TAKEOVER")...).expect(t, 0, "0\n")

	// This says nothing about an attempt before it.
	program := b.path("flaky")
	b.write("flaky", "#!/bin/sh\nexit 3\n")
	if err := os.Chmod(program, 0o700); err != nil {
		t.Fatal(err)
	}
	b.idem(runArgs("--key k2", program)...).expect(t, 3, "", "attempt 1")
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	b.idem(runArgs("--key k2", program)...).expect(t, exitNotFound, "", "what the attempt before it did is still unknown")
	b.idem(runArgs("--key k2 --on-lapse hold", program)...).expect(t, exitUnresolved, "", "attempt 2")
}

func TestStdinBelongsToTheKey(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	cat := runArgs("--key k1 --stdin", "sh", "-c", "cat; echo >> ledger.txt")
	b.idemWith("pay 10\x00\xff", cat...).expect(t, 0, "pay 10\x00\xff")
	b.idemWith("pay 10\x00\xff", cat...).expect(t, 0, "pay 10\x00\xff")
	b.idemWith("pay 11\x00\xff", cat...).expect(t, exitMismatch, "", "other input")
	b.idemWith("", cat...).expect(t, exitMismatch, "", "other input")
	// No input is another operation than input that nobody looks at.
	b.idemWith("", runArgs("--key k1", cat[4:]...)...).expect(t, exitMismatch, "", "other input")
	b.wantEffects(1)
	// Nor is input an argument.
	b.idemWith("x", runArgs("--key k2 --stdin", "echo")...).expect(t, 0, "\n")
	b.idemWith("x", runArgs("--key k2", "echo", "x")...).expect(t, exitMismatch, "", "other input")
}

func TestStdinIsPassedThrough(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	cat := runArgs("--key k1", "cat")
	b.idemWith("one", cat...).expect(t, 0, "one")
	b.idemWith("two", cat...).expect(t, 0, "one")
}

func TestStdinTheCommandDoesNotRead(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.idemWith(strings.Repeat("x", 1<<20), runArgs("--key k1 --stdin", "echo", "hi")...).expect(t, 0, "hi\n")
}

func TestStdinAboveTheLimit(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	cmd := b.cmd(runArgs("--key k1 --stdin", "cat")...)
	cmd.Stdin = bytes.NewReader(make([]byte, maxStdin+1))
	finish(t, cmd, nil).expect(t, exitUsage, "", "more than 64 MiB")
	b.wantNothingWritten()
}

func TestBinaryOutputIsReplayedByteForByte(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.env = append(b.env, "IDEM_TEST_CHILD=bytes:200000")
	for range 2 {
		d := b.idem(runArgs("--key k1", testBinary(t))...)
		if d.code != 0 || d.stdout != string(allBytes(200_000)) || d.stderr != string(allBytes(100_000)) {
			t.Errorf("code %d, %d bytes on stdout, %d on stderr, or other ones", d.code, len(d.stdout), len(d.stderr))
		}
	}
}

func TestInterleavedOutputKeepsItsOrder(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	seed := testenv.Seed(t)
	b.env = append(b.env, fmt.Sprintf("IDEM_TEST_CHILD=pieces:%d", seed))
	var want [channels]bytes.Buffer
	for _, p := range pieces(seed) {
		want[p.from].Write(p.data)
	}
	args := runArgs("--key k1", testBinary(t))
	first, err := b.cmd(args...).CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.cmd(args...).CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, again) {
		t.Error("the replay has another order than the first run")
	}
	b.idem(args...).expectStreams(t, 0, want[stdout].String(), want[stderr].String())
}

// With pauses between the pieces the order is that of the command, exactly.
func TestOutputArrivesLiveAndInOrder(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	next := b.gate("next")
	args := runArgs("--key k1", "sh", "-c", `echo 1; read x < next; echo 2 >&2; read x < next; echo 3; read x < next; echo 4 >&2`)
	cmd := b.cmd(args...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1\n", "2\n", "3\n", "4\n"} {
		line := make([]byte, 2)
		if _, err := io.ReadFull(r, line); err != nil || string(line) != want {
			t.Fatalf("%q came, %v, want %q", line, err, want)
		}
		next.open()
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	again, err := b.cmd(args...).CombinedOutput()
	if err != nil || string(again) != "1\n2\n3\n4\n" {
		t.Errorf("the replay printed %q, %v", again, err)
	}
}

func TestPE3_OutputAboveTheLimit(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.env = append(b.env, "IDEM_TEST_CHILD=bytes:1000000")
	args := runArgs("--key k1 --ok-codes 0", testBinary(t))
	b.idem(args...).expectStreams(t, 0, string(allBytes(1_000_000)), string(allBytes(500_000)))
	for range 2 {
		b.idem(args...).expect(t, 0, "", `key "k1": attempt 1 is done`, "977 KiB on stdout and 488 KiB on stderr are left out")
	}
}

func TestBackgroundProcessThatHoldsTheOutput(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	g := b.gate("gate")
	args := runArgs("--key k1", "sh", "-c", `(read x < gate) & echo started`)
	b.idem(args...).expect(t, 0, "started\n", "a background process still holds its output")
	b.idem(args...).expect(t, 0, "started\n")
	g.open()
}

// However long the reader of the output takes, it gets all of it. There is more
// than one pipe holds, and less than the two between the command and the reader.
func TestSlowReaderOfTheOutput(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	ended := b.gate("ended")
	args := runArgs("--key k1", "sh", "-c", "head -c 120000 /dev/zero; echo > ended")
	cmd := b.cmd(args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended.wait()
	<-time.After(graceForOutput + time.Second)
	shown, err := io.ReadAll(out)
	if err != nil || len(shown) != 120_000 {
		t.Errorf("%d bytes are shown, want 120000; %v", len(shown), err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if d := b.idem(args...); len(d.stdout) != 120_000 || d.stderr != "" {
		t.Errorf("%d bytes are replayed, want 120000; %q", len(d.stdout), d.stderr)
	}
}

func TestReaderOfTheOutputGoesAway(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	gone := b.gate("gone")
	args := runArgs("--key k1", "sh", "-c", `echo first; read x < gone; echo second; echo third; echo >> ledger.txt`)
	cmd := b.cmd(args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("first\n"))); err != nil {
		t.Fatal(err)
	}
	out.Close()
	gone.open()
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 141 {
		t.Errorf("exit code %d, want 141 as after SIGPIPE", got)
	}
	b.wantEffects(1)
	b.idem(args...).expect(t, 0, "first\nsecond\nthird\n")
	b.wantEffects(1)
}

func TestOutputThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		testenv.Skip(t, "devfull", "%v", err)
	}
	defer full.Close()
	b := newBox(t)
	for range 2 { // the first run, and a replay
		var errs bytes.Buffer
		cmd := b.cmd(runArgs("--key k1", charge...)...)
		cmd.Stdout, cmd.Stderr = full, &errs
		_ = cmd.Run()
		if cmd.ProcessState.ExitCode() != exitOutput || !strings.Contains(errs.String(), "no space left on device") {
			t.Errorf("exit code %d, stderr %q", cmd.ProcessState.ExitCode(), errs.String())
		}
	}
	b.idem(runArgs("--key k1", charge...)...).expect(t, 0, "charged\n")
	b.wantEffects(1)
}

// The effect has taken place, and a record of it cannot be made.
func TestOutcomeThatCannotBeRecorded(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.idem(runArgs("--key k1 --store s.db", "sh", "-c", "echo charged | tee -a ledger.txt; : > s.db")...).expect(t, exitNotRecorded, "charged\n",
		`key "k1": the command exited with 0 in attempt 1, but that could not be recorded: storage has lost its records`,
		"find out what has happened", "idem show --store s.db k1")
	b.idem(runArgs("--key k1 --store s.db", charge...)...).expect(t, exitDamaged, "", "nothing was run")
	b.wantEffects(1)
}

func TestVerboseTellsOfAReplay(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.idem(runArgs("--key k1 -v", charge...)...).expect(t, 0, "charged\n")
	b.idem(runArgs("--key k1 -v", charge...)...).expect(t, 0, "charged\n",
		`key "k1": this is a replay of attempt 1, completed `, " ago; nothing was run")
}

func TestIdemWithinIdem(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.idem(runArgs("--key outer --scope a", program, "run", "--key", "inner", "--", "sh", "-c", `echo $IDEM_KEY "[$IDEM_SCOPE]"`)...).expect(t, 0, "inner []\n")
}

// expectStreams checks the exit code and both streams exactly.
func (d done) expectStreams(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if d.code != code || d.stdout != stdout || d.stderr != stderr {
		t.Errorf("exit code %d, %d bytes on stdout, %d on stderr, or other ones than expected", d.code, len(d.stdout), len(d.stderr))
	}
}

func testBinary(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
