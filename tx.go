package idem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// maxTxRuns bounds how often a transaction is run again after conflicts. Each
// conflict is another transaction's progress; a transaction that loses so often
// has another fault.
const maxTxRuns = 100

// A TxBody is what runs in the transaction of DoTx: the claim, fn and the
// completion. b is bound to the transaction.
type TxBody func(ctx context.Context, b Backend, fn func(context.Context, *Claim) (Result, error)) error

// DoTx is Do for an operation whose claim, change and result commit in one
// transaction. It is what the Do methods of transactional backends consist of;
// programs call those.
//
// transact begins a transaction, calls body once, commits if that returned nil
// and rolls back if not. It returns body's error as it is, or that of the
// commit. An error that is [ErrRetryTx] has the transaction run again, with
// back-off; transact gives this class to the conflicts that its driver reports,
// also where fn returned them.
//
//   - If the operation is completed, DoTx returns the stored result.
//   - If another attempt is running, DoTx waits for it outside of the
//     transaction, or returns ErrInProgress with Options.NoWait.
//   - An error of fn rolls everything back: no trace is left, no attempt is
//     counted, and DoTx returns the error as it is. A refusal that duplicates
//     should see is a Result.
//   - If the outcome of the commit is unknown, DoTx asks the storage: either it
//     has this attempt's completion, or nothing has happened and the
//     transaction is run again. A commit error marked by [NoEffect] surely was
//     not applied.
func (s *Store) DoTx(ctx context.Context, key string, fp Fingerprint, transact func(ctx context.Context, body TxBody) error) (Outcome, error) {
	start := time.Now()
	out, err := s.doTx(ctx, key, fp, transact)
	s.observeDo(ctx, "do", key, start, out, err)
	return out, err
}

func (s *Store) doTx(ctx context.Context, key string, fp Fingerprint, transact func(ctx context.Context, body TxBody) error) (Outcome, error) {
	var ours []string // the attempts of this call whose commit may have been applied
	delay := firstPoll
	for run := 1; ; run++ {
		r := &txRun{store: s, key: key, fp: fp}
		err := transact(ctx, r.body)
		switch {
		case err == nil:
			// What it finds completed may be an earlier commit of this very call.
			r.out.Replayed = r.out.Replayed && !slices.Contains(ours, r.doneBy)
			return r.out, nil
		case errors.Is(err, ErrRetryTx) && run < maxTxRuns:
			if !pause(ctx, delay) {
				return Outcome{}, s.fail("do", key, Record{}, fmt.Errorf("%w: %w", err, contextError(ctx)))
			}
			delay = min(2*delay, 500*time.Millisecond)
		case r.busy != nil:
			after, err := s.await(ctx, "do", key, r.busy.Record)
			if err != nil {
				return Outcome{}, err
			}
			// As in do: what ended the wait answers all who waited, without a
			// transaction for each of them.
			if done, _ := s.judge(after, fp); done {
				r.found(&after)
				r.out.Replayed = !slices.Contains(ours, r.doneBy)
				return r.out, nil
			}
		case r.fnErr != nil && !errors.Is(err, ErrRetryTx):
			return Outcome{}, r.fnErr
		case r.completed && ambiguous(err) && run < maxTxRuns:
			ours = append(ours, r.claim.id)
			applied, askErr := s.applied(ctx, key, r.claim.id)
			if askErr != nil {
				return Outcome{}, s.fail("do", key, Record{}, fmt.Errorf("%w; whether it was applied could not be found out: %w", classify(err), askErr))
			}
			if applied {
				return r.out, nil
			}
			if ctx.Err() != nil {
				return Outcome{}, s.fail("do", key, Record{}, fmt.Errorf("%w; whether it was applied is not known yet, and running it again is safe: %w", classify(err), contextError(ctx)))
			}
		default:
			if e, ok := errors.AsType[*Error](err); ok {
				return Outcome{}, e
			}
			return Outcome{}, s.fail("do", key, Record{}, classify(err))
		}
	}
}

// A txRun is one run of the transaction.
type txRun struct {
	store *Store
	key   string
	fp    Fingerprint

	claim     *Claim
	busy      *Error // another attempt is in the way
	fnErr     error
	completed bool // the claim is completed in the transaction
	out       Outcome
	doneBy    string // the attempt whose result is replayed
}

func (r *txRun) body(ctx context.Context, b Backend, fn func(context.Context, *Claim) (Result, error)) error {
	if fn == nil {
		return r.store.fail("do", r.key, Record{}, errNoFunction)
	}
	bound := r.store.With(b)
	claim, done, err := bound.Begin(ctx, r.key, r.fp)
	if err != nil {
		if refused, ok := err.(*Error); ok && refused.Err == ErrInProgress {
			r.busy = refused
		}
		return err
	}
	if done != nil {
		r.found(done)
		return nil
	}
	r.claim = claim
	r.out.Attempt = claim.Attempt
	if r.out.Result, err = fn(ctx, claim); err != nil {
		r.fnErr = err
		if hasNoEffect(err) {
			r.fnErr = unmark(err)
		}
		return err
	}
	err = bound.Complete(ctx, claim, r.out.Result)
	r.completed = err == nil
	return err
}

// found notes the completed record that answers the call.
func (r *txRun) found(done *Record) {
	r.out = Outcome{Result: done.Result, Replayed: true, Attempt: done.Attempt}
	r.doneBy = done.attemptID()
}

// applied asks the storage whether the attempt is completed. A commit can still be
// under way when it is asked: a caller who is there finds out by running the
// transaction again, and for one who is gone it is asked for a while.
func (s *Store) applied(ctx context.Context, key, attemptID string) (bool, error) {
	asking := context.WithoutCancel(ctx) // the answer is worth more than the wait
	giveUp := time.Now().Add(repeatFor)
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, 500*time.Millisecond) {
		try, cancel := context.WithDeadline(asking, giveUp)
		r, err := s.get(try, "do", key)
		cancel()
		late := time.Now().Add(delay).After(giveUp)
		switch {
		case err == nil && r.Status == Completed && r.attemptID() == attemptID:
			return true, nil
		case err == nil && (ctx.Err() == nil || late):
			return false, nil
		case err != nil && (!errors.Is(err, ErrUnavailable) || late):
			return false, err
		}
		pause(asking, delay)
	}
}
