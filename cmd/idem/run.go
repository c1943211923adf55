package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/idem-go/idem"
)

// maxStdin is how much standard input --stdin reads, in bytes. It is held in
// memory for as long as the command runs.
const maxStdin = 64 << 20

// minLease is the shortest lease that can be kept by writing to a store which other
// processes use as well.
const minLease = 100 * time.Millisecond

type runCommand struct {
	Key string `required:"" placeholder:"KEY" help:"Name of the operation, the same in every retry of it: --key invoice-4711. 1 to 255 bytes."`
	where
	Lease     time.Duration `default:"30s" placeholder:"DURATION" help:"How long a killed idem keeps the key from others: --lease 2m. Extended while the command runs, so it need not last as long as that. Default 30s."`
	Retention time.Duration `default:"24h" placeholder:"DURATION" help:"How long the result is replayed, 24h to 168h: --retention 72h. Default 24h."`
	OnLapse   string        `enum:"takeover,hold" default:"takeover" placeholder:"POLICY" help:"What to do if an earlier attempt has no known outcome: takeover runs the command again and tells it so, hold refuses: --on-lapse hold. Default takeover."`
	OkCodes   []int         `default:"0" placeholder:"CODE" help:"Exit codes with which the command is done, to be replayed: --ok-codes 0,3. Default 0."`
	NoWait    bool          `help:"If another attempt is running, do not wait for its result but exit with 75."`
	Stdin     bool          `help:"Read standard input to its end first, at most 64 MiB, and make it belong to the key: idem run --key mail-7 --stdin -- sendmail < mail."`
	Verbose   bool          `short:"v" help:"Say what idem does even if standard error is not a terminal."`

	command []string // after "--"
}

const runUsage = "idem run --key KEY [FLAGS] -- COMMAND [ARGUMENTS]"

const runHelp = `Examples:
  idem run --key invoice-4711 -- ./charge.sh 4711
  idem run --key "report $(date +%F)" --retention 72h -- ./report.sh
  idem run --scope billing --key mail-7 --stdin -- sendmail -t < mail.txt
  idem run --key payout-7 --on-lapse hold --ok-codes 0,3 -- ./payout.sh 7

The same key with another command, other arguments or (with --stdin) other input
is refused. The command finds IDEM_KEY, IDEM_SCOPE, IDEM_ATTEMPT, IDEM_FENCE and
IDEM_TAKEOVER (1 if an earlier attempt ended without a known outcome) in its
environment. Of its output 1 MiB is kept; a replay of more prints nothing and
says so. The output goes through pipes: the command does not see a terminal.
If idem is killed, Linux kills the command too.

` + exitTable

// Run runs the command, or replays what it did.
func (c *runCommand) Run(s *session) error {
	t, err := c.check(s)
	if err != nil {
		return err
	}
	fp, input, err := c.read(s)
	if err != nil {
		return err
	}
	ctx, signals, stop := relaySignals(s.ctx)
	defer stop()

	backend, err := t.open(ctx, toRun)
	if err != nil {
		return t.stopped(ctx, err)
	}
	defer func() { _ = backend.Close() }()
	if c.chatty(s) {
		for _, warning := range backend.warnings {
			s.say("store %s: %s", t.name, warning)
		}
	}
	store, err := t.on(backend, c.options(s, t))
	if err != nil {
		return t.refused("run", err)
	}
	a := &attempt{call: c, session: s, target: t, process: process{
		argv:    c.command,
		stdin:   input,
		output:  newRecorder(maxOutput, s.stdout, s.stderr),
		signals: signals,
	}}
	out, err := store.Do(ctx, c.Key, fp, a.run)
	switch {
	case a.begun:
		return a.report(out, err)
	case err == nil:
		return a.replay(store, out)
	}
	return t.stopped(ctx, err)
}

// stopped explains why nothing was run: a signal that came before, or an error.
func (t target) stopped(ctx context.Context, err error) error {
	if in, ok := errors.AsType[*interrupted](context.Cause(ctx)); ok && errors.Is(err, context.Canceled) {
		return fail(exitSignal+int(in.signal), "", "%v: %v; nothing was run", t, in)
	}
	return t.refused("run", err)
}

// check finds what is wrong with the call before anything is read or written.
func (c *runCommand) check(s *session) (target, error) {
	if len(c.command) == 0 || c.command[0] == "" {
		return target{}, badUsage("run", "there is no command; it comes after --, as in idem run --key %s -- ./charge.sh", quote(c.Key))
	}
	for _, code := range c.OkCodes {
		if code < 0 || code > 255 {
			return target{}, badUsage("run", "--ok-codes: %d is no exit code; they are 0 to 255", code)
		}
	}
	if c.Lease < minLease {
		return target{}, badUsage("run", "--lease: %v is too short; a lease is extended by writing to the store, which needs %v", c.Lease, minLease)
	}
	if c.Retention == 0 { // to a Store that would be the default
		return target{}, badUsage("run", "--retention: 0s is below 24h; a retry that comes later would run the command a second time")
	}
	t, err := c.at(c.Key, s.getenv)
	if err != nil {
		return t, badUsage("run", "%v", err)
	}
	if err := t.check(c.options(s, t)); err != nil {
		return t, t.refused("run", err)
	}
	return t, nil
}

// read returns the fingerprint of the operation and the command's standard
// input: what was read for the fingerprint, or the one of idem.
func (c *runCommand) read(s *session) (idem.Fingerprint, io.Reader, error) {
	parts := [][]byte{[]byte("idem run 1"), []byte(strconv.Itoa(len(c.command)))}
	for _, arg := range c.command {
		parts = append(parts, []byte(arg))
	}
	if !c.Stdin {
		return idem.FingerprintOf(parts...), s.stdin, nil
	}
	input, err := io.ReadAll(io.LimitReader(s.stdin, maxStdin+1))
	if err != nil {
		return idem.Fingerprint{}, nil, badUsage("run", "--stdin: %v; nothing was run", err)
	}
	if len(input) > maxStdin {
		return idem.Fingerprint{}, nil, badUsage("run", "--stdin: the input has more than %s; put it into a file and name that file, or its checksum, in the arguments", size(maxStdin))
	}
	return idem.FingerprintOf(append(parts, input)...), bytes.NewReader(input), nil
}

func (c *runCommand) options(s *session, t target) *idem.Options {
	o := &idem.Options{
		Retention: c.Retention,
		Lease:     c.Lease,
		// A command may take as long as it likes: whether it still runs is
		// seen from here, no matter how long it takes.
		MaxHold:   1 << 62,
		MaxResult: maxOutput,
		NoWait:    c.NoWait,
		OnLapse:   idem.Takeover,
	}
	if c.OnLapse == "hold" {
		o.OnLapse = idem.Hold
	}
	if c.chatty(s) {
		waiting := false
		o.Observe = func(_ context.Context, e idem.Event) {
			in, ok := errors.AsType[*idem.Error](e.Err)
			if ok && errors.Is(in, idem.ErrInProgress) && e.Op == "begin" && !c.NoWait && !waiting {
				waiting = true
				s.say("%v: attempt %d is running; waiting for its result", t, in.Record.Attempt)
			}
		}
	}
	return o
}

// chatty tells whether to say what goes well.
func (c *runCommand) chatty(s *session) bool {
	return c.Verbose || isTerminal(s.stderr)
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// An attempt is one call's attempt at running the command, should it come to
// that.
type attempt struct {
	call    *runCommand
	session *session
	target  target
	process process

	begun    bool // the command was started, or it was tried
	number   int  // of the attempt
	takeover bool // from an attempt without a known outcome
	ending   ending
}

// An unknownOutcome is how a command ended that may have had its effect.
type unknownOutcome struct{ ending }

func (e *unknownOutcome) Error() string {
	if e.signal != 0 {
		return fmt.Sprintf("the command was ended by signal %d (%v)", e.signal, e.signal)
	}
	return fmt.Sprintf("the command exited with %d", e.code)
}

// run runs the command under its claim. It is called by Store.Do.
func (a *attempt) run(ctx context.Context, claim *idem.Claim) (idem.Result, error) {
	if claim.Takeover && a.call.chatty(a.session) {
		a.session.say("%v: an earlier attempt ended without a known outcome; running the command again as attempt %d", a.target, claim.Attempt)
	}
	a.begun, a.number, a.takeover = true, claim.Attempt, claim.Takeover
	a.process.env = a.environment(claim)
	var err error
	a.ending, err = a.process.run(ctx)
	switch start, failed := errors.AsType[*startError](err); {
	case failed:
		return idem.Result{}, idem.NoEffect(start)
	case err != nil:
		if in, ok := errors.AsType[*interrupted](err); ok {
			a.begun = false
			return idem.Result{}, idem.NoEffect(in)
		}
		return idem.Result{}, err
	}
	if a.ending.signal == 0 && !a.ending.stopped && slices.Contains(a.call.OkCodes, a.ending.code) {
		return a.process.output.result(a.ending.code), nil
	}
	if lost := context.Cause(ctx); errors.Is(lost, idem.ErrLost) {
		return idem.Result{}, lost
	}
	return idem.Result{}, &unknownOutcome{a.ending}
}

// environment returns what the command is told about its attempt.
func (a *attempt) environment(claim *idem.Claim) []string {
	takeover := "0"
	if claim.Takeover {
		takeover = "1"
	}
	// Those of an idem run around this one must not shine through.
	env := slices.DeleteFunc(slices.Clone(a.session.env), func(v string) bool { return strings.HasPrefix(v, "IDEM_SCOPE=") })
	env = append(env,
		"IDEM_KEY="+claim.Key,
		"IDEM_ATTEMPT="+strconv.Itoa(claim.Attempt),
		"IDEM_FENCE="+strconv.FormatInt(claim.Fence, 10),
		"IDEM_TAKEOVER="+takeover,
	)
	if len(a.target.Scope) > 0 {
		env = append(env, "IDEM_SCOPE="+scopeName(a.target.Scope))
	}
	return env
}

// report says how the attempt ended, where that needs saying, and passes the
// command's code on.
func (a *attempt) report(out idem.Outcome, err error) error {
	if start, ok := errors.AsType[*startError](err); ok {
		next := "mend the command and run it again; nothing has happened and the key is free"
		if a.takeover {
			next = "mend the command and run it again; what the attempt before it did is still unknown"
		}
		return fail(start.code, next, "%v: the command cannot be started: %v", a.target, start)
	}
	if a.ending.outputHeld {
		a.session.say("%v: the command has ended, but a background process still holds its output; what that prints from now on is lost", a.target)
	}
	if unknown, ok := errors.AsType[*unknownOutcome](err); ok {
		next := "the next run takes over and finds IDEM_TAKEOVER=1"
		if a.call.OnLapse == "hold" {
			next = "the key is held until it is decided what has happened; see: " + a.target.commandLine("show")
		}
		a.session.say("%v: %v, so whether attempt %d had its effect is unknown; %s", a.target, unknown, a.number, next)
		return passOn(unknown.code)
	}
	if err != nil {
		return a.notRecorded(err)
	}
	if out.Result.Omitted && a.call.chatty(a.session) {
		a.session.say("%v: the output is larger than %s and not kept; a replay exits with %d and prints nothing", a.target, size(maxOutput), out.Result.Code)
	}
	if err := a.process.output.undelivered(); err != nil {
		return a.undelivered(err)
	}
	return passOn(out.Result.Code)
}

// notRecorded explains that the command was run and that no record says so.
func (a *attempt) notRecorded(err error) error {
	how := (&unknownOutcome{a.ending}).Error()
	if errors.Is(err, idem.ErrLost) {
		return fail(exitNotRecorded,
			"another attempt may have run the command meanwhile: find out what has happened before you go on; see: "+a.target.commandLine("show"),
			"%v: attempt %d has lost its claim while the command was running, because its lease could not be extended in time; %s", a.target, a.number, how)
	}
	cause := err
	if e, ok := errors.AsType[*idem.Error](err); ok {
		cause = e.Err
	}
	return fail(exitNotRecorded,
		"the next run may run it again: find out what has happened before you go on; see: "+a.target.commandLine("show"),
		"%v: %s in attempt %d, but that could not be recorded: %v", a.target, how, a.number, a.target.trimmed(cause))
}

// replay prints what an earlier attempt printed.
func (a *attempt) replay(store *idem.Store, out idem.Outcome) error {
	if out.Result.Code < 0 || out.Result.Code > 255 {
		return fail(exitDamaged, "it was not recorded by idem run; see: "+a.target.commandLine("show"),
			"%v: the result of attempt %d has the code %d, which is no exit code; nothing was run", a.target, out.Attempt, out.Result.Code)
	}
	chunks, err := output(out.Result)
	if err != nil {
		return fail(exitDamaged, "see: "+a.target.commandLine("show"),
			"%v: the result of attempt %d: %v; nothing was run", a.target, out.Attempt, err)
	}
	if err := play(chunks, a.session.stdout, a.session.stderr); err != nil {
		return a.undelivered(err)
	}
	_, recorded := out.Result.Meta[metaFormat]
	switch {
	case out.Result.Omitted && recorded:
		a.session.say("%v: attempt %d is done, but what it printed was too large to be kept: %s on stdout and %s on stderr are left out",
			a.target, out.Attempt, recordedSize(out.Result, metaStdout), recordedSize(out.Result, metaStderr))
	case out.Result.Omitted:
		a.session.say("%v: attempt %d is done, but what it printed is not kept: it was erased, or too large", a.target, out.Attempt)
	}
	if a.call.chatty(a.session) {
		when := ""
		if r, err := store.Lookup(a.session.ctx, a.target.key); err == nil && r.Status == idem.Completed {
			when = ", completed " + brief(r.Age) + " ago"
		}
		a.session.say("%v: this is a replay of attempt %d%s; nothing was run", a.target, out.Attempt, when)
	}
	return passOn(out.Result.Code)
}

// recordedSize returns a size from the Meta of a result, to be read.
func recordedSize(r idem.Result, name string) string {
	n, err := strconv.ParseInt(r.Meta[name], 10, 64)
	if err != nil {
		return "an unknown number of bytes"
	}
	return size(n)
}

// undelivered explains that the output did not arrive. A reader that has gone
// away, as in idem run ... | head -1, is told nothing, as by any other program
// in a pipeline.
func (a *attempt) undelivered(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return passOn(exitSignal + int(syscall.SIGPIPE))
	}
	return fail(exitOutput, "the result is recorded: run the same command again to have the output replayed",
		"%v: %v", a.target, err)
}
