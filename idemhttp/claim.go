package idemhttp

import (
	"context"

	"github.com/idem-go/idem"
)

// A running operation is what the context of its handler carries.
type running struct {
	store *idem.Store // in the scope of the request
	claim *idem.Claim

	completed *idem.Result // what the handler has completed the claim with
}

type runningKey struct{}

func runningFrom(ctx context.Context) *running {
	run, _ := ctx.Value(runningKey{}).(*running)
	return run
}

// ClaimFrom returns the claim under which a handler runs: for its Fence, for a
// ChildKey to send on, and for Takeover, which tells that an earlier attempt may
// have had its effect. It is false where there is none: the request has no key,
// or passes no [Middleware].
func ClaimFrom(ctx context.Context) (*idem.Claim, bool) {
	run := runningFrom(ctx)
	if run == nil {
		return nil, false
	}
	return run.claim, true
}

// Complete records a handler's answer in the handler's own transaction, so that
// change and answer commit together. The backend is one that is bound to the
// transaction, by its WithTx:
//
//	err := db.Update(func(tx *bbolt.Tx) error {
//		if err := charge(tx, order); err != nil {
//			return err
//		}
//		answer = idemhttp.NewResult(http.StatusCreated, header, body)
//		return idemhttp.Complete(r.Context(), backend.WithTx(tx), answer)
//	})
//	...
//	idemhttp.WriteResult(w, answer) // after the commit
//
// An error means that the transaction has to be rolled back: [idem.ErrLost] that
// another attempt has the key. If the commit fails, answer with 503 where it is
// certain that nothing was applied, and with 500 where it is not; the next
// attempt finds out.
//
// What is recorded is what every client gets, the first one too, whatever the
// handler writes after that with a status that is recorded. Without a claim in
// the context, Complete does nothing: a request without a key is not recorded.
func Complete(ctx context.Context, tx idem.Backend, r idem.Result) error {
	run := runningFrom(ctx)
	if run == nil {
		return nil
	}
	if err := run.store.With(tx).Complete(ctx, run.claim, r); err != nil {
		return err
	}
	run.completed = &r
	return nil
}
