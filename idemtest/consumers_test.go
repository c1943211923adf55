package idemtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/idem-go/idem"
)

// consumers are handlers of messages that are wrong: OP-1 is what they tell the
// broker, PE-16 when they take a message for seen.
var consumers = []mistake{
	{
		name:     "PE-16 marked as seen before the work",
		caughtBy: "EffectFails",
		says:     []string{"A failed message is marked as seen", "The message is marked as seen before the work", "the effect has never happened"},
		passes:   "Twice OtherKey",
		program: func(_ testing.TB, e *Env) send {
			seen := newTable()
			return func(ctx context.Context, r Request) (string, error) {
				if !seen.insert(r.Key, "") {
					return "", nil
				}
				return "", e.Effect(ctx, nil)
			}
		},
	},
	{
		name:     "PE-16 seen while it is worked on",
		caughtBy: "WhileRunning",
		says:     []string{`"Being worked on" is taken for "done"`, "The message is marked as seen before the work"},
		program: func(_ testing.TB, e *Env) send {
			seen := newTable()
			return func(ctx context.Context, r Request) (string, error) {
				if !seen.insert(r.Key, "") {
					return "", nil
				}
				return "", e.Effect(ctx, nil)
			}
		},
	},
	{
		name:     "PE-16 a failed message is seen",
		caughtBy: "EffectFails",
		says:     []string{"A failed message is marked as seen", "although the effect has never happened"},
		passes:   "Twice OtherKey WhileRunning",
		program: func(_ testing.TB, e *Env) send {
			var mu sync.Mutex
			seen := newTable()
			return func(ctx context.Context, r Request) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				if _, ok := seen.get(r.Key); ok {
					return "", nil
				}
				defer seen.put(r.Key, "") // whatever comes
				return "", e.Effect(ctx, nil)
			}
		},
	},
	{
		name:     "an error is logged and acknowledged",
		caughtBy: "EffectFails",
		says:     []string{"The error is swallowed", "the same as when it happens"},
		program: func(_ testing.TB, e *Env) send {
			return consumer(e, func(r Request) string { return r.Key }, func(error) error { return nil })
		},
	},
	{
		name:     "a failure is answered and not stored",
		caughtBy: "EffectFails",
		says:     []string{"The answer is made anew", "Neither had an effect", "attempt 1`", "attempt 2`"},
		program: func(_ testing.TB, e *Env) send {
			attempts := 0
			return func(context.Context, Request) (string, error) {
				if attempts++; attempts == 1 {
					_ = e.Effect(context.Background(), nil)
				}
				return fmt.Sprint("failed at attempt ", attempts), nil
			}
		},
	},
	{
		name:     "OP-1 in progress is acknowledged",
		caughtBy: "WhileRunning",
		says:     []string{`"Being worked on" is taken for "done"`, "had had no effect yet"},
		passes:   "Twice AtOnce StoreDown EffectFails",
		program:  told(idem.ErrInProgress, nil),
	},
	{
		name:     "OP-1 in progress is dead-lettered",
		caughtBy: "WhileRunning",
		says:     []string{`"Already processed" as an error`, "refused for good", "gives up"},
		program:  told(idem.ErrInProgress, ErrConflict),
	},
	{
		name:     "OP-1 a mismatch goes round for ever",
		caughtBy: "OtherPayload",
		says:     []string{"A conflict is not told from a failure", "sent again, for ever", "dead letters"},
		passes:   "Twice WhileRunning",
		program:  told(idem.ErrMismatch, errors.New("try again")),
	},
	{
		name:     "OP-1 a mismatch is acknowledged",
		caughtBy: "OtherPayload",
		says:     []string{"The fingerprint leaves out", "as if it had been carried out"},
		program:  told(idem.ErrMismatch, nil),
	},
	{
		name:     "OP-1 a failing store is acknowledged",
		caughtBy: "StoreDown",
		says:     []string{"The error is swallowed", "nothing was done"},
		passes:   "Twice WhileRunning",
		program:  told(idem.ErrUnavailable, nil),
	},
	{
		name:     "OP-1 a failing store is dead-lettered",
		caughtBy: "StoreDown",
		says:     []string{"A failure of the storage is taken for a mistake of the caller", "refused for good"},
		program:  told(idem.ErrUnavailable, ErrConflict),
	},
	{
		name:     "OP-1 a replay is delivered for ever",
		caughtBy: "Twice ReplyLost",
		says:     []string{`"Already processed" as an error`, "never gets its answer"},
		program: func(t testing.TB, e *Env) send {
			store := open(t, e, &idem.Options{NoWait: true})
			return func(ctx context.Context, r Request) (string, error) {
				out, err := store.Scoped(r.Tenant).Do(ctx, r.Key, idem.FingerprintOf(r.Payload), once(e))
				if out.Replayed {
					return "", errors.New("duplicate")
				}
				return "", err
			}
		},
	},
	{
		name:     "failing open",
		caughtBy: "StoreDown",
		says:     []string{"Failing open", "the effect happened all the same"},
		passes:   "Twice AtOnce WhileRunning",
		program: func(t testing.TB, e *Env) send {
			store := open(t, e, nil)
			return func(ctx context.Context, r Request) (string, error) {
				_, err := store.Do(ctx, r.Key, idem.FingerprintOf(r.Payload), once(e))
				if errors.Is(err, idem.ErrUnavailable) {
					return "", e.Effect(ctx, nil) // better twice than never
				}
				return "", err
			}
		},
	},
	{
		name:     "a lock without an end",
		caughtBy: "EffectFails",
		says:     []string{"The program keeps the operation until somebody decides", "cannot be repeated"},
		passes:   "Twice",
		program: func(_ testing.TB, e *Env) send {
			locked, done := newTable(), newTable()
			return func(ctx context.Context, r Request) (string, error) {
				if answer, ok := done.get(r.Key); ok {
					return answer, nil
				}
				if !locked.insert(r.Key, "") {
					return "", errors.New("locked")
				}
				if err := e.Effect(ctx, nil); err != nil {
					return "", err
				}
				done.put(r.Key, "")
				return "", nil
			}
		},
	},
	{
		name:     "freed on every error",
		caughtBy: "StoreFails",
		says:     []string{"A storage error ends the attempt half-way", "The key is freed on every error"},
		passes:   "Twice WhileRunning EffectFails",
		program: func(t testing.TB, e *Env) send {
			store := open(t, e, nil)
			return func(ctx context.Context, r Request) (string, error) {
				claim, done, err := store.Begin(ctx, r.Key, idem.FingerprintOf(r.Payload))
				if err != nil || done != nil {
					return "", err
				}
				defer store.Release(ctx, claim)
				if err := e.Effect(ctx, nil); err != nil {
					return "", err
				}
				return "", store.Complete(ctx, claim, idem.Result{})
			}
		},
	},
}

// told is a consumer that is right but for what it makes of one error.
func told(of, becomes error) func(testing.TB, *Env) send {
	return func(t testing.TB, e *Env) send {
		store := open(t, e, &idem.Options{NoWait: true})
		return func(ctx context.Context, r Request) (string, error) {
			_, err := store.Scoped(r.Tenant).Do(ctx, r.Key, idem.FingerprintOf(r.Payload), once(e))
			if errors.Is(err, of) {
				err = becomes
			}
			return "", err
		}
	}
}

// consumer handles messages that it tells apart by id. It is right otherwise, for
// one process: who is worked on is waited for.
func consumer(e *Env, id func(Request) string, tell func(error) error) send {
	var mu sync.Mutex
	done := newTable()
	return func(ctx context.Context, r Request) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if _, ok := done.get(id(r)); ok {
			return "", nil
		}
		err := tell(e.Effect(ctx, nil))
		if err == nil {
			done.put(id(r), "")
		}
		return "", err
	}
}

func asItIs(err error) error { return err }
