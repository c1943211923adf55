package idem

import (
	"context"
	"errors"
	"time"
)

// An Event tells how one operation of a Store ended. Do and Run are reported as
// well as the operations they consist of. Those in a transaction are reported when
// they end, which is before the commit; Do, after it.
type Event struct {
	Op  string // "begin", "complete", "release", "abandon", "extend", "checkpoint", "lookup", "resolve", "forget", "reclaim", "erase", "wait", "do" or "run"
	Key string // as it was given to the Store

	// Scope has the levels of the Store's scope joined by U+001F, as they are
	// stored; ScopePrefix and SplitKey speak the same language.
	Scope string

	Attempt  int  // of the claim or of the record that was found; 0 if there is none
	Takeover bool // the claim took over from an attempt without a known outcome
	Replayed bool // the answer is a stored result
	Err      error
	Elapsed  time.Duration
}

// observe reports an operation with what it was about: a claim, or a record.
func (s *Store) observe(ctx context.Context, op, key string, start time.Time, c *Claim, found *Record, err error) {
	if s.opts.Observe == nil {
		return
	}
	e := Event{Op: op, Key: key, Scope: s.scope, Err: err, Elapsed: time.Since(start)}
	if found != nil {
		e.Attempt = found.Attempt
		e.Replayed = found.Status == Completed && op == "begin"
	}
	if refused, ok := errors.AsType[*Error](err); ok && e.Attempt == 0 {
		e.Attempt = refused.Record.Attempt
	}
	if c != nil {
		e.Attempt, e.Takeover = c.Attempt, c.Takeover
	}
	s.opts.Observe(ctx, e)
}

// observeDo reports a Do, DoTx or Run, which has an Outcome to tell of.
func (s *Store) observeDo(ctx context.Context, op, key string, start time.Time, out Outcome, err error) {
	if s.opts.Observe == nil {
		return
	}
	s.opts.Observe(ctx, Event{Op: op, Key: key, Scope: s.scope, Attempt: out.Attempt, Replayed: out.Replayed, Err: err, Elapsed: time.Since(start)})
}
