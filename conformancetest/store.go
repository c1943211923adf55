package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/idem-go/idem"
)

// storeCases are stories: what a Store promises, told on the storage under
// test. They begin with the id of the fault that somebody once had.
var storeCases = slices.Concat(claimCases, leaseCases, holdCases, keyStoreCases, resultCases, retentionCases, faultCases, doCases, manyCases, manyDoCases)

var (
	payload      = idem.FingerprintOf([]byte("pay 10 to A"))
	otherPayload = idem.FingerprintOf([]byte("pay 99 to B"))
)

// Durations of the stories: the lease is well inside the retention.
const (
	lease     = 10 * time.Hour
	retention = idem.MinRetention
)

// store returns a Store on b; nil options are those of the stories.
func (e *env) store(b idem.Backend, opts *idem.Options) *idem.Store {
	e.t.Helper()
	if opts == nil {
		opts = &idem.Options{Lease: lease, Retention: retention}
	}
	s, err := idem.New(b, opts)
	if err != nil {
		e.fatalf("idem.New failed: %v", err)
	}
	return s
}

// stores returns n Stores, each on a handle of its own.
func (e *env) stores(n int) (all []*idem.Store) {
	e.t.Helper()
	for _, b := range e.handles(n) {
		all = append(all, e.store(b, nil))
	}
	return all
}

// outcome describes what Begin returned.
func outcome(c *idem.Claim, done *idem.Record, err error) string {
	switch {
	case c != nil:
		return fmt.Sprintf("a claim, attempt %d, takeover %v", c.Attempt, c.Takeover)
	case done != nil:
		return fmt.Sprintf("the record of attempt %d with %q", done.Attempt, short(string(done.Result.Body)))
	}
	return fmt.Sprintf("the error %v", err)
}

// claim begins the key and wants a claim.
func (e *env) claim(s *idem.Store, key string, fp idem.Fingerprint) *idem.Claim {
	e.t.Helper()
	c, done, err := s.Begin(e.ctx, key, fp)
	if c == nil || done != nil || err != nil {
		e.fatalf("Begin(%q) gave %s, want a claim", short(key), outcome(c, done, err))
	}
	return c
}

// replay begins the key and wants the result.
func (e *env) replay(s *idem.Store, key string, want idem.Result) *idem.Record {
	e.t.Helper()
	c, done, err := s.Begin(e.ctx, key, payload)
	if done == nil || c != nil || err != nil {
		e.fatalf("Begin(%q) gave %s, want the completed record", short(key), outcome(c, done, err))
	}
	if !done.Result.Equal(want) {
		e.errorf("Begin(%q) gave the result %+v, want %+v", short(key), done.Result, want)
	}
	return done
}

// refused begins the key and wants the error.
func (e *env) refused(s *idem.Store, key string, fp idem.Fingerprint, want error) {
	e.t.Helper()
	_ = e.refusal(s, key, fp, want)
}

// refusal does the same and returns what the caller was told.
func (e *env) refusal(s *idem.Store, key string, fp idem.Fingerprint, want error) *idem.Error {
	e.t.Helper()
	c, done, err := s.Begin(e.ctx, key, fp)
	if c != nil || done != nil || !errors.Is(err, want) {
		e.fatalf("Begin(%q) gave %s, want the error %q", short(key), outcome(c, done, err), want)
	}
	refusal, ok := errors.AsType[*idem.Error](err)
	if !ok {
		e.fatalf("Begin(%q) gave an error of type %T, want *idem.Error", short(key), err)
	}
	after := refusal.RetryAfter()
	if errors.Is(want, idem.ErrInProgress) && (after <= 0 || after > refusal.Record.Lease) {
		e.errorf("Begin(%q): RetryAfter is %v, want more than 0 and at most the lease of %v", short(key), after, refusal.Record.Lease)
	}
	return refusal
}

// is wants the error, or nil.
func (e *env) is(what string, err, want error) {
	e.t.Helper()
	switch {
	case want == nil && err != nil:
		e.errorf("%s: the error is %v, want none", what, err)
	case !errors.Is(err, want):
		e.errorf("%s: the error is %v, want %q", what, err, want)
	}
}

// lookup returns the record under key.
func (e *env) lookup(s *idem.Store, key string) idem.Record {
	e.t.Helper()
	r, err := s.Lookup(e.ctx, key)
	if err != nil {
		e.fatalf("Lookup(%q) failed: %v", short(key), err)
	}
	return r
}

// unchanged wants the record that was there before, younger by nothing.
func (e *env) unchanged(s *idem.Store, key string, before idem.Record) {
	e.t.Helper()
	now := e.lookup(s, key)
	e.want(fmt.Sprintf("Lookup(%q) after calls that must not change anything", short(key)), now, before)
	if now.Age < before.Age-e.clock.slack {
		e.errorf("Lookup(%q): the record has become younger, from %v to %v", short(key), before.Age, now.Age)
	}
}

// done claims a key and completes it.
func (e *env) done(s *idem.Store, key string, fp idem.Fingerprint, r idem.Result) *idem.Claim {
	e.t.Helper()
	c := e.claim(s, key, fp)
	e.is("Complete", s.Complete(e.ctx, c, r), nil)
	return c
}

// never is an operation that must not run: its key is another caller's, or done.
func (e *env) never(_ context.Context, c *idem.Claim) (idem.Result, error) {
	e.errorf("the operation of a caller who must not run it ran, as attempt %d of %q", c.Attempt, short(c.Key))
	return idem.Result{}, nil
}

func text(s string) idem.Result { return idem.Result{Code: 200, Body: []byte(s)} }

// within runs a call of a case that waits for real time, with a context that
// ends after d.
func (e *env) within(d time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(e.ctx, d)
	defer cancel()
	return call(ctx)
}

// eventually calls ok until it is true, or ends the case.
func (e *env) eventually(what string, ok func() bool) {
	e.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(e.h.limits.prompt)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			e.fatalf("within %v it did not happen that %s", e.h.limits.prompt, what)
		case <-e.ctx.Done():
			e.fatalf("the time of the case is up before %s", what)
		}
	}
}
