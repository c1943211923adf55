package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// graceToEnd is how long a command that was told to end because its claim
	// is lost may take, before it is killed: another attempt may be running.
	graceToEnd = 10 * time.Second

	// graceForOutput is how long, after the command has ended, nothing may come
	// from a background process that still holds its output.
	graceForOutput = 5 * time.Second
)

// A process is a command to be run, and what it is given.
type process struct {
	argv    []string
	env     []string
	stdin   io.Reader // an *os.File is handed over as it is
	output  *recorder
	signals *relay
}

// An ending is how a command ended.
type ending struct {
	code       int            // as a shell reports it: 128+n after signal n
	signal     syscall.Signal // that killed it, or 0
	stopped    bool           // idem told it to end: whatever code it ended with, it has not done its work
	outputHeld bool           // a background process still held its output
}

// A startError means that the command could not be started and so had no effect.
type startError struct {
	code int // 127 or 126, as a shell reports it
	err  error
}

func (e *startError) Error() string { return e.err.Error() }
func (e *startError) Unwrap() error { return e.err }

// run runs the command to its end. If ctx ends first, the command is told to
// end (SIGTERM), and killed when it has not after graceToEnd.
//
// The command's output goes through pipes, so it does not see a terminal. Its
// process group is that of idem: what the terminal sends reaches it directly,
// see relay.
func (p *process) run(ctx context.Context) (ending, error) {
	// The kernel kills the command when the thread that started it is gone: it
	// must last as long as the command does. See killedWithParent.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	cmd := exec.CommandContext(ctx, p.argv[0], p.argv[1:]...)
	cmd.Env, cmd.Stdin, cmd.SysProcAttr = p.env, p.stdin, killedWithParent()
	var stopped atomic.Bool
	cmd.Cancel = func() error {
		err := cmd.Process.Signal(syscall.SIGTERM)
		stopped.Store(err == nil)
		return err
	}
	cmd.WaitDelay = graceToEnd

	var capture capture
	var err error
	if cmd.Stdout, err = capture.pipe(stdout); err != nil {
		return ending{}, notStarted(err)
	}
	defer capture.close()
	if cmd.Stderr, err = capture.pipe(stderr); err != nil {
		return ending{}, notStarted(err)
	}
	if err := p.signals.start(cmd); err != nil {
		if _, ok := errors.AsType[*interrupted](err); ok {
			return ending{}, err
		}
		return ending{}, notStarted(err)
	}
	capture.start(p.output)
	// What Wait reports besides the state, such as standard input that the
	// command did not read to its end, says nothing about the command.
	err = cmd.Wait()
	p.signals.ended()
	if cmd.ProcessState == nil {
		return ending{}, fmt.Errorf("wait for the command: %w", err)
	}
	e := endingOf(cmd.ProcessState)
	e.stopped = stopped.Load()
	e.outputHeld = capture.finish()
	return e, nil
}

func notStarted(err error) error {
	code := exitCannotRun
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound
	}
	return &startError{code, err}
}

func endingOf(s *os.ProcessState) ending {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return ending{code: exitSignal + int(w.Signal()), signal: w.Signal()}
	}
	return ending{code: s.ExitCode()}
}

// A capture reads the output of a command from two pipes.
type capture struct {
	pipes   []*pipe
	ended   atomic.Bool // the command has
	readers sync.WaitGroup
}

type pipe struct {
	from  channel
	r, w  *os.File
	stale bool // nothing came for graceForOutput after the end
}

// pipe returns the file that the command is to write to.
func (c *capture) pipe(from channel) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.pipes = append(c.pipes, &pipe{from: from, r: r, w: w})
	return w, nil
}

// start reads what comes until the pipes are closed at their other ends.
func (c *capture) start(to *recorder) {
	for _, p := range c.pipes {
		_ = p.w.Close() // the command has its own
		c.readers.Go(func() { c.copy(p, to) })
	}
}

func (c *capture) copy(p *pipe, to *recorder) {
	buf := make([]byte, 64<<10) // what a pipe holds
	for {
		// The time that the reader of our own output takes does not count.
		if c.ended.Load() {
			_ = p.r.SetReadDeadline(time.Now().Add(graceForOutput))
		}
		n, err := p.r.Read(buf)
		to.write(p.from, buf[:n])
		if err != nil {
			p.stale = errors.Is(err, os.ErrDeadlineExceeded)
			return
		}
	}
}

// finish waits for the rest of the output after the command has ended, and
// reports whether a background process still held it.
func (c *capture) finish() (held bool) {
	c.ended.Store(true)
	for _, p := range c.pipes {
		_ = p.r.SetReadDeadline(time.Now().Add(graceForOutput))
	}
	c.readers.Wait()
	for _, p := range c.pipes {
		held = held || p.stale
	}
	return held
}

func (c *capture) close() {
	for _, p := range c.pipes {
		_ = p.r.Close()
		_ = p.w.Close()
	}
}
