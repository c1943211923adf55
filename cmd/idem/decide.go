package main

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// A decision about an attempt that nobody knows the outcome of: what resolve and
// forget have in common.
type decision struct {
	target
	consent
	verb    string
	attempt int
	result  *idem.Result // nil: it did not happen

	plan string // what is to be done, after "would" and before a question mark
	done string // what is true then
}

// run carries the decision out, if it can be and the user agrees.
func (d decision) run(s *session) error {
	if d.attempt < 1 {
		return badUsage(d.verb, "--attempt: they are numbered from 1; see: %s", d.commandLine("show"))
	}
	if err := d.check(nil); err != nil {
		return d.refused(d.verb, err)
	}
	if err := d.possible(s, d.verb); err != nil {
		return err
	}
	backend, err := d.open(s.ctx, toOperate)
	if err != nil {
		return d.refused(d.verb, err)
	}
	defer func() { _ = backend.Close() }()
	present, err := backend.Get(s.ctx, d.stored())
	if err != nil {
		return d.refused(d.verb, err)
	}
	if err := d.try(s.ctx, present); err != nil {
		return d.undecided(err, present)
	}
	if present.Status == idem.Completed {
		return s.tell("%v: attempt %d is completed with that result already; nothing was changed", d.target, d.attempt)
	}
	if d.DryRun {
		return s.tell("%v: would %s; nothing was changed", d.target, d.plan)
	}
	if !d.Yes {
		if err := printPairs(s.stderr, d.known(present)); err != nil {
			return s.wrote(err)
		}
	}
	if err := d.given(s, upper(d.plan)+"?"); err != nil {
		return err
	}
	if err := d.on(s.ctx, backend, present); err != nil {
		// It has changed since it was looked at.
		if e, ok := errors.AsType[*idem.Error](err); ok {
			present = e.Record
		}
		return d.undecided(err, present)
	}
	return s.tell("%v: %s", d.target, d.done)
}

// on decides on a backend.
func (d decision) on(ctx context.Context, b idem.Backend, present idem.Record) error {
	store, err := d.target.on(b, &idem.Options{Retention: retention(present), MaxResult: maxBody})
	if err != nil {
		return err
	}
	if d.result == nil {
		return store.Forget(ctx, d.key, d.attempt)
	}
	return store.Resolve(ctx, d.key, d.attempt, *d.result)
}

// retention returns how long the outcome of an attempt is to be kept: as long as
// the Store of the attempt would have kept it. A held attempt does not tell; to
// keep it too long does no harm.
func retention(present idem.Record) time.Duration {
	return min(max(present.TTL-present.Lease, idem.MinRetention), idem.MaxRetention)
}

// try finds out what would become of the decision, by the rules of the library, on
// a copy of the record in memory.
func (d decision) try(ctx context.Context, present idem.Record) error {
	b := memory.New()
	if present.Status != 0 {
		if present.Lapsed() {
			present.Lease = 0 // the copy is new, and its lease is over all the same
		}
		if _, err := b.Swap(ctx, d.stored(), "", present); err != nil {
			return err
		}
	}
	return d.on(ctx, b, present)
}

// known returns what is known of the attempt, for the person who decides.
func (d decision) known(r idem.Record) []pair {
	pairs := []pair{{"key", d.key}}
	if len(d.Scope) > 0 {
		pairs = append(pairs, pair{"scope", scopeName(d.Scope)})
	}
	pairs = append(pairs,
		pair{"store", d.name},
		pair{"attempt", strconv.Itoa(r.Attempt)},
		pair{"last write", brief(r.Age) + " ago"},
		pair{"lease", lease(r)},
		pair{"fence", strconv.FormatInt(r.Fence, 10)},
	)
	if len(r.Checkpoint) > 0 {
		pairs = append(pairs, pair{"checkpoint", size(int64(len(r.Checkpoint))) + "; see idem show --body"})
	}
	return pairs
}

// undecided explains why a decision is refused, or failed. present is what is
// stored.
func (d decision) undecided(err error, present idem.Record) error {
	stands := ", and its result stands"
	if d.result != nil {
		stands = " with another result, which stands"
	}
	look := "look again: " + d.commandLine("show")
	switch {
	case errors.Is(err, idem.ErrInProgress):
		return fail(exitInProgress, "wait for its end; what a crashed attempt leaves behind can be decided about when its lease is over",
			"%v: attempt %d is running, with %v of its lease left; nothing was changed", d.target, present.Attempt, brief(present.LeaseLeft()))
	case errors.Is(err, idem.ErrCompleted):
		return fail(exitMismatch, look,
			"%v: attempt %d was completed %v ago%s; nothing was changed", d.target, present.Attempt, brief(present.Age), stands)
	case !errors.Is(err, idem.ErrLost):
		return d.refused(d.verb, err)
	case present.Status == 0:
		return fail(exitAbsent, "it was never used, or has expired; see: "+d.listing(), "%v: there is no record in %s", d.target, d.name)
	case present.Attempt != d.attempt:
		return fail(exitMismatch, look,
			"%v: the present attempt is %d and not %d; nothing was changed", d.target, present.Attempt, d.attempt)
	}
	return fail(exitMismatch, look, "%v: attempt %d %s, and the key is free; nothing was changed", d.target, present.Attempt, state(present))
}

// upper returns s with a capital letter at its beginning.
func upper(s string) string { return string(s[0]-'a'+'A') + s[1:] }
