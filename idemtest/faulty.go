package idemtest

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/idem-go/idem"
)

// ErrInjected is what the calls fail with that [Lost] and the other ready-made
// faults let fail.
var ErrInjected = errors.New("idemtest: the storage was made to fail")

// A Fault is what becomes of a call to the storage. The zero Fault lets it
// through.
type Fault struct {
	Err      error // that the caller gets; nil lets the call through
	Executed bool  // the storage has executed the call all the same: only its reply is lost
}

// The faults of networks.
var (
	Lost      = Fault{Err: ErrInjected}                 // the call does not arrive, and nobody knows
	ReplyLost = Fault{Err: ErrInjected, Executed: true} // the call is executed, and nobody knows
	Refused   = Fault{Err: idem.NoEffect(ErrInjected)}  // the call is surely not executed
)

// A Call is one call to the storage.
type Call struct {
	N      int         // counted from 1, over all methods
	Method string      // "Get", "Swap", "Sweep", "List" or "Watch"
	Key    string      // of Get, Swap and Watch
	Record idem.Record // that Swap is to store
	Fault  Fault       // what became of it
}

// Faults decides about the calls to a storage and records them. It is safe for
// concurrent use.
type Faults struct {
	mu     sync.Mutex
	script func(Call) Fault
	calls  []Call
}

// Faulty returns b with calls that fail as the returned Faults are told to: none
// at first. It is a Lister, a Watcher and a Prober if b is.
func Faulty(b idem.Backend) (idem.Backend, *Faults) {
	f := &Faults{}
	core := &faulty{b, f}
	return decorated(core, b,
		func(l idem.Lister) idem.Lister { return faultyLister{l, f} },
		func(w idem.Watcher) idem.Watcher { return faultyWatcher{w, f} }), f
}

// Script has each call from now on judged by script, which is called one call at
// a time. Nil lets all of them through.
func (f *Faults) Script(script func(Call) Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = script
}

// All gives every call from now on the same fault.
func (f *Faults) All(what Fault) { f.Script(func(Call) Fault { return what }) }

// Nth gives the fault to the n-th call from now on, counted from 1.
func (f *Faults) Nth(n int, what Fault) {
	f.Script(func(Call) Fault {
		if n--; n == 0 {
			return what
		}
		return Fault{}
	})
}

// On gives the fault to every call of the method, "Get" or "Swap" say, from now
// on.
func (f *Faults) On(method string, what Fault) {
	f.Script(func(c Call) Fault {
		if c.Method == method {
			return what
		}
		return Fault{}
	})
}

// Calls returns the calls so far, in the order in which they began.
func (f *Faults) Calls() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// judge records a call and says what becomes of it.
func (f *Faults) judge(c Call) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	c.N = len(f.calls) + 1
	if f.script != nil {
		c.Fault = f.script(c)
	}
	f.calls = append(f.calls, c)
	return c.Fault
}

// call makes a call, or not, and returns its error.
func (f *Faults) call(c Call, do func() error) error {
	what := f.judge(c)
	if what.Err != nil && !what.Executed {
		return what.Err
	}
	if err := do(); err != nil {
		return err
	}
	return what.Err
}

type faulty struct {
	b idem.Backend
	f *Faults
}

func (d *faulty) Get(ctx context.Context, key string) (r idem.Record, err error) {
	err = d.f.call(Call{Method: "Get", Key: key}, func() (err error) {
		r, err = d.b.Get(ctx, key)
		return err
	})
	if err != nil {
		return idem.Record{}, err
	}
	return r, nil
}

func (d *faulty) Swap(ctx context.Context, key, old string, new idem.Record) (r idem.Record, err error) {
	err = d.f.call(Call{Method: "Swap", Key: key, Record: new.Clone()}, func() (err error) {
		r, err = d.b.Swap(ctx, key, old, new)
		return err
	})
	if err != nil {
		return idem.Record{}, err
	}
	return r, nil
}

func (d *faulty) Sweep(ctx context.Context, limit int) (n int, err error) {
	err = d.f.call(Call{Method: "Sweep"}, func() (err error) {
		n, err = d.b.Sweep(ctx, limit)
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

type faultyLister struct {
	l idem.Lister
	f *Faults
}

func (d faultyLister) List(ctx context.Context, q idem.Query) (entries []idem.Entry, next string, err error) {
	err = d.f.call(Call{Method: "List"}, func() (err error) {
		entries, next, err = d.l.List(ctx, q)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return entries, next, nil
}

type faultyWatcher struct {
	w idem.Watcher
	f *Faults
}

func (d faultyWatcher) Watch(ctx context.Context, key, token string) error {
	return d.f.call(Call{Method: "Watch", Key: key}, func() error { return d.w.Watch(ctx, key, token) })
}

// decorated returns core with what else b can do: decorated too, but for Probe,
// which does not ask the storage.
func decorated(core, b idem.Backend, lister func(idem.Lister) idem.Lister, watcher func(idem.Watcher) idem.Watcher) idem.Backend {
	type (
		backend = idem.Backend
		list    = idem.Lister
		watch   = idem.Watcher
		probe   = idem.Prober
	)
	l, lists := b.(list)
	if lists {
		l = lister(l)
	}
	w, watches := b.(watch)
	if watches {
		w = watcher(w)
	}
	p, probes := b.(probe)
	// Pointers, so that a Store can compare its backend whatever is in there.
	switch [3]bool{lists, watches, probes} {
	case [3]bool{true, true, true}:
		return &struct {
			backend
			list
			watch
			probe
		}{core, l, w, p}
	case [3]bool{true, true, false}:
		return &struct {
			backend
			list
			watch
		}{core, l, w}
	case [3]bool{true, false, true}:
		return &struct {
			backend
			list
			probe
		}{core, l, p}
	case [3]bool{false, true, true}:
		return &struct {
			backend
			watch
			probe
		}{core, w, p}
	case [3]bool{true, false, false}:
		return &struct {
			backend
			list
		}{core, l}
	case [3]bool{false, true, false}:
		return &struct {
			backend
			watch
		}{core, w}
	case [3]bool{false, false, true}:
		return &struct {
			backend
			probe
		}{core, p}
	}
	return core
}
