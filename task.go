package idem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// A Task is one operation of a batch that is to run: an item for which DoAll has
// a claim.
type Task struct {
	Item  int // its index in the items of DoAll
	Claim *Claim

	mu       sync.Mutex
	ended    bool
	result   Result
	err      error
	recorded error // why the result is not recorded
}

// End says how the operation ended, with what the function of [Store.Do] would
// return: a result and nil; [NoEffect] of an error; or any other error, which
// leaves the outcome unknown. It records nothing by itself, DoAll does when its
// function has returned. Only the first call counts. It may be called from any
// goroutine.
func (t *Task) End(r Result, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.ended, t.result, t.err = true, r, err
	}
}

// outcome returns what Do would.
func (t *Task) outcome() (Outcome, error) {
	out := Outcome{Attempt: t.Claim.Attempt}
	switch {
	case t.err == nil:
		out.Result = t.result
		return out, t.recorded
	case hasNoEffect(t.err):
		return out, unmark(t.err)
	}
	return out, t.err
}

// errNotEnded is how a task ended of which its function has said nothing.
var errNotEnded = errors.New("idem: the function has returned without saying how the operation ended; its outcome is unknown")

// errPanicked is how a task ended whose function did not return.
var errPanicked = errors.New("idem: the function has not returned")

// runAll runs fn under the claims of the tasks and ends each as fn said. What fn
// returns is the end of those it has said nothing about.
func (s *Store) runAll(ctx context.Context, op string, tasks []*Task, fn func(context.Context, []*Task) error) {
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	claims := make([]*Claim, len(tasks))
	for i, t := range tasks {
		claims[i] = t.Claim
	}
	stop := s.heartbeat(ctx, op, claims, cancel)
	rest := errPanicked
	defer func() { // a panic or a Goexit may be on its way, and goes on
		stop()
		for _, t := range tasks {
			t.End(Result{}, rest)
		}
		s.endAll(ctx, op, tasks)
	}()
	if rest = fn(work, slices.Clone(tasks)); rest == nil {
		rest = errNotEnded
	}
}

// endAll ends the claims of tasks that have ended.
func (s *Store) endAll(ctx context.Context, op string, tasks []*Task) {
	var done []*Task
	var completions []Completion
	var released, abandoned []*Claim
	for _, t := range tasks {
		switch {
		case t.err == nil:
			done, completions = append(done, t), append(completions, Completion{t.Claim, t.result})
		case hasNoEffect(t.err):
			released = append(released, t.Claim)
		default:
			abandoned = append(abandoned, t.Claim)
		}
	}
	for i, err := range s.record(ctx, op, completions) {
		done[i].recorded = err
	}
	s.clean(ctx, released, s.ReleaseAll)
	s.clean(ctx, abandoned, s.AbandonAll)
}

// clean ends claims that have no result, for a caller that may be gone. If that
// fails the lease ends them; Observe has been told.
func (s *Store) clean(ctx context.Context, claims []*Claim, end func(context.Context, []*Claim) []error) {
	if s.bound || len(claims) == 0 {
		return // a transaction takes its claims with it when it rolls back
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	_ = end(ctx, claims)
}

// record completes claims, for a caller that may be gone, and keeps trying while
// their leases last.
func (s *Store) record(ctx context.Context, op string, completions []Completion) []error {
	if s.bound || len(completions) == 0 {
		return s.CompleteAll(ctx, completions) // in a transaction nothing is done before the commit
	}
	ctx = context.WithoutCancel(ctx)
	errs := make([]error, len(completions))
	open := make([]int, len(completions))
	left := detachedFor
	for i, c := range completions {
		open[i] = i
		// Even with a lease that is over it is worth a try: good work is not
		// thrown away if nobody has taken over.
		left = max(left, c.Claim.leaseLeft())
	}
	giveUp := time.Now().Add(left)
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, 500*time.Millisecond) {
		now := make([]Completion, len(open))
		for n, i := range open {
			now[n] = completions[i]
		}
		try, cancel := tryWithin(ctx, time.Until(giveUp))
		tried := s.CompleteAll(try, now)
		cancel()
		late := time.Now().Add(delay).After(giveUp)
		n := 0
		open = slices.DeleteFunc(open, func(i int) bool {
			err := tried[n]
			n++
			mayPass := errors.Is(err, ErrUnavailable) || errors.Is(err, ErrLocked)
			if err != nil && (!mayPass || late) {
				err = s.notRecorded(op, completions[i].Claim, err)
			}
			errs[i] = err
			return err == nil || !mayPass || late
		})
		if len(open) == 0 {
			return errs
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

// heartbeat extends the claims until stop is called, and cancels the work when
// one of them is lost or its lease has run out by the local monotonic clock,
// counted from when the last extension that was granted was sent. It goes on
// when ctx is done, and with the other claims when one is lost: fn may still be
// running.
func (s *Store) heartbeat(ctx context.Context, op string, claims []*Claim, cancel context.CancelCauseFunc) (stop func()) {
	if s.bound {
		return func() {}
	}
	ctx, stopExtending := context.WithCancel(context.WithoutCancel(ctx))
	_, left := firstToLapse(claims)
	ranOut := time.AfterFunc(left, func() {
		c, _ := firstToLapse(claims)
		cancel(s.fail(op, c.Key, c.lastKnown(), fmt.Errorf("%w: its lease of %v ran out before it could be extended", ErrLost, s.opts.Lease)))
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.keepExtending(ctx, claims, ranOut, cancel)
	}()
	return func() {
		stopExtending()
		ranOut.Stop()
		<-ended
	}
}

// keepExtending extends the claims every third of their lease, until ctx is done,
// MaxHold is reached, or none of them is left. It cancels the work with the error
// of one that is lost.
func (s *Store) keepExtending(ctx context.Context, claims []*Claim, ranOut *time.Timer, cancel context.CancelCauseFunc) {
	interval := s.opts.Lease / 3
	begun := time.Now()
	_, left := firstToLapse(claims)
	next := min(interval, left/2) // the claims' answer may have taken its time
	open := slices.Clone(claims)
	for {
		t := time.NewTimer(next)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		if time.Since(begun) >= s.opts.MaxHold {
			return // ranOut does the rest
		}
		// Even with a lease that is over: nobody may have taken over yet.
		try, answered := tryWithin(ctx, max(left, interval))
		errs := s.ExtendAll(try, open)
		answered()
		next = interval
		n := 0
		open = slices.DeleteFunc(open, func(c *Claim) (over bool) {
			err := errs[n]
			n++
			switch refused, _ := err.(*Error); {
			case err == nil:
			case refused.Record.Status == Completed && refused.Record.attemptID() == c.id:
				// fn has completed its claim itself, in a transaction of its own
				// or through another copy, and is not done yet.
				return true
			case errors.Is(err, ErrLost):
				// fn takes its time to heed that, and nobody else may run the
				// others meanwhile.
				cancel(err)
				return true
			default:
				next = interval / 10 // transient, as far as anybody knows
			}
			return false
		})
		if len(open) == 0 {
			ranOut.Stop()
			return
		}
		_, left = firstToLapse(open)
		ranOut.Reset(left)
	}
}

// firstToLapse returns the claim with the least of its lease left, and how much
// that is.
func firstToLapse(claims []*Claim) (first *Claim, left time.Duration) {
	for _, c := range claims {
		if l := c.leaseLeft(); first == nil || l < left {
			first, left = c, l
		}
	}
	return first, left
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
