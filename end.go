package idem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// errKeptChanging ends a loop that every backend in its right mind leaves by
// itself: each round in which the record was changed is progress of another
// caller.
var errKeptChanging = fmt.Errorf("%w: the record kept changing", ErrUnavailable)

// A step is one of the calls by which a claim goes on or ends.
type step struct {
	op   string
	ends bool // the claim is over afterwards
	quit bool // a claim that is over or lost is left alone, which is no error

	// next returns the record that takes the place of now, errNothingToDo, or
	// what is wrong.
	next func(now Record) (Record, error)
}

// errNothingToDo is what step.next returns if the claim is already where the
// step leads.
var errNothingToDo = errors.New("nothing to do")

// errNoClaim is what an operation on a nil or zero Claim gets.
var errNoClaim = fmt.Errorf("%w: there is no claim; Begin did not grant one", ErrLost)

// Complete records r as the operation's result, which every later request with
// the key gets, for the retention from now. It may be called again: with the
// same result it is no error, with another one it is [ErrCompleted] and the
// first stands. A claim whose lease is over, but that nobody has taken over,
// still completes. If the claim is lost, Complete changes nothing and returns
// [ErrLost]; roll back what can be rolled back.
//
// [ErrUnavailable] means that the result may have been recorded or not: call
// Complete again, with the same result. Do not run the operation again.
func (s *Store) Complete(ctx context.Context, c *Claim, r Result) error {
	return s.update(ctx, c, s.toComplete(r))
}

func (s *Store) toComplete(r Result) step {
	r = r.limit(s.opts.MaxResult)
	return step{op: "complete", ends: true, next: func(now Record) (Record, error) {
		switch now.Status {
		case Completed:
			if !now.Result.Equal(r) {
				return Record{}, ErrCompleted
			}
			return Record{}, errNothingToDo
		case Released:
			return Record{}, ErrLost
		}
		return s.completed(now, r), nil
	}}
}

// completed returns the record by which the attempt of now is done.
func (s *Store) completed(now Record, r Result) Record {
	return Record{
		Status:      Completed,
		Attempt:     now.Attempt,
		Fence:       now.Fence,
		Fingerprint: now.Fingerprint,
		Result:      r,
		TTL:         s.opts.Retention,
	}
}

// Release says that nothing happened: the key is free at once, for any payload.
// It does nothing once the claim has ended or is lost, so it can be deferred
// right after Begin.
//
// A claim with Takeover speaks for itself only. The attempt before it may have
// had its effect, so its Release ends like Abandon.
func (s *Store) Release(ctx context.Context, c *Claim) error {
	return s.update(ctx, c, s.toRelease(c))
}

func (s *Store) toRelease(c *Claim) step {
	return step{op: "release", ends: true, quit: true, next: func(now Record) (Record, error) {
		if now.Status != InProgress || now.Lease == 0 {
			return Record{}, errNothingToDo
		}
		return s.endOfRelease(c, now), nil
	}}
}

// endOfRelease returns the record that c leaves behind when it had no effect.
func (s *Store) endOfRelease(c *Claim, now Record) Record {
	if !c.frees {
		return s.abandoned(now)
	}
	return s.released(now)
}

// released returns the record of a free key. It stays for a while, so that a
// late packet of the attempt finds the key used and plants nothing.
func (s *Store) released(now Record) Record {
	return Record{
		Status:  Released,
		Attempt: now.Attempt,
		Fence:   now.Fence,
		TTL:     max(time.Hour, s.opts.Lease),
	}
}

// Abandon says that the outcome is unknown: the lease ends now, and what comes
// next is up to the LapsePolicy. It does nothing once the claim has ended or is
// lost.
func (s *Store) Abandon(ctx context.Context, c *Claim) error {
	return s.update(ctx, c, s.toAbandon())
}

func (s *Store) toAbandon() step {
	return step{op: "abandon", ends: true, quit: true, next: func(now Record) (Record, error) {
		if now.Status != InProgress || now.Lease == 0 {
			return Record{}, errNothingToDo
		}
		return s.abandoned(now), nil
	}}
}

func (s *Store) abandoned(now Record) Record {
	now.Lease, now.TTL = 0, max(now.TTL, s.claimTTL())
	return now
}

// Extend gives the claim a new lease from now. Do does it by itself. If the
// claim has ended or is lost, Extend creates nothing and returns [ErrLost]:
// stop.
func (s *Store) Extend(ctx context.Context, c *Claim) error {
	return s.update(ctx, c, s.toRenew("extend", nil))
}

// Checkpoint notes down, for whoever takes over, how far the operation has got,
// and gives the claim a new lease like Extend. Note what a recovery needs to
// know BEFORE the effect, such as the key that another system is about to be
// called with. The note is at most Options.MaxResult bytes, else ErrOptions.
func (s *Store) Checkpoint(ctx context.Context, c *Claim, note []byte) error {
	note = cloneBytes(note)
	return s.update(ctx, c, s.toRenew("checkpoint", &note))
}

func (s *Store) toRenew(op string, note *[]byte) step {
	return step{op: op, next: func(now Record) (Record, error) {
		now, err := s.renewed(now)
		if err == nil && note != nil {
			if len(*note) > s.opts.MaxResult {
				return Record{}, fmt.Errorf("%w: the checkpoint has %d bytes, Options.MaxResult is %d", ErrOptions, len(*note), s.opts.MaxResult)
			}
			now.Checkpoint = *note
		}
		return now, err
	}}
}

// renewed returns the record by which an attempt goes on.
func (s *Store) renewed(now Record) (Record, error) {
	if now.Status != InProgress {
		return Record{}, ErrLost
	}
	now.Lease, now.TTL = s.opts.Lease, max(now.TTL, s.claimTTL())
	return now, nil
}

// update takes a step of the claim.
func (s *Store) update(ctx context.Context, c *Claim, do step) error {
	start := time.Now()
	err := s.checkClaim(c)
	if err == nil {
		err = s.write(ctx, c, do)
	}
	if err != nil {
		err = s.fail(do.op, keyOf(c), Record{}, err)
	}
	s.observe(ctx, do.op, keyOf(c), start, c, nil, err)
	return err
}

// write writes what the step makes of the claim's record.
func (s *Store) write(ctx context.Context, c *Claim, do step) error {
	w := newWriting(c, do)
	if w.over {
		return nil
	}
	if ctx.Err() != nil {
		return notAsked(ctx)
	}
	for range 1000 { // see errKeptChanging
		if ended, err := s.prepare(&w); ended {
			return err
		}
		got, err := s.swap(ctx, c.stored, w.now.Token, w.next)
		if ended, err := s.settle(&w, got, err); ended {
			return err
		}
	}
	return errKeptChanging
}

// A writing is a step of a claim on its way into the storage.
type writing struct {
	c    *Claim
	do   step
	over bool   // there is nothing to do for it any more
	now  Record // what is stored, as far as it is known
	next Record // what is to take its place
	sent time.Time
}

func newWriting(c *Claim, do step) writing {
	c.mu.Lock()
	defer c.mu.Unlock()
	return writing{c: c, do: do, over: c.over && do.quit, now: c.last}
}

// prepare sets the record that the step leads to, or ends without a Swap.
func (s *Store) prepare(w *writing) (ended bool, err error) {
	w.next, err = w.do.next(w.now)
	switch {
	case err == errNothingToDo:
		s.remember(w.c, w.do, w.now, time.Time{})
		return true, nil
	case err != nil:
		return true, s.fail(w.do.op, w.c.Key, w.now, err)
	}
	w.next.Token = newToken(w.c.id)
	w.sent = time.Now()
	return false, nil
}

// settle ends the step with what its Swap returned. If a later record of the
// same attempt is in the way, written by another copy of the claim or by a call
// whose answer was lost, the step goes on from that record.
func (s *Store) settle(w *writing, got Record, err error) (ended bool, _ error) {
	switch {
	case err != nil:
		return true, classify(err)
	case got.Token == w.next.Token:
		s.remember(w.c, w.do, w.next, w.sent)
		return true, nil
	case got.attemptID() == w.c.id:
		w.now = got
		return false, nil
	case w.do.quit:
		s.remember(w.c, w.do, w.now, w.sent)
		return true, nil
	}
	return true, s.fail(w.do.op, w.c.Key, got, ErrLost)
}

// remember notes in the claim what a step has come to. A transaction may still
// roll back, so nothing is noted there.
func (s *Store) remember(c *Claim, did step, stored Record, sent time.Time) {
	if s.bound {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = did.ends
	if !did.ends {
		// The record that ends a claim is not what a later write may replace:
		// it would find its own token and take a completed record for free.
		c.last, c.leasedAt = stored, sent
	}
}

// checkClaim reports what is wrong with a claim that is used through s.
func (s *Store) checkClaim(c *Claim) error {
	switch {
	case s.err != nil:
		return s.err
	case c == nil || c.stored == "":
		return errNoClaim
	}
	prefix := ""
	if s.scope != "" {
		prefix = s.scope + separator
	}
	if rest, ok := strings.CutPrefix(c.stored, prefix); !ok || rest != c.Key {
		return fmt.Errorf("%w: the claim is for another key or scope than this Store's", ErrLost)
	}
	return nil
}

func keyOf(c *Claim) string {
	if c == nil {
		return ""
	}
	return c.Key
}
