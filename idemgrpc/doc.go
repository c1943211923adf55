// Package idemgrpc makes retries of unary gRPC calls safe: an interceptor for
// servers and one for clients, on top of package idem. It is a module of its own,
// so that programs without gRPC do not depend on it.
//
// The client names the operation in the metadata idempotency-key. The first call
// with the key runs the handler, its answer is stored, and every later call with
// the key gets that answer, with the header idempotent-replayed: true.
//
//	grpc.NewServer(grpc.ChainUnaryInterceptor(
//		authenticate, // and whatever else is about this one call
//		idemgrpc.UnaryServerInterceptor(store, &idemgrpc.Options{
//			Scope:    tenantOf, // of the context
//			Methods:  func(method string) bool { return method == "/shop.Payments/Charge" },
//			Required: true,
//		}),
//	))
//
// Streaming calls are not covered.
//
// # What a client is told
//
// Answers of the interceptor itself have an errdetails.ErrorInfo with the domain
// [Domain] and one of these reasons, and an errdetails.RetryInfo where it says so.
// ReasonOf finds the reason.
//
//	                                          code                reason            RetryInfo
//	first call                                the handler's
//	retry of a completed one                  the handler's, replayed
//	no key, where Options.Required            InvalidArgument     MISSING_KEY
//	key malformed, too long, more than one    InvalidArgument     MALFORMED_KEY
//	key used with another method or request   FailedPrecondition  KEY_REUSED
//	first call is still running               Aborted             IN_PROGRESS       0.1 s to the lease
//	taken over by another call                Aborted             TAKEN_OVER        1 s
//	outcome unknown, under idem.Hold          FailedPrecondition  UNRESOLVED
//	done, its response was not kept           AlreadyExists       RESPONSE_OMITTED
//	storage failed; nothing ran               Unavailable         UNAVAILABLE       1 s
//	done, but could not be recorded           Unavailable         NOT_RECORDED      1 s
//	stored record is damaged; nothing ran     DataLoss            DAMAGED
//	credentials, but no Scope; nothing ran    Internal            NO_SCOPE
//	request is no protocol buffer             Internal            NOT_PROTO
//
// Aborted and Unavailable mean: the same call again, with the same key.
// FailedPrecondition means that it will not help. With the storage down nothing
// runs; there is no option to run unprotected.
//
// # What becomes of an operation
//
// The code of the handler's answer decides, unless Options.Ending does:
//
//	OK, InvalidArgument, NotFound, AlreadyExists,
//	PermissionDenied, FailedPrecondition, OutOfRange  Record   a definite answer: every retry gets it
//	Unauthenticated                                   Release  the client comes back with credentials
//	Unavailable, ResourceExhausted, Aborted,
//	Unimplemented                                     Release  nothing was done: a retry runs
//	Unknown, Internal, DataLoss, DeadlineExceeded,
//	Canceled, any other; a panic                      Abandon  unknown: a retry runs as a takeover, or
//	                                                           is refused under idem.Hold
//
// An error that the handler returns without a status counts as Unknown, as Canceled
// or as DeadlineExceeded, as it does for gRPC. One that is marked by [idem.NoEffect]
// releases the key, whatever its code. A handler must not return Unavailable,
// ResourceExhausted or Aborted after an effect: not for a call of its own to
// another system that was cut off either.
//
// An answer leaves only after it has been recorded. A client that hangs up loses
// nothing: the answer is recorded all the same. The handler's context is the
// call's, which is cancelled then; a handler that gives up because of that leaves
// the outcome unknown. Work that should go on without the client runs under
// [context.WithoutCancel].
//
// # What a replay has
//
// A replay has the message or the status that was recorded, with its details, and of
// the headers and trailers those that Options.Metadata names. The message is the
// same byte for byte, except that the order of map entries is not defined on the
// wire. Responses are stored as they are, in clear.
//
// A response larger than MaxResult of the store is not kept. The operation is done,
// and its retries get AlreadyExists with the reason RESPONSE_OMITTED.
//
// # The client
//
// [UnaryClientInterceptor] sends a key with each call and repeats it, always with
// that key, where that is safe.
package idemgrpc
