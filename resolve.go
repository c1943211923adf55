package idem

import (
	"context"
	"fmt"
	"time"
)

// Resolve records r as the outcome of an attempt whose lease is over: somebody
// has found out that the operation was done. The attempt's number guards
// against answering for another one: it has to be the present one. The late
// Complete of the attempt itself then ends as after a Complete of its own.
//
// It returns [ErrLost] if another attempt is present, or none; [ErrInProgress]
// if the lease still runs; [ErrCompleted] if it is completed with another
// result, and nil if it is completed with the same.
func (s *Store) Resolve(ctx context.Context, key string, attempt int, r Result) error {
	r = r.limit(s.opts.MaxResult)
	return s.decide(ctx, "resolve", key, attempt, &r)
}

// Forget frees the key of an attempt whose lease is over: somebody has found
// out that the operation was not done, and the next request runs it, with any
// payload. Its errors are those of Resolve; a completed attempt is
// [ErrCompleted].
func (s *Store) Forget(ctx context.Context, key string, attempt int) error {
	return s.decide(ctx, "forget", key, attempt, nil)
}

// decide records the outcome of a lapsed attempt: the result, or nil if the
// operation did not happen.
func (s *Store) decide(ctx context.Context, op, key string, attempt int, outcome *Result) error {
	start := time.Now()
	present, err := s.get(ctx, op, key)
	if err == nil {
		err = s.swapOutcome(ctx, op, key, attempt, present, outcome)
	}
	s.observe(ctx, op, key, start, nil, &Record{Attempt: attempt}, err)
	return err
}

func (s *Store) swapOutcome(ctx context.Context, op, key string, attempt int, present Record, outcome *Result) error {
	stored := storedKey(s.scope, key)
	for range 1000 { // see errKeptChanging
		err := decidable(present, attempt)
		if err == ErrCompleted && outcome != nil && present.Result.Equal(*outcome) {
			return nil
		}
		if err != nil {
			return s.fail(op, key, present, err)
		}
		next := s.released(present)
		if outcome != nil {
			next = s.completed(present, *outcome)
		}
		// The attempt keeps its identity, so that its own late Complete is
		// compared with what was decided.
		next.Token = newToken(present.attemptID())
		got, err := s.swap(ctx, stored, present.Token, next)
		if err != nil {
			return s.fail(op, key, Record{}, classify(err))
		}
		if got.Token == next.Token {
			return nil
		}
		present = got
	}
	return s.fail(op, key, present, errKeptChanging)
}

// decidable reports why nobody may decide about the attempt: only one whose
// lease is over and that nothing is known of is open to it.
func decidable(present Record, attempt int) error {
	switch {
	case present.Status == 0 || present.Status == Released:
		return fmt.Errorf("%w: no attempt of this key is open", ErrLost)
	case present.Attempt != attempt:
		return fmt.Errorf("%w: attempt %d is not the present one", ErrLost, attempt)
	case present.Status == Completed:
		return ErrCompleted
	case !present.Lapsed():
		return ErrInProgress
	}
	return nil
}

// Reclaim takes over an attempt whose lease is over, whatever the LapsePolicy
// says, in order to find out what it did. The claim has Takeover and the
// attempt's Checkpoint. Complete it if the operation was done, or after doing
// it; Release of this claim says that it was not done and frees the key;
// Abandon leaves the matter open. Run does one of these as a function says;
// package janitor does it for every such attempt. Its errors are those of Forget.
//
// The record is kept at least as long as it was to be: what was claimed under
// Hold does not expire because a Store with other options has looked after it.
func (s *Store) Reclaim(ctx context.Context, key string, attempt int) (*Claim, error) {
	start := time.Now()
	c, err := s.reclaim(ctx, key, attempt)
	s.observe(ctx, "reclaim", key, start, c, &Record{Attempt: attempt}, err)
	return c, err
}

func (s *Store) reclaim(ctx context.Context, key string, attempt int) (*Claim, error) {
	present, err := s.get(ctx, "reclaim", key)
	if err != nil {
		return nil, err
	}
	a := asking{stored: storedKey(s.scope, key), key: key, present: present}
	for range 1000 { // see errKeptChanging
		if err := decidable(a.present, attempt); err != nil {
			return nil, s.fail("reclaim", key, a.present, err)
		}
		a.fp = a.present.Fingerprint
		a.prepare(s)
		a.claim.TTL = max(a.claim.TTL, a.present.TTL) // see claimTTL
		a.c.last = a.claim
		if err := s.swapClaim(ctx, &a); err != nil {
			return nil, s.fail("reclaim", key, Record{}, err)
		}
		if a.granted() {
			a.c.frees = true // not before it is granted: giving back must not free the key
			return a.c, nil
		}
	}
	return nil, s.fail("reclaim", key, a.present, errKeptChanging)
}
