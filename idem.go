// Package idem runs an operation once per key and gives every retry of it the
// same answer.
//
// A call that times out tells its caller nothing: the request may be lost, done
// or still running. So callers retry, queues deliver again, browsers send twice
// and cron jobs are started a second time. The caller names the operation with
// a key; the first request that claims the key runs it, its result is stored,
// and every later request with that key gets the stored result, not an error.
// Which request is the first is decided by the storage in one atomic step. The
// same key with another payload is refused with [ErrMismatch].
//
// # Basics
//
// A [Store] applies the rules to a [Backend], which keeps the records: memory,
// bolt, or one of your own. Most programs need only [Store.Do], or [Call] for
// requests and responses that are JSON:
//
//	store, err := idem.New(backend, nil)
//	out, err := store.Do(ctx, "order-4711", idem.FingerprintOf(body),
//		func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
//			receipt, err := charge(ctx, c.ChildKey("charge"), body)
//			return idem.Result{Code: 201, Body: receipt}, err
//		})
//
// The key comes from the caller and names the operation, not the attempt: an
// order number, or one [NewKey] that is made before the first attempt and kept
// for all of them. A key that is made anew for each attempt protects from
// nothing.
//
// A daily job is keyed by its local date, its planned local time and its zone
// ("report 2026-10-25 02:30 Europe/Berlin"), so that the hour which comes twice
// in autumn is one run; an hourly job by the instant in UTC ("import
// 2026-10-25T01:00Z").
//
// # Attempts
//
// A [Claim] is one attempt's right to run the operation, for the length of its
// lease. It ends in one of three ways: Complete records the result, Release
// says that nothing happened and frees the key, Abandon says that the outcome
// is unknown. An attempt that dies lets its lease run out, which is the same as
// Abandon. What happens then is the Store's [LapsePolicy]: with Takeover the
// next request runs the operation again and its claim says so; with Hold
// nothing runs until [Store.Resolve], [Store.Forget] or [Store.Reclaim] has
// decided. Package janitor finds such attempts and calls a function of the program
// that finds out what they did; it also deletes records whose retention is over.
//
// # Batches
//
// A consumer that fetches a hundred messages, or an import, need not pay a round
// trip for each of them: [Store.DoAll] is Do for many keys, and [Store.BeginAll],
// [Store.CompleteAll] and their like are the calls it consists of. Each item has an
// outcome of its own, the same as if it had come alone, and batches with the same
// keys never wait for each other. On PostgreSQL and Redis a batch is one round trip
// (see [Batcher]).
//
// # Transactions
//
// Where the business data lives in the same database, claim, change and result
// commit together: see the WithTx and Do methods of the backends, and
// [Store.With].
//
// # What is not guaranteed
//
// An effect in another system cannot be made to happen exactly once from here.
// If a process dies between the effect and its record, the record says
// "unknown", and the other system has to recognise the repetition (send it
// [Claim.ChildKey] or [Claim.Fence]) or be asked. A record is kept for the
// retention, 24 hours to 7 days; a retry that comes later runs the operation
// again. A storage that loses records loses their protection.
package idem

import (
	"context"
	"fmt"
	"time"
)

// Bounds of Options. Retries come within hours and, after a weekend, within
// days: a shorter retention opens the gap again, a longer one only costs
// storage.
const (
	MinRetention = 24 * time.Hour
	MaxRetention = 7 * 24 * time.Hour
	maxLease     = MaxRetention
	maxMaxResult = 256 << 20 // what every storage underneath takes in one value
)

// What a Store does by itself when the storage fails.
const (
	repeatFor   = 3 * time.Second // how long an unanswered claim is repeated
	detachedFor = 2 * time.Second // how long a clean-up goes on without its caller
)

// held is the TTL of a claim under Hold: an unknown outcome is not forgotten by
// age.
const held = 100 * 365 * 24 * time.Hour

// A LapsePolicy says what happens to a key whose attempt ended without a known
// outcome.
type LapsePolicy uint8

const (
	// Takeover lets the next request with the same payload run the operation
	// again, with Claim.Takeover set. It is right where the effect commits
	// together with the record, or where repeating it does no harm.
	Takeover LapsePolicy = iota

	// Hold refuses every request with ErrUnresolved until Resolve, Forget or
	// Reclaim has decided. It is right where the effect happens in another
	// system that does not recognise repetitions.
	Hold
)

// String returns "takeover" or "hold".
func (p LapsePolicy) String() string {
	switch p {
	case Takeover:
		return "takeover"
	case Hold:
		return "hold"
	}
	return fmt.Sprintf("policy-%d", uint8(p))
}

// Options configure a Store. Nil Options and zero fields stand for the
// defaults. Another lease, retention or policy for another kind of operation
// is another Store on the same Backend: Stores are cheap.
type Options struct {
	// Scope is the namespace of the keys: keys of different scopes never meet.
	// 1 to MaxScope bytes of UTF-8 without control characters; empty means
	// none.
	Scope string

	// Retention is how long a completed record is kept and replayed, counted
	// from completion: MinRetention (the default) to MaxRetention.
	Retention time.Duration

	// Lease is how long a claim excludes others without being extended, up to
	// 7 days; 30 s by default. It is rounded up to milliseconds. Do extends it
	// while the operation runs, so it is the time that passes before the
	// attempt of a crashed process counts as over.
	Lease time.Duration

	// MaxHold is the longest that Do keeps extending one claim; 1 h by
	// default. After that the lease runs out and the operation's context is
	// cancelled.
	MaxHold time.Duration

	// OnLapse is what happens to a key whose attempt ended without a known
	// outcome; Takeover by default.
	OnLapse LapsePolicy

	// MaxResult is the largest result body that is stored, and the largest
	// checkpoint, in bytes; 1 MiB by default, at most 256 MiB. An operation
	// with a larger body counts as done all the same: see Result.Omitted.
	MaxResult int

	// NoWait makes Do return ErrInProgress at once, instead of waiting for the
	// result of a running duplicate.
	NoWait bool

	// Observe is called after every operation with its outcome, in the
	// goroutine of the caller or of the heartbeat. It must be fast, and safe
	// for concurrent use.
	Observe func(context.Context, Event)
}

// withDefaults returns o with its defaults filled in, or what is wrong with it.
func (o Options) withDefaults() (Options, error) {
	fill := func(d *time.Duration, standard time.Duration) {
		if *d == 0 {
			*d = standard
		}
	}
	fill(&o.Retention, MinRetention)
	fill(&o.Lease, 30*time.Second)
	fill(&o.MaxHold, time.Hour)
	if o.MaxResult == 0 {
		o.MaxResult = 1 << 20
	}
	switch {
	case o.Retention < MinRetention:
		return o, fmt.Errorf("%w: retention %v is below %v; a retry that comes later would run the operation a second time", ErrOptions, o.Retention, MinRetention)
	case o.Retention > MaxRetention:
		return o, fmt.Errorf("%w: retention %v is above %v; no retry comes that late, it would only cost storage", ErrOptions, o.Retention, MaxRetention)
	case o.Lease < 0 || o.Lease > maxLease:
		return o, fmt.Errorf("%w: lease %v is not within 1ms and %v", ErrOptions, o.Lease, maxLease)
	case o.MaxHold < 0:
		return o, fmt.Errorf("%w: MaxHold %v is negative", ErrOptions, o.MaxHold)
	case o.MaxResult < 0 || o.MaxResult > maxMaxResult:
		return o, fmt.Errorf("%w: MaxResult %d is not within 1 and %d bytes", ErrOptions, o.MaxResult, maxMaxResult)
	case o.OnLapse != Takeover && o.OnLapse != Hold:
		return o, fmt.Errorf("%w: unknown lapse policy %d", ErrOptions, o.OnLapse)
	}
	// Some storages count in milliseconds; nothing may be rounded down to "no
	// lease".
	o.Lease = (o.Lease + time.Millisecond - 1).Truncate(time.Millisecond)
	return o, nil
}

// A Store applies the rules of idempotency to a Backend. It is safe for
// concurrent use. It holds no resources: there is nothing to close.
type Store struct {
	backend Backend
	opts    Options
	scope   string // the levels joined by separator
	err     error  // of a bad scope; every operation returns it
	bound   bool   // to a transaction: see With
}

// New returns a Store on b. Options that are out of range give an error that is
// ErrOptions.
func New(b Backend, opts *Options) (*Store, error) {
	if b == nil {
		return nil, &Error{Op: "new", Err: fmt.Errorf("%w: no backend", ErrOptions)}
	}
	if opts == nil {
		opts = &Options{}
	}
	o, err := opts.withDefaults()
	if err != nil {
		return nil, &Error{Op: "new", Err: err}
	}
	s := &Store{backend: b, opts: o}
	if o.Scope != "" {
		if s = s.Scoped(o.Scope); s.err != nil {
			return nil, &Error{Op: "new", Err: fmt.Errorf("%w: %w", ErrOptions, s.err)}
		}
	}
	return s, nil
}

// Scoped returns a Store for a scope below the present one, such as a tenant's.
// A bad scope, the empty one too, shows at the first operation as ErrKey. All
// levels together may have MaxScope bytes.
func (s *Store) Scoped(scope string) *Store {
	below := *s
	if s.err != nil {
		return &below
	}
	below.scope = storedKey(s.scope, scope)
	if below.err = checkText("scope", scope, MaxScope); below.err == nil && len(below.scope) > MaxScope {
		below.err = fmt.Errorf("%w: the levels of the scope have %d bytes together, the limit is %d", ErrKey, len(below.scope), MaxScope)
	}
	return &below
}

// With returns a Store with the same rules over b, a backend bound to a
// transaction. The transaction's connection serves one caller, so this Store
// starts no goroutine, does not extend leases, does not wait or poll, does not
// repeat a call by itself and gives nothing back after an error. A claim that
// it completes is not changed in memory: the transaction may roll back, and the
// caller run it again with the same claim.
func (s *Store) With(b Backend) *Store {
	bound := *s
	bound.backend, bound.bound = b, true
	if b == nil && bound.err == nil {
		bound.err = fmt.Errorf("%w: no backend", ErrOptions)
	}
	return &bound
}

// Options returns the Store's options with the defaults filled in.
func (s *Store) Options() Options { return s.opts }

// Lookup returns the record under key, whatever its state, or the zero Record
// if there is none.
func (s *Store) Lookup(ctx context.Context, key string) (Record, error) {
	start := time.Now()
	r, err := s.get(ctx, "lookup", key)
	s.observe(ctx, "lookup", key, start, nil, &r, err)
	return r, err
}

func (s *Store) get(ctx context.Context, op, key string) (Record, error) {
	stored, err := s.stored(key)
	if err != nil {
		return Record{}, s.fail(op, key, Record{}, err)
	}
	if ctx.Err() != nil {
		return Record{}, s.fail(op, key, Record{}, notAsked(ctx))
	}
	r, err := s.backend.Get(ctx, stored)
	if err != nil {
		return Record{}, s.fail(op, key, Record{}, classify(err))
	}
	return r.normal(), nil
}

// stored returns the key under which the backend keeps key, or what is wrong
// with it. Without a scope it is the caller's string, for reading.
func (s *Store) stored(key string) (string, error) {
	if s.err != nil {
		return "", s.err
	}
	if err := checkText("key", key, MaxKey); err != nil {
		return "", err
	}
	if s.scope == "" {
		return key, nil // a copy would cost every replay memory
	}
	return storedKey(s.scope, key), nil
}

// fail returns the error of an operation. An error that is an *Error already
// was completed below.
func (s *Store) fail(op, key string, present Record, err error) error {
	if e, ok := err.(*Error); ok && e.Op == op {
		return err
	}
	return &Error{Op: op, Key: key, Record: present, Err: err}
}

// swap is the backend's Swap. A context that was done before is an error here,
// so that no backend can forget it.
func (s *Store) swap(ctx context.Context, stored, old string, new Record) (Record, error) {
	if ctx.Err() != nil {
		return Record{}, NoEffect(notAsked(ctx))
	}
	r, err := s.backend.Swap(ctx, stored, old, new)
	return r.normal(), err
}

// detach returns a context for cleaning up after a caller that may be gone.
func detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), detachedFor)
}
