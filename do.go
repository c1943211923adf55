package idem

import (
	"context"
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
			s.clean(ctx, []*Claim{c}, s.ReleaseAll)
			if late++; late == lateMost {
				return Outcome{}, s.tooLate(key)
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

// lateMost is how many claims in a row may come after the end of their lease.
const lateMost = 3

func (s *Store) tooLate(key string) error {
	return s.fail("do", key, Record{}, fmt.Errorf("%w: it takes longer to answer than the lease of %v lasts", ErrUnavailable, s.opts.Lease))
}

// run runs fn under the claim and ends the claim as fn ended.
func (s *Store) run(ctx context.Context, op string, c *Claim, fn func(context.Context, *Claim) (Result, error)) (Outcome, error) {
	t := &Task{Claim: c}
	s.runAll(ctx, op, []*Task{t}, func(ctx context.Context, _ []*Task) error {
		t.End(fn(ctx, c))
		return nil
	})
	return t.outcome()
}
