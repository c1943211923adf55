package idem

import (
	"context"
	"time"
)

// Erase takes the answer out of a completed record, where a person's data has to
// go before the retention ends. The record stays, and so does what it protects
// from: a duplicate never runs; it gets a Result that is Omitted, with the Code
// and without Meta and Body. The record expires when it would have expired
// anyway, to within the time of the call. A key that is free or was never used
// holds no answer, and a Result with neither Meta nor Body stays as it is: both are
// nil.
//
// A claim is not touched: while its attempt runs, Erase returns [ErrInProgress],
// and [ErrUnresolved] if the attempt ended without a known outcome, whose
// checkpoint somebody will need to decide. Erase it when it is completed.
//
// The key, the fingerprint and the numbers of the record stay until it expires:
// without them nobody could tell a duplicate. Nor does Erase reach what a
// storage keeps of its past, such as free pages of a file, a log or a backup.
//
// If the attempt itself repeats its Complete after that, it is told
// [ErrCompleted]: there is nothing left to compare its result with.
func (s *Store) Erase(ctx context.Context, key string) error {
	start := time.Now()
	present, err := s.get(ctx, "erase", key)
	if err == nil {
		present, err = s.erase(ctx, key, present)
	}
	s.observe(ctx, "erase", key, start, nil, &present, err)
	return err
}

func (s *Store) erase(ctx context.Context, key string, present Record) (Record, error) {
	for range 1000 { // see errKeptChanging
		switch {
		case present.Lapsed():
			return present, s.fail("erase", key, present, ErrUnresolved)
		case present.Status == InProgress:
			return present, s.fail("erase", key, present, ErrInProgress)
		case present.Status != Completed || present.Result.bare():
			return present, nil
		}
		next := present.Rest(0)
		next.Token = newToken(present.attemptID())
		next.Result = Result{Code: present.Result.Code, Omitted: true}
		next.Checkpoint = nil
		got, err := s.swap(ctx, storedKey(s.scope, key), present.Token, next)
		if err != nil {
			return present, s.fail("erase", key, Record{}, classify(err))
		}
		if got.Token == next.Token {
			return got, nil
		}
		present = got
	}
	return present, s.fail("erase", key, present, errKeptChanging)
}

// bare reports whether nothing of the answer is stored but its code.
func (r Result) bare() bool { return len(r.Meta) == 0 && len(r.Body) == 0 }

// Rest returns r as it is written anew, to this storage or another one, when it
// was read a while ago: everything is as it was, and Lease and TTL are what is
// left of them, so that they end when they would have ended. A lease that is over
// is not the same as one that was given up: it becomes the shortest there is. What
// is held until a person decides stays so. A record that expired in the meantime
// has a TTL of 0.
func (r Record) Rest(ago time.Duration) Record {
	age := max(0, r.Age) + max(0, ago)
	if r.Status == InProgress && r.Lease > 0 {
		r.Lease = max(1, r.Lease-age)
	}
	if r.TTL < held {
		r.TTL = max(0, r.TTL-age)
	}
	r.Age = 0
	return r
}
