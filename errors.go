package idem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// These errors tell what is wrong with a call. Nothing has been written.
var (
	// ErrKey means that a key or a scope is empty, too long, not UTF-8 or
	// contains control characters.
	ErrKey = errors.New("bad key")

	// ErrOptions means that an option or an argument is out of its range.
	ErrOptions = errors.New("bad options")
)

// These errors tell what is true about a key. The call has changed nothing.
var (
	// ErrMismatch means that the key is in use with another payload: the
	// caller made a mistake that no retry mends.
	ErrMismatch = errors.New("key was used with another payload")

	// ErrInProgress means that an attempt is running; come back after
	// [Error.RetryAfter].
	ErrInProgress = errors.New("another attempt is in progress")

	// ErrUnresolved means that the lease of an attempt ran out under the
	// policy Hold: whether it had its effect is unknown, and Resolve, Forget or
	// Reclaim has to decide.
	ErrUnresolved = errors.New("outcome of an earlier attempt is unresolved")

	// ErrLost means that the claim is not, or no longer, the one that holds
	// the key. Roll back what can be rolled back.
	ErrLost = errors.New("claim is lost")

	// ErrCompleted means that the attempt is recorded as completed already,
	// with another result, which Error.Record has.
	ErrCompleted = errors.New("already completed with another result")

	// ErrNotRecorded means that the operation has been done, but that its
	// result could not be recorded or is not stored: a duplicate will not get
	// it.
	ErrNotRecorded = errors.New("done, but the result is not recorded")
)

// These errors tell that the storage could not do its part.
var (
	// ErrUnavailable means that the storage failed. Whether the call took
	// effect is unknown; repeating it is safe.
	ErrUnavailable = errors.New("storage unavailable")

	// ErrRetryTx means that the transaction has to be run again from its
	// beginning: the database chose it as the loser of a conflict.
	ErrRetryTx = errors.New("transaction must be run again")

	// ErrCorrupt means that stored bytes are damaged or not of this package's
	// format. Nothing is replaced or guessed.
	ErrCorrupt = errors.New("stored data is corrupt")

	// ErrStoreLost means that the storage has lost its records: every
	// operation could run again, so none may run until a person has looked.
	ErrStoreLost = errors.New("storage has lost its records")

	// ErrLocked means that another process holds the storage.
	ErrLocked = errors.New("storage is locked by another process")
)

// An Error carries every error of a Store: what was asked, of which key, what
// is stored there and what is wrong. errors.Is finds the sentinel, errors.As
// the driver's cause.
type Error struct {
	Op     string // "begin", "complete", ...
	Key    string // as it was given to the Store; "" if the call had none
	Record Record // what is stored under the key, as far as it is known
	Err    error
}

// Error tells what was asked, of which key, what is true now and what to do.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("idem: " + e.Op)
	if e.Key != "" {
		fmt.Fprintf(&b, " %q", e.Key)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if advice := e.advice(); advice != "" {
		b.WriteString(" (" + advice + ")")
	}
	return b.String()
}

// advice says what is stored and what to do, for the errors that are about that.
func (e *Error) advice() string {
	r := e.Record
	switch {
	case errors.Is(e.Err, ErrMismatch):
		return fmt.Sprintf("attempt %d with the first payload is %v; use a new key for another operation", r.Attempt, r.Status)
	case errors.Is(e.Err, ErrInProgress):
		return fmt.Sprintf("attempt %d has %v of its lease left; retry after that", r.Attempt, round(e.RetryAfter()))
	case errors.Is(e.Err, ErrUnresolved):
		return fmt.Sprintf("attempt %d ended without a known outcome; find out whether it had its effect, then Resolve or Forget it", r.Attempt)
	case errors.Is(e.Err, ErrCompleted):
		return fmt.Sprintf("attempt %d completed %v ago; its result stands", r.Attempt, round(r.Age))
	case e.Err == ErrLost && r.Status == 0:
		return "there is no record of it; it expired, or never was"
	case errors.Is(e.Err, ErrLost) && r.Status != 0:
		return fmt.Sprintf("attempt %d is %v", r.Attempt, r.Status)
	}
	return ""
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// RetryAfter returns how long to wait before asking again: for ErrInProgress
// what is left of the lease by the storage's clock, above 0 and at most the
// lease; for all other errors 0.
func (e *Error) RetryAfter() time.Duration {
	if !errors.Is(e.Err, ErrInProgress) {
		return 0
	}
	// A lease that ended between the answer and now is still an answer of
	// "soon", not of "never".
	return max(e.Record.LeaseLeft(), 1)
}

// round makes a duration readable in a message.
func round(d time.Duration) time.Duration {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(100 * time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d
}

// NoEffect marks err as one that left no effect behind. A function run by Do
// returns it to say that nothing happened: the key is free at once and a
// corrected retry may use another payload. (In a takeover it speaks for its own
// attempt only, and the key stays open.) A [Backend] returns it to say that a
// write surely has not been and will not be applied.
//
// Any other error means that what happened is unknown. Use NoEffect only where
// it is certain that no effect took place: before the first call to another
// system, or after a rolled-back transaction. An error that joins several is one
// without effect if all of them are.
func NoEffect(err error) error {
	if err == nil {
		err = errors.New("nothing happened")
	}
	return &noEffect{err}
}

type noEffect struct{ err error }

func (e *noEffect) Error() string { return e.err.Error() }
func (e *noEffect) Unwrap() error { return e.err }

// unmarked hides the marks of NoEffect that err has from the functions around:
// that nothing happened was said of one operation, and its error may well pass
// through the function of another that has had its effect.
type unmarked struct{ err error }

func (e *unmarked) Error() string { return e.err.Error() }
func (e *unmarked) Unwrap() error { return e.err }

// hasNoEffect reports whether err, or the error that it wraps, is marked by
// NoEffect, without looking into the errors of an operation inside this one.
func hasNoEffect(err error) bool {
	switch e := err.(type) {
	case *noEffect:
		return true
	case *Error, *unmarked:
		return false
	case interface{ Unwrap() error }:
		return hasNoEffect(e.Unwrap())
	case interface{ Unwrap() []error }:
		several := e.Unwrap()
		for _, err := range several {
			if !hasNoEffect(err) {
				return false
			}
		}
		return len(several) > 0
	}
	return false
}

// unmark returns err as it leaves the operation that it was marked for.
func unmark(err error) error {
	if e, ok := err.(*noEffect); ok {
		return e.err
	}
	return &unmarked{err}
}

// A storageError is what a Backend reported, with the class it falls into.
type storageError struct {
	class, cause error
}

func (e *storageError) Error() string   { return fmt.Sprintf("%v: %v", e.class, e.cause) }
func (e *storageError) Unwrap() []error { return []error{e.class, e.cause} }

// classify gives a backend's error its class: the sentinel that it wraps
// already, or ErrUnavailable. The mark of NoEffect stays inside.
func classify(err error) error {
	for _, class := range []error{ErrRetryTx, ErrCorrupt, ErrStoreLost, ErrLocked, ErrUnavailable, ErrKey} {
		if errors.Is(err, class) {
			return err
		}
	}
	return &storageError{ErrUnavailable, err}
}

// ambiguous reports whether a Swap that failed with err may have been applied
// all the same, or may be applied still.
func ambiguous(err error) bool {
	return errors.Is(classify(err), ErrUnavailable) && !hasNoEffect(err)
}

// notAsked is the error of a call whose context was done before it began.
func notAsked(ctx context.Context) error {
	return classify(fmt.Errorf("it was not asked: %w", contextError(ctx)))
}

// contextError returns why ctx is done. The cause is in the text only: it can be
// the error of another operation, as in an errgroup, and what became of one key
// must not be taken for the answer of another.
func contextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || errors.Is(cause, err) {
		return err
	}
	return fmt.Errorf("%w (%s)", err, cause.Error())
}
