package idemgrpc

import (
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idem-go/idem"
)

// Domain is that of the errdetails.ErrorInfo in answers of the interceptor itself.
const Domain = "github.com/idem-go/idem"

// A refusal is an answer of the interceptor itself.
type refusal struct {
	code       codes.Code
	reason     string // for programs; stable
	message    string
	retryAfter time.Duration // 0 = no promise
}

var (
	missingKey = refusal{
		code: codes.InvalidArgument, reason: "MISSING_KEY",
		message: "this operation needs the metadata idempotency-key: make a key for the operation, send it with the call and with every retry of it",
	}
	malformedKey = refusal{
		code: codes.InvalidArgument, reason: "MALFORMED_KEY",
		message: "the metadata idempotency-key is malformed; nothing was done",
	}
	keyReused = refusal{
		code: codes.FailedPrecondition, reason: "KEY_REUSED",
		message: "the idempotency-key was used with another request; nothing was done: use a new key for another operation, and for a retry send the same request",
	}
	inProgress = refusal{
		code: codes.Aborted, reason: "IN_PROGRESS",
		message: "a call with the same idempotency-key is running; call again later, with the same key, to get its answer",
	}
	takenOver = refusal{
		code: codes.Aborted, reason: "TAKEN_OVER",
		message:    "this call took so long that another one with the same idempotency-key has taken over the operation; call again, with the same key, to get the answer",
		retryAfter: time.Second,
	}
	unresolved = refusal{
		code: codes.FailedPrecondition, reason: "UNRESOLVED",
		message: "an earlier call with the same idempotency-key ended without a known outcome, and the operation is not repeated before that has been found out; do not use a new key",
	}
	omittedResponse = refusal{
		code: codes.AlreadyExists, reason: "RESPONSE_OMITTED",
		message: "the operation was done by an earlier call with the same idempotency-key; its response was not kept",
	}
	unavailable = refusal{
		code: codes.Unavailable, reason: "UNAVAILABLE",
		message:    "the record of operations cannot be reached; nothing was done: call again, with the same idempotency-key",
		retryAfter: time.Second,
	}
	notRecorded = refusal{
		code: codes.Unavailable, reason: "NOT_RECORDED",
		message:    "the operation may have been done, but its answer could not be recorded; call again, with the same idempotency-key: a new one could have it done twice",
		retryAfter: time.Second,
	}
	damaged = refusal{
		code: codes.DataLoss, reason: "DAMAGED",
		message: "the record of this operation is damaged; nothing was done, and nothing will be with this idempotency-key until somebody has looked into it",
	}
	noScope = refusal{
		code: codes.Internal, reason: "NO_SCOPE",
		message: "the server does not know whose idempotency-key this is; nothing was done: its operators have to set it up",
	}
	notProto = refusal{
		code: codes.Internal, reason: "NOT_PROTO",
		message: "the request is not a protocol buffer, and cannot be compared with that of a retry; nothing was done",
	}
)

// err returns the refusal as the error of a call.
func (r refusal) err() error {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: r.reason, Domain: Domain}}
	if r.retryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.retryAfter)})
	}
	s, err := status.New(r.code, "idem: "+r.message).WithDetails(details...)
	if err != nil { // details of these types can be encoded
		return status.Error(codes.Internal, err.Error())
	}
	return s.Err()
}

func (r refusal) because(message string) refusal {
	r.message = message
	return r
}

// refusalOf returns what a caller is told when nothing has run, and whether the
// operators are told as well.
func refusalOf(err error) (r refusal, report bool) {
	switch {
	case errors.Is(err, idem.ErrMismatch):
		return keyReused, false
	case errors.Is(err, idem.ErrInProgress):
		r := inProgress
		r.retryAfter = comeBackIn(err)
		return r, false
	case errors.Is(err, idem.ErrUnresolved):
		return unresolved, true
	case errors.Is(err, idem.ErrKey):
		return noScope, true // the key has been checked
	case errors.Is(err, idem.ErrCorrupt), errors.Is(err, idem.ErrStoreLost):
		return damaged, true
	}
	return unavailable, true
}

// comeBackIn returns how long to wait before asking for the answer of a running
// call: as long as it is known to run, and not longer than its lease.
func comeBackIn(err error) time.Duration {
	const least = 100 * time.Millisecond
	e, ok := errors.AsType[*idem.Error](err)
	if !ok {
		return least
	}
	return max(least, min(e.RetryAfter(), e.Record.Age))
}

// ReasonOf returns the reason of an answer that the interceptor of a server gave
// itself, such as "KEY_REUSED", and "" for all other errors.
func ReasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			return info.GetReason()
		}
	}
	return ""
}
