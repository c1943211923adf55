package idemgrpc

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idem-go/idem"
)

// A running operation is what the context of its handler carries.
type running struct {
	store *idem.Store // in the scope of the call
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
// have had its effect. It is false where there is none: the call has no key, or
// passes no interceptor.
func ClaimFrom(ctx context.Context) (*idem.Claim, bool) {
	run := runningFrom(ctx)
	if run == nil {
		return nil, false
	}
	return run.claim, true
}

// Complete records a handler's response in the handler's own transaction, so that
// change and response commit together. The backend is one that is bound to the
// transaction, by its WithTx:
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if err := charge(ctx, tx, req); err != nil {
//			return err
//		}
//		return idemgrpc.Complete(ctx, backend.WithTx(tx), resp)
//	})
//
// An error means that the transaction has to be rolled back: [idem.ErrLost] that
// another attempt has the key. If the commit fails, return Unavailable where it is
// certain that nothing was applied, and Internal where it is not; the next attempt
// finds out.
//
// What is recorded is what every client gets, the first one too, if the handler
// then returns without an error. Without a claim in the context, Complete does
// nothing: a call without a key is not recorded.
func Complete(ctx context.Context, tx idem.Backend, resp proto.Message) error {
	run := runningFrom(ctx)
	if run == nil {
		return nil
	}
	r, err := resultOf(resp, status.New(codes.OK, ""))
	if err != nil {
		return err
	}
	if err := run.store.With(tx).Complete(ctx, run.claim, r); err != nil {
		return err
	}
	run.completed = &r
	return nil
}
