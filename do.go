package idem

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// An Outcome is how Do ended.
type Outcome struct {
	Result   Result
	Replayed bool // the result was stored before; the function did not run
	Attempt  int  // that produced the result
}

var errNoFunction = fmt.Errorf("%w: there is no function to run", ErrOptions)

// Do runs fn once for the key and returns its result to every caller with that
// key, for the retention of the Store.
//
//   - If the operation is completed, Do returns the stored result.
//   - If a duplicate is running, Do waits for its result until ctx is done, or
//     returns ErrInProgress with Options.NoWait. If the duplicate was released
//     or its lease ran out, Do runs fn itself.
//   - While fn runs, its claim is extended, for at most Options.MaxHold. When
//     the claim is lost, or can no longer be known to be held, fn's context is
//     cancelled with a cause that is [ErrLost].
//
// What fn returns ends the claim. It does so even if ctx is done by then: a
// client that hangs up must not lose the result.
//
//   - A nil error completes the operation. A definite refusal, such as a
//     declined card, is a Result too, not an error.
//   - [NoEffect] of an error says that nothing happened: the key is free, or,
//     if the claim is a takeover, as open as the attempt before has left it.
//   - Any other error, a panic or a call of runtime.Goexit leaves the outcome
//     unknown: the claim is abandoned, and the next attempt is told, or has to
//     wait for a decision under Hold. Do returns the error as it is, and the
//     panic goes on.
//
// fn may complete its claim itself, in the transaction of the change (see
// [Store.With]), and then has to return the same result.
//
// If the result cannot be recorded, Do goes on trying while the lease lasts. It
// then returns the result together with an error that is [ErrNotRecorded], and
// also ErrLost if somebody has taken over the claim. The operation was done;
// the claim is kept.
func (s *Store) Do(ctx context.Context, key string, fp Fingerprint, fn func(context.Context, *Claim) (Result, error)) (Outcome, error) {
	start := time.Now()
	out, err := s.do(ctx, key, fp, fn)
	s.observeDo(ctx, "do", key, start, out, err)
	return out, err
}

func (s *Store) do(ctx context.Context, key string, fp Fingerprint, fn func(context.Context, *Claim) (Result, error)) (Outcome, error) {
	if fn == nil {
		return Outcome{}, s.fail("do", key, Record{}, errNoFunction)
	}
	for late := 0; ; {
		c, done, err := s.Begin(ctx, key, fp)
		if c != nil && !s.bound && c.leaseLeft() == 0 {
			// The storage took longer to answer than the lease lasts: somebody
			// may have taken over. Nothing has run under this claim.
			s.clean(ctx, c, s.Release)
			if late++; late == 3 {
				return Outcome{}, s.fail("do", key, Record{}, fmt.Errorf("%w: it takes longer to answer than the lease of %v lasts", ErrUnavailable, s.opts.Lease))
			}
			continue
		}
		if c != nil {
			return s.run(ctx, "do", c, fn)
		}
		if refused, ok := err.(*Error); ok && refused.Err == ErrInProgress {
			var after Record
			if after, err = s.await(ctx, "do", key, refused.Record); err != nil {
				return Outcome{}, err
			}
			// What ended the wait answers all who waited, without a question
			// to the storage from each of them.
			if ok, _ := s.judge(after, fp); !ok {
				continue
			}
			done = &after
		}
		if err != nil {
			return Outcome{}, err
		}
		return Outcome{Result: done.Result, Replayed: true, Attempt: done.Attempt}, nil
	}
}

// run runs fn under the claim and ends the claim as fn ended.
func (s *Store) run(ctx context.Context, op string, c *Claim, fn func(context.Context, *Claim) (Result, error)) (out Outcome, err error) {
	out.Attempt = c.Attempt
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := s.heartbeat(ctx, op, c, cancel)
	returned := false
	defer func() {
		if !returned { // a panic or a Goexit is on its way, and goes on
			stop()
			s.clean(ctx, c, s.Abandon)
		}
	}()
	r, err := fn(work, c)
	returned = true
	stop()
	switch {
	case err == nil:
		out.Result = r
		return out, s.record(ctx, op, c, r)
	case hasNoEffect(err):
		s.clean(ctx, c, s.Release)
		return out, unmark(err)
	}
	s.clean(ctx, c, s.Abandon)
	return out, err
}

// clean ends a claim that has no result, for a caller that may be gone. If that
// fails the lease ends it; Observe has been told.
func (s *Store) clean(ctx context.Context, c *Claim, end func(context.Context, *Claim) error) {
	if s.bound {
		return // the transaction takes the claim with it when it rolls back
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	_ = end(ctx, c)
}

// record completes the claim, for a caller that may be gone, and keeps trying
// while the lease lasts.
func (s *Store) record(ctx context.Context, op string, c *Claim, r Result) error {
	if s.bound {
		return s.Complete(ctx, c, r) // nothing is done before the commit
	}
	ctx = context.WithoutCancel(ctx)
	// Even with a lease that is over it is worth a try: good work is not thrown
	// away if nobody has taken over.
	giveUp := time.Now().Add(max(c.leaseLeft(), detachedFor))
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, 500*time.Millisecond) {
		try, cancel := tryWithin(ctx, time.Until(giveUp))
		err := s.Complete(try, c, r)
		cancel()
		if err == nil {
			return nil
		}
		mayPass := errors.Is(err, ErrUnavailable) || errors.Is(err, ErrLocked)
		if !mayPass || time.Now().Add(delay).After(giveUp) {
			return s.notRecorded(op, c, err)
		}
		pause(ctx, delay)
	}
}

func (s *Store) notRecorded(op string, c *Claim, err error) error {
	why := err.(*Error)
	return s.fail(op, c.Key, why.Record, fmt.Errorf("%w: %w", ErrNotRecorded, why.Err))
}

// tryWithin returns a context for one of several tries within the time that is
// left. An answer that never comes must not use up all of it.
func tryWithin(ctx context.Context, left time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(left/2, min(left, time.Second)))
}

// heartbeat extends the claim until stop is called, and cancels the work when
// the claim is lost or its lease has run out by the local monotonic clock,
// counted from when the last extension that was granted was sent. It goes on
// when ctx is done: fn may still be running.
func (s *Store) heartbeat(ctx context.Context, op string, c *Claim, cancel context.CancelCauseFunc) (stop func()) {
	if s.bound {
		return func() {}
	}
	ctx, stopExtending := context.WithCancel(context.WithoutCancel(ctx))
	ranOut := time.AfterFunc(c.leaseLeft(), func() {
		cancel(s.fail(op, c.Key, c.lastKnown(), fmt.Errorf("%w: its lease of %v ran out before it could be extended", ErrLost, s.opts.Lease)))
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.keepExtending(ctx, c, ranOut); err != nil {
			cancel(err)
		}
	}()
	return func() {
		stopExtending()
		ranOut.Stop()
		<-ended
	}
}

// keepExtending extends the claim every third of its lease, until ctx is done,
// MaxHold is reached, or the claim is lost, which it returns.
func (s *Store) keepExtending(ctx context.Context, c *Claim, ranOut *time.Timer) error {
	interval := s.opts.Lease / 3
	begun := time.Now()
	next := min(interval, c.leaseLeft()/2) // the claim's answer may have taken its time
	for {
		t := time.NewTimer(next)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
		if time.Since(begun) >= s.opts.MaxHold {
			return nil // ranOut does the rest
		}
		// Even with a lease that is over: nobody may have taken over yet.
		try, cancel := tryWithin(ctx, max(c.leaseLeft(), interval))
		err := s.Extend(try, c)
		cancel()
		switch refused, _ := err.(*Error); {
		case err == nil:
			ranOut.Reset(c.leaseLeft())
			next = interval
		case refused.Record.Status == Completed && refused.Record.attemptID() == c.id:
			// fn has completed its claim itself, in a transaction of its own or
			// through another copy, and is not done yet.
			ranOut.Stop()
			return nil
		case errors.Is(err, ErrLost):
			return err
		default:
			next = interval / 10 // transient, as far as anybody knows
		}
	}
}

// leaseLeft returns what is left of the lease by the local monotonic clock; it
// is never more than what is left by the storage's.
func (c *Claim) leaseLeft() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(0, c.last.Lease-time.Since(c.leasedAt))
}

func (c *Claim) lastKnown() Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}
