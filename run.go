package idem

import (
	"context"
	"fmt"
	"time"
)

// errAbandoned is what Run says of a claim that was given up.
var errAbandoned = fmt.Errorf("%w: it was abandoned, and what its attempt did is unknown; a new claim will say so", ErrLost)

// Run is the second half of [Store.Do], for a claim that is there already: one
// that Reclaim granted, or one that travelled as text from an API server to a
// worker. It extends the claim, runs fn under it and ends it as fn ends, by the
// rules of Do, errors and panics included.
//
//   - A claim whose lease is over but that nobody has taken over runs.
//   - If the attempt is completed already, by another copy of the claim, Run
//     returns the stored result, with Outcome.Replayed, and fn does not run.
//   - If the claim is lost, was released or abandoned, is nil, or is for another
//     key or scope than this Store's, Run returns [ErrLost], and fn does not
//     run. It does not run either if the claim cannot be extended because the
//     storage fails; the claim stays as it is then, and Run may be called again.
//
// After [NoEffect] a claim from Reclaim frees the key, any other takeover leaves
// it open.
//
// Copies of a claim are one attempt, and do not exclude each other: two calls of
// Run with copies of one claim, at the same time or after a crash of the first,
// both run fn. Where a message can be delivered twice, send the key and call Do.
func (s *Store) Run(ctx context.Context, c *Claim, fn func(context.Context, *Claim) (Result, error)) (Outcome, error) {
	start := time.Now()
	out, err := s.runClaim(ctx, c, fn)
	s.observeDo(ctx, "run", keyOf(c), start, out, err)
	return out, err
}

func (s *Store) runClaim(ctx context.Context, c *Claim, fn func(context.Context, *Claim) (Result, error)) (Outcome, error) {
	if fn == nil {
		return Outcome{}, s.fail("run", keyOf(c), Record{}, errNoFunction)
	}
	if err := s.takeUp(ctx, c); err != nil {
		refused := err.(*Error)
		if r := refused.Record; r.Status == Completed && r.attemptID() == c.id {
			return Outcome{Result: r.Result, Replayed: true, Attempt: r.Attempt}, nil
		}
		return Outcome{}, s.fail("run", keyOf(c), refused.Record, refused.Err)
	}
	if !s.bound && c.leaseLeft() == 0 { // as in do: somebody may have taken over
		return Outcome{}, s.fail("run", c.Key, c.lastKnown(), fmt.Errorf("%w: it takes longer to answer than the lease of %v lasts", ErrUnavailable, s.opts.Lease))
	}
	return s.run(ctx, "run", c, fn)
}

// takeUp extends a claim of which this process may have heard nothing for a while.
func (s *Store) takeUp(ctx context.Context, c *Claim) error {
	return s.update(ctx, c, step{op: "extend", next: func(now Record) (Record, error) {
		if now.Status == InProgress && now.Lease == 0 {
			return Record{}, errAbandoned
		}
		return s.renewed(now)
	}})
}
