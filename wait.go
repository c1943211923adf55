package idem

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"
)

// How a running duplicate is asked after where the storage cannot tell by
// itself: soon at first, ten times a second in the end, whatever the number of
// those who wait.
const (
	firstPoll = 5 * time.Millisecond
	lastPoll  = 100 * time.Millisecond
)

// NoWait returns a Store with the same rules that does not wait for a running
// duplicate: see Options.NoWait.
func (s *Store) NoWait() *Store {
	impatient := *s
	impatient.opts.NoWait = true
	return &impatient
}

// Wait returns nil when no attempt is running under key: it is completed, was
// released, its lease ran out, or it was never there. It returns
// [ErrInProgress] at once with Options.NoWait or in a transaction, and an error
// that is ErrInProgress and the context's if ctx is done before. Do waits by
// itself.
func (s *Store) Wait(ctx context.Context, key string) error {
	start := time.Now()
	present, err := s.get(ctx, "wait", key)
	if err == nil {
		present, err = s.await(ctx, "wait", key, present)
	}
	s.observe(ctx, "wait", key, start, nil, &present, err)
	return err
}

// await returns the first record that is not a running attempt's.
func (s *Store) await(ctx context.Context, op, key string, present Record) (Record, error) {
	if present.LeaseLeft() == 0 {
		return present, nil
	}
	if s.opts.NoWait || s.bound {
		return present, s.fail(op, key, present, ErrInProgress)
	}
	after, err := s.awaitShared(ctx, storedKey(s.scope, key), present)
	if err == nil {
		return after, nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", ErrInProgress, contextError(ctx))
	}
	return present, s.fail(op, key, present, err)
}

// waits has what this process waits for: one watcher per key and storage, however
// many wait and through however many Stores. An entry is there as long as
// somebody waits.
var waits = struct {
	sync.Mutex
	byKey map[waitKey]*wait
}{byKey: make(map[waitKey]*wait)}

type waitKey struct {
	owner  any // the Backend; the Store if Backends of that type cannot be compared
	stored string
}

// A wait is the common wait for one running attempt.
type wait struct {
	waiting int
	cancel  context.CancelFunc
	done    chan struct{} // closed when after and err are set
	after   Record
	err     error
}

func (s *Store) awaitShared(ctx context.Context, stored string, present Record) (Record, error) {
	key := waitKey{s.backend, stored}
	if !reflect.ValueOf(s.backend).Comparable() {
		key.owner = s
	}
	waits.Lock()
	w := waits.byKey[key]
	if w == nil {
		w = &wait{done: make(chan struct{})}
		var watching context.Context
		watching, w.cancel = context.WithCancel(context.WithoutCancel(ctx))
		waits.byKey[key] = w
		go func() {
			w.after, w.err = watch(watching, s.backend, stored, present)
			w.cancel()
			waits.Lock()
			key.drop(w)
			waits.Unlock()
			close(w.done)
		}()
	}
	w.waiting++
	waits.Unlock()

	select {
	case <-w.done:
		return w.after.Clone(), w.err
	case <-ctx.Done():
	}
	waits.Lock()
	defer waits.Unlock()
	if w.waiting--; w.waiting == 0 { // whoever comes next begins another
		w.cancel()
		key.drop(w)
	}
	return Record{}, ctx.Err()
}

// drop takes w off the list, unless another wait has taken its place. The caller
// holds the lock.
func (k waitKey) drop(w *wait) {
	if waits.byKey[k] == w {
		delete(waits.byKey, k)
	}
}

// watch returns the first record under the key that is not a running attempt's.
// It gives up if the storage fails for longer than a claim would be repeated.
func watch(ctx context.Context, b Backend, stored string, present Record) (Record, error) {
	watcher, _ := b.(Watcher)
	var failing time.Time
	for delay := firstPoll; present.LeaseLeft() > 0; {
		told := failing.IsZero() && watcher != nil && watchOnce(ctx, watcher, stored, present)
		if !told {
			// A lease that is nearly over is waited for, not polled for.
			pause(ctx, min(delay, present.LeaseLeft()+time.Millisecond))
			delay = min(2*delay, lastPoll)
		}
		if ctx.Err() != nil {
			return Record{}, ctx.Err()
		}
		got, err := b.Get(ctx, stored)
		switch {
		case err == nil:
			if told && got.Token == present.Token {
				watcher = nil // it returned early; ask in intervals from now on
			}
			present, failing = got.normal(), time.Time{}
		case failing.IsZero():
			failing = time.Now()
		case time.Since(failing) > repeatFor:
			return Record{}, classify(err)
		}
	}
	return present, nil
}

// watchOnce waits until the watcher tells of a change, or until the lease is
// over, which nobody tells. It reports whether the storage could be watched.
func watchOnce(ctx context.Context, w Watcher, stored string, present Record) bool {
	ctx, cancel := context.WithTimeout(ctx, present.LeaseLeft()+time.Millisecond)
	defer cancel()
	err := w.Watch(ctx, stored, present.Token)
	return err == nil || errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil
}

// pause waits for about d and reports whether ctx is still alive. Those who
// pause together do not come back together.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(jitter(d))
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// jitter returns a duration from half of d to d.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1)
}
