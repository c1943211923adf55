package idemgrpc

import "google.golang.org/grpc/codes"

// An Ending is what becomes of an operation that a handler has answered.
type Ending uint8

const (
	// Record keeps the answer: every retry gets it.
	Record Ending = iota + 1

	// Omit records that the operation is done, without the message: a retry gets
	// AlreadyExists with the reason RESPONSE_OMITTED. It is for answers with a
	// secret in them. An error is recorded as with Record.
	Omit

	// Release says that nothing happened: the key is free at once, and the next
	// call with it runs.
	Release

	// Abandon says that the outcome is unknown: the next call with the key runs as
	// a takeover, or is refused under [idem.Hold] until somebody has decided.
	Abandon
)

// DefaultEnding returns what becomes of an operation by the code of its answer;
// the documentation of the package has the table.
func DefaultEnding(code codes.Code) Ending {
	switch code {
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists,
		codes.PermissionDenied, codes.FailedPrecondition, codes.OutOfRange:
		return Record
	case codes.Unauthenticated, codes.Unavailable, codes.ResourceExhausted, codes.Aborted, codes.Unimplemented:
		return Release
	}
	return Abandon
}
