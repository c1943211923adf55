package idemtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/idem-go/idem"
)

// An Env is what Run gives to a program that it starts: the means to disturb it.
// Its methods may be called from any goroutine.
type Env struct {
	t    testing.TB
	home string // "" as long as there is none: the kit's own files, and the program's directory

	mu      sync.Mutex
	usesDir bool
	wraps   []wrap
	reached int // calls of Effect
	effects int // that went through
	before  func(ctx context.Context, n int) error
	after   func(ctx context.Context, n int)
	events  []event
}

// A wrap is a storage of the program that the kit can disturb.
type wrap struct {
	faults *Faults
	clock  *Clock
}

// An event is what the program was seen to do, for the explanation of a failure.
type event struct {
	what string // "effect", or "complete" or "write" for a call to the storage
	key  string // as it is stored
}

// Dir returns a directory for what has to outlive the program's process: its
// database, say. It is the same one for a process that is killed and for the one
// that is started after it, and empty at first. A program that keeps nothing
// there is not killed: "Killed" is skipped.
//
// A program whose data is on a server calls Dir all the same, in Setup, to say
// that it outlives the process. The process that is killed has to find the same
// server and tables: where they are belongs into its environment, by t.Setenv
// before Run.
func (e *Env) Dir() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.usesDir = true
	if e.home == "" {
		e.home = e.t.TempDir()
	}
	dir := filepath.Join(e.home, "program")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		panic(fmt.Sprintf("idemtest: %v", err))
	}
	return dir
}

// Wrap returns b in a form in which the kit can make its calls fail and its
// leases run out. The program uses the result wherever it would use b. It is a
// Lister, a Watcher and a Prober if b is.
//
// Without it, because the program is not built on idem or needs the concrete
// type of its backend, what takes a failing storage is skipped.
func (e *Env) Wrap(b idem.Backend) idem.Backend {
	older, clock := Aging(b)
	wrapped, faults := Faulty(older)
	faults.Script(func(c Call) Fault { return e.saw(c, nil) })
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wraps = append(e.wraps, wrap{faults, clock})
	return wrapped
}

// Effect is called where the program has its effect, with the function that
// brings it about; nil if nothing is to be done but to count. It returns what do
// returned.
//
// It is where the kit comes in: it can let the effect fail, and then Effect
// returns an error and do was not called; it can hold the program there, make
// the caller hang up, or kill the process. So the real effect goes there, or
// what stands for it in the test: the fake of a payment provider, say.
//
// An effect in a database transaction counts when the transaction commits. Let
// Subject.Effects count such effects; Env.Effect counts the calls.
func (e *Env) Effect(ctx context.Context, do func() error) error {
	e.mu.Lock()
	e.reached++
	n, before, after := e.reached, e.before, e.after
	e.mu.Unlock()
	if before != nil {
		if err := before(ctx, n); err != nil {
			return err
		}
	}
	if do != nil {
		if err := do(); err != nil {
			return err
		}
	}
	e.mu.Lock()
	e.effects++
	e.events = append(e.events, event{what: "effect"})
	e.mu.Unlock()
	if after != nil {
		after(ctx, n)
	}
	return nil
}

// errEffect is what an effect fails with that is made to.
var errEffect = errors.New("idemtest: the effect was made to fail; it has not happened")

// saw notes what a call to the storage was about, and passes on its fault.
func (e *Env) saw(c Call, script func(Call) Fault) Fault {
	if c.Method == "Swap" {
		what := "write"
		if c.Record.Status == idem.Completed {
			what = "complete"
		}
		e.mu.Lock()
		e.events = append(e.events, event{what, c.Key})
		e.mu.Unlock()
	}
	if script == nil {
		return Fault{}
	}
	return script(c)
}

// atEffect has what the program does at its effect decided by before and after;
// n counts the calls of Effect from now on.
func (e *Env) atEffect(before func(ctx context.Context, n int) error, after func(ctx context.Context, n int)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	from := e.reached
	e.before, e.after = nil, nil
	if before != nil {
		e.before = func(ctx context.Context, n int) error { return before(ctx, n-from) }
	}
	if after != nil {
		e.after = func(ctx context.Context, n int) { after(ctx, n-from) }
	}
}

// script has the calls to the program's storages judged.
func (e *Env) script(script func(Call) Fault) {
	for _, w := range e.wrapped() {
		w.faults.Script(func(c Call) Fault { return e.saw(c, script) })
	}
}

// lapse lets the leases of all claims run out.
func (e *Env) lapse() {
	for _, w := range e.wrapped() {
		w.clock.Lapse()
	}
}

// calls returns how many calls there were to the program's storages.
func (e *Env) calls() (n int) {
	for _, w := range e.wrapped() {
		n += len(w.faults.Calls())
	}
	return n
}

func (e *Env) wrapped() []wrap {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wraps
}

// reach returns how often the program came to its effect.
func (e *Env) reach() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reached
}

// count returns how many effects went through Effect.
func (e *Env) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.effects
}

// seen returns what the program was seen to do since the n-th event.
func (e *Env) seen(n int) []event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.events[n:])
}
