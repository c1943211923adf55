package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
)

// A relay passes the signals that idem receives on to the command. While there
// is no command, because idem waits for another attempt or for the store, a
// signal ends the waiting.
//
// The command is in the process group of idem, so that Ctrl-C, Ctrl-Z and the
// shell's job control work as they would without idem. A signal from the
// keyboard goes to the whole group and is not passed on: the command has it
// already, and many programs take a second Ctrl-C for "at once".
type relay struct {
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	process *os.Process    // while it runs
	first   syscall.Signal // that came while nothing ran
}

// An interrupted is the reason why idem gave up before it ran the command.
type interrupted struct{ signal syscall.Signal }

func (e *interrupted) Error() string { return fmt.Sprintf("interrupted (%v)", e.signal) }

// relaySignals starts to receive signals. The context that it returns is done
// when one arrives that there is no command for. stop ends it.
func relaySignals(ctx context.Context) (_ context.Context, r *relay, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	r = &relay{cancel: cancel}
	done := make(chan struct{})
	var relaying sync.WaitGroup
	var stops []func()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if signal.Ignored(s) { // nohup stays nohup, for the command too
			continue
		}
		// A channel that is full loses what comes. With one for each signal that
		// is a second one of the same kind, as in the kernel, and never the
		// SIGTERM behind a key that is held down.
		received := make(chan os.Signal, 1)
		signal.Notify(received, s)
		stops = append(stops, func() { signal.Stop(received) })
		relaying.Go(func() {
			for {
				select {
				case <-received:
					r.pass(s)
				case <-done:
					return
				}
			}
		})
	}
	return ctx, r, func() {
		for _, stop := range stops {
			stop()
		}
		close(done)
		relaying.Wait()
		cancel(nil)
	}
}

func (r *relay) pass(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.process == nil:
		if r.first == 0 {
			r.first = s
		}
		r.cancel(&interrupted{r.first})
	case !fromKeyboard(s):
		// It may have ended by itself in this moment; then there is nothing to do.
		_ = r.process.Signal(s)
	}
}

// start starts cmd, unless a signal came before, and passes signals on to it.
func (r *relay) start(cmd *exec.Cmd) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.first != 0 {
		return &interrupted{r.first}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r.process = cmd.Process
	return nil
}

// ended tells that the command has ended.
func (r *relay) ended() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process = nil
}
