package janitor

import (
	"context"
	"errors"
	"maps"
	"runtime/debug"
	"sync"
	"time"

	"github.com/idem-go/idem"
)

// longestWait is the longest time between two tries to recover a claim.
const longestWait = time.Hour

// errGoexit is the error of a Recover that called runtime.Goexit.
var errGoexit = errors.New("Recover ended its goroutine with runtime.Goexit")

// A leftover is what a janitor remembers of a lapsed claim that it has seen and
// that is still there. Each try is a write of the record, so that its age does not
// tell.
type leftover struct {
	since time.Time // when its lease ended, by this machine's clock
	tries int
	next  time.Time // not before
	seen  bool      // in the listing at hand
	over  bool      // it was decided; a claim with this key is another one
}

// recoverAll has Recover decide about the lapsed claims whose turn it is.
func (j *janitor) recoverAll(ctx context.Context, r *reporter) {
	// What was decided is remembered for one listing, which may have it twice, and
	// not for as long as no listing comes to its end.
	maps.DeleteFunc(j.left, func(_ string, l *leftover) bool { return l.over })
	for _, l := range j.left {
		l.seen = false
	}
	until, begun := j.deadline(), 0
	var running sync.WaitGroup
	defer running.Wait()
	free := make(chan struct{}, j.Parallel)
	for cursor := ""; ; {
		var entries []idem.Entry
		err := guard(ctx, func(ctx context.Context) (err error) {
			entries, cursor, err = j.lister.List(ctx, idem.Query{Prefix: j.prefix, Cursor: cursor, Status: idem.InProgress, Lapsed: true, Limit: page})
			return err
		})
		if err != nil {
			r.failed(ctx, "list", err)
			return
		}
		for _, e := range entries {
			l, again := j.found(e)
			if again {
				continue // a listing may return a record twice
			}
			if time.Now().Before(l.next) {
				r.leave(ctx, e, l.since, l.next, nil)
				continue
			}
			select {
			case free <- struct{}{}:
			case <-ctx.Done():
			}
			if spent(ctx, until, begun) {
				r.incomplete()
				return
			}
			begun++
			running.Go(func() {
				defer func() { <-free }()
				j.recoverOne(ctx, r, e, l)
			})
		}
		if cursor == "" {
			break
		}
	}
	running.Wait()
	// What the whole listing did not have has been decided, here or elsewhere.
	maps.DeleteFunc(j.left, func(_ string, l *leftover) bool { return !l.seen })
}

// found returns what is remembered of a claim that the listing has, and whether
// the listing has had it before.
func (j *janitor) found(e idem.Entry) (l *leftover, again bool) {
	l = j.left[e.Key]
	if l != nil && l.seen {
		return l, true
	}
	if l == nil || l.over {
		l = &leftover{since: time.Now().Add(-max(0, e.Record.Age-e.Record.Lease))}
		j.left[e.Key] = l
	}
	l.seen = true
	return l, false
}

// recoverOne takes over a lapsed claim and ends it as Recover says. It is a
// goroutine of its own, which Recover may end with runtime.Goexit.
func (j *janitor) recoverOne(ctx context.Context, r *reporter, e idem.Entry, l *leftover) {
	err := errGoexit
	defer func() {
		if p := recover(); p != nil {
			err = &panicked{p, debug.Stack()}
		}
		if l.over = err == nil; !l.over {
			l.later(j.Interval)
			r.leave(ctx, e, l.since, l.next, err)
		}
	}()
	err = j.decide(ctx, r, e)
}

// decide returns why the claim is left open, or nil if it is not, or not by this
// janitor.
func (j *janitor) decide(ctx context.Context, r *reporter, e idem.Entry) error {
	scope, key := idem.SplitKey(e.Key)
	store := j.store
	for _, level := range scope {
		store = store.Scoped(level)
	}
	within, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	claim, err := store.Reclaim(within, key, e.Record.Attempt)
	if isDecidedElsewhere(err) {
		return nil
	}
	if err != nil {
		return err
	}
	ran := false
	out, err := store.Run(ctx, claim, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
		ran = true
		return j.Recover(ctx, c)
	})
	if err == nil {
		r.completed(ctx, e, out.Result)
		return nil
	}
	within, cancel = context.WithTimeout(context.WithoutCancel(ctx), tidyIn)
	defer cancel()
	if !ran { // the janitor was stopped in between, or the storage failed
		_ = store.Abandon(within, claim) // else the lease ends it
		return err
	}
	// Whether it was NoEffect that Recover returned, and whether the key is free
	// now, is what the storage says.
	now, lookupErr := store.Lookup(within, key)
	if lookupErr == nil && now.Status == idem.Released && now.Attempt == claim.Attempt {
		r.freed(ctx, e, err)
		return nil
	}
	return err
}

// isDecidedElsewhere reports whether a lapsed claim could not be taken over because
// it is one no more: another janitor, a request or a person was faster.
func isDecidedElsewhere(err error) bool {
	return errors.Is(err, idem.ErrInProgress) || errors.Is(err, idem.ErrLost) || errors.Is(err, idem.ErrCompleted)
}

// later sets when the next try is: after one interval, two, four and so on, up to
// longestWait. Half an interval less, so that it is the run about then.
func (l *leftover) later(interval time.Duration) {
	wait := interval
	for range l.tries {
		if wait = 2 * wait; wait >= longestWait {
			wait = max(interval, longestWait)
			break
		}
	}
	l.tries++
	l.next = time.Now().Add(wait - interval/2)
}
