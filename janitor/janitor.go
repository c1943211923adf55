// Package janitor keeps a storage of idem clean: it deletes records whose
// retention is over, and has the program find out what became of operations whose
// process died.
//
//	go janitor.Run(ctx, backend, nil) // or in an errgroup; returns when ctx is done
//
// [Sweep] does the same once, for a scheduled job. One janitor for each storage is
// enough, and any number does no harm: what one deletes or takes on, the others
// skip.
//
// # Sweeping
//
// An expired record is no record, swept or not: Sweep frees space and changes no
// answer. It deletes in batches of up to 1,000, so that a claim waits for one of
// them at most, and never a record that somebody counts on. Storage that expires
// records by itself (Redis) has nothing to sweep.
//
// # Recovery
//
// With [Options.Recover] the janitor looks for claims whose lease is over: their
// process has died, or gave up without knowing what it did. It takes over each of
// them (see [idem.Store.Reclaim]) and calls Recover, which finds out, as a rule by
// asking the other system for the claim's ChildKey or for what its Checkpoint
// says, and returns
//
//   - the result, if the operation was done, or after doing it: the record is
//     completed, and duplicates get that result;
//   - [idem.NoEffect] of an error, if the operation was surely not done: the key is
//     free, and the next request runs it;
//   - any other error, if that cannot be said yet. The claim is left as it was, and
//     tried again after one interval, then two, four and so on, up to an hour. The
//     same goes for a panic, runtime.Goexit, and a result that could not be
//     recorded.
//
// While Recover runs the claim is extended, as in [idem.Store.Do]. It has to heed
// its context, which ends when the claim is lost, after MaxHold, and when the
// janitor is to stop.
//
// Recovery is made for operations with the policy Hold, which wait for it.
// Claims under Takeover are recovered as well, if no request has taken them over
// before.
//
// To find lapsed claims the janitor lists the storage once in each run. What that
// costs is said by the backend's List: where it goes through all records, choose a
// longer interval for millions of them.
//
// # Time
//
// All ages are those of the storage's clock; the janitor compares none itself. A
// completed record is gone for everybody at the end of its retention, not when the
// janitor comes by. So a retention has to be longer than the longest outage after
// which retries still arrive, and the time for which they do: after a day without
// the service, records with the default of 24 hours are over, and a message
// redelivered only now is run again. If such outages are to be survived, choose up
// to 7 days. A server clock that is set ahead does the same as an outage: leases
// and retentions end early.
//
// Claims in progress are not deleted for being old, with this exception: under
// Takeover, one that nobody has extended or taken over for Lease and Retention
// together is expired. Under Hold they stay until they are decided.
//
// # What is logged
//
// Problems are logged with the key they are about, because somebody has to find the
// operation; keys are also in the texts of [Report.Errors]. The attributes "scope"
// and "key" have them and no other attribute does, except what Recover itself puts
// into its errors and panics; so a [slog.HandlerOptions.ReplaceAttr] can mask them
// where keys are personal data. Results, checkpoints and fingerprints are never
// logged.
package janitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/idem-go/idem"
)

const (
	batch    = 1000            // records that one call of the backend deletes at most
	page     = 100             // records that one call lists at most; each may have a checkpoint
	answerIn = time.Minute     // how long one call of the backend may take
	tidyIn   = 2 * time.Second // how long is seen to a claim after the janitor was stopped
	parallel = 4               // recoveries at a time, by default
)

// Options configure a janitor. Nil Options and zero fields stand for the defaults.
type Options struct {
	// Interval is the time between the end of a run and the next one; 1 minute
	// by default, at most 7 days. It varies by a quarter, so that janitors do not
	// keep step.
	Interval time.Duration

	// Budget is how long a run goes on beginning batches, and then, as long
	// again, recoveries; it begins one of each at least. What is left is for the
	// next run. By default it is half of the Interval, and unlimited in Sweep.
	Budget time.Duration

	// Recover finds out what became of an operation whose attempt ended without
	// a known outcome: see the documentation of the package. The claim has
	// Takeover, the Checkpoint of the attempt and, by its methods, the Scope and
	// the ChildKey. It needs a backend that is an idem.Lister. It is called
	// concurrently.
	Recover func(context.Context, *idem.Claim) (idem.Result, error)

	// Parallel is how many recoveries run at a time; 4 by default.
	Parallel int

	// Store has the options of the Stores for whose claims Recover is: the
	// Retention and MaxResult of the results that it returns, the Lease and
	// MaxHold while it runs. Observe is told of its operations. With a Scope, only
	// claims of that scope and those below are recovered: operations with other
	// options, or with another Recover, have a janitor of their own. OnLapse
	// and NoWait do not count; each claim keeps to the policy it began with.
	Store *idem.Options

	// Logger is told of what goes wrong (Warn), of what was recovered (Info) and of
	// each run (Debug); slog.Default() by default.
	Logger *slog.Logger

	// Observe is called after every run, before the next one begins.
	Observe func(context.Context, Report)
}

// A janitor is what Options and a backend come to.
type janitor struct {
	Options
	backend idem.Backend
	lister  idem.Lister // nil if nothing is to be recovered
	store   *idem.Store
	prefix  string // of the stored keys of the claims to recover
	left    map[string]*leftover
}

func newJanitor(b idem.Backend, opts *Options) (*janitor, error) {
	if opts == nil {
		opts = &Options{}
	}
	j := &janitor{Options: *opts, backend: b, left: make(map[string]*leftover)}
	var wrong error
	switch {
	case b == nil:
		wrong = errors.New("no backend")
	case j.Interval < 0 || j.Interval > idem.MaxRetention:
		wrong = fmt.Errorf("interval %v is not within 0 and %v", j.Interval, idem.MaxRetention)
	case j.Budget < 0:
		wrong = fmt.Errorf("budget %v is negative", j.Budget)
	case j.Parallel < 0:
		wrong = fmt.Errorf("%d recoveries at a time is a negative number", j.Parallel)
	}
	if j.Recover != nil && wrong == nil {
		var ok bool
		if j.lister, ok = b.(idem.Lister); !ok {
			wrong = fmt.Errorf("Recover is set, but a backend of type %T cannot list its records; lapsed claims cannot be found there", b)
		}
	}
	if wrong != nil {
		return nil, &idem.Error{Op: "janitor", Err: fmt.Errorf("%w: %w", idem.ErrOptions, wrong)}
	}
	o := idem.Options{}
	if j.Store != nil {
		o = *j.Store
	}
	if _, err := idem.New(b, &o); err != nil {
		return nil, err
	}
	if o.Scope != "" {
		j.prefix = idem.ScopePrefix(o.Scope)
		o.Scope = "" // it comes back with the key of each claim
	}
	o.OnLapse = idem.Takeover // what is held stays so, see Store.Reclaim, and nothing else becomes so
	var err error
	if j.store, err = idem.New(b, &o); err != nil {
		return nil, err
	}
	if j.Interval == 0 {
		j.Interval = time.Minute
	}
	if j.Parallel == 0 {
		j.Parallel = parallel
	}
	if j.Logger == nil {
		j.Logger = slog.Default()
	}
	return j, nil
}

// Run sweeps, and recovers, at once and then in intervals, until ctx is done; it
// then returns nil. It stops within one batch, and when the recoveries that are
// under way have returned; their claims stay open. Options that are out of range
// give an error that is [idem.ErrOptions], before anything has happened.
//
// Errors and panics of the backend and of Recover do not stop it. They are logged
// and reported.
func Run(ctx context.Context, b idem.Backend, opts *Options) error {
	j, err := newJanitor(b, opts)
	if err != nil {
		return err
	}
	if j.Budget == 0 {
		j.Budget = max(j.Interval/2, 1)
	}
	for ctx.Err() == nil {
		j.run(ctx)
		pause(ctx, j.Interval)
	}
	return nil
}

// Sweep does once what Run does in intervals, and returns the report. Its error
// joins [Report.Errors]; it is ctx's if that was done first.
func Sweep(ctx context.Context, b idem.Backend, opts *Options) (Report, error) {
	j, err := newJanitor(b, opts)
	if err != nil {
		return Report{}, err
	}
	r := j.run(ctx)
	if ctx.Err() != nil {
		return r, fmt.Errorf("janitor: stopped after %d records: %w", r.Swept, ctx.Err())
	}
	return r, errors.Join(r.Errors...)
}

// run is one run.
func (j *janitor) run(ctx context.Context) Report {
	start := time.Now()
	r := &reporter{log: j.Logger}
	j.sweep(ctx, r)
	if j.lister != nil {
		j.recoverAll(ctx, r)
	}
	report := r.end(ctx, time.Since(start))
	if j.Observe != nil {
		j.Observe(ctx, report)
	}
	return report
}

// sweep deletes expired records until none are left or the budget is spent.
func (j *janitor) sweep(ctx context.Context, r *reporter) {
	until := j.deadline()
	for begun := 0; ; begun++ {
		if spent(ctx, until, begun) {
			r.incomplete()
			return
		}
		n := 0
		err := guard(ctx, func(ctx context.Context) (err error) {
			n, err = j.backend.Sweep(ctx, batch)
			return err
		})
		r.swept(n)
		if err != nil {
			r.failed(ctx, "sweep", err)
			return
		}
		if n < batch {
			return
		}
	}
}

// deadline returns when a part of a run that begins now has spent its budget; zero
// for never.
func (j *janitor) deadline() time.Time {
	if j.Budget == 0 {
		return time.Time{}
	}
	return time.Now().Add(j.Budget)
}

// spent reports whether a part of a run that has begun so many things begins no
// more. One is always in the budget.
func spent(ctx context.Context, until time.Time, begun int) bool {
	return ctx.Err() != nil || begun > 0 && !until.IsZero() && !time.Now().Before(until)
}

// guard makes one call of the backend, which may panic, or never answer.
func guard(ctx context.Context, call func(context.Context) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = &panicked{p, debug.Stack()}
		}
	}()
	return call(ctx)
}

// pause waits for d, more or less, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d - d/4 + rand.N(d/2+1))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
