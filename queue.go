package idem

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// An Action is what a consumer tells its broker about a delivery. Every broker
// that delivers at least once has the three, under one name or another.
type Action uint8

const (
	Ack        Action = iota + 1 // done: never deliver it again (ack, delete, commit)
	Retry                        // not done: deliver it again (nak with a delay, requeue, change of visibility)
	DeadLetter                   // no redelivery mends it: put it aside for a person (term, reject without requeue)
)

// String returns "ack", "retry" or "dead-letter".
func (a Action) String() string {
	switch a {
	case Ack:
		return "ack"
	case Retry:
		return "retry"
	case DeadLetter:
		return "dead-letter"
	}
	return fmt.Sprintf("action-%d", uint8(a))
}

// A Settlement is how a consumer settles a delivery with its broker.
type Settlement struct {
	Action Action
	After  time.Duration // with Retry: how long until the next delivery; 0 is at once
}

// The back-off of Settle, before jitter.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// Settle says what a consumer tells its broker about a message, given the error
// of the Do, DoTx, Run, Call or Begin and Complete that handled it. delivery is the
// broker's count of the deliveries of this message, 1 for the first; where the
// broker has none, 1 will do.
//
//	error                    what is true                         settlement
//	nil                      done and recorded, now or before     Ack
//	ErrInProgress            a duplicate is running               Retry after its RetryAfter
//	ErrMismatch              the key is another message's         DeadLetter
//	ErrKey, ErrOptions       the call can never succeed           DeadLetter
//	ErrUnresolved            a person or the janitor decides      Retry after a minute
//	ErrCorrupt, ErrStoreLost the storage is damaged, nothing ran  Retry after a minute
//	ErrNotRecorded           done, and the key is open            Retry with back-off
//	ErrNotRecorded of Call   done, its response is never stored   DeadLetter
//	ErrLost                  somebody else has the claim          Retry with back-off
//	ErrCompleted             done, with another result            Retry with back-off: gets that one
//	ErrUnavailable,          the storage could not do it          Retry with back-off
//	ErrLocked, ErrRetryTx
//	context.Canceled         this consumer is stopping            Retry at once; from the second
//	                                                              delivery on with back-off
//	any other error          the handler failed                   Retry with back-off
//
// Only nil is acknowledged. A duplicate that is running may yet fail, and an
// operation that is not recorded is for its next attempt to judge, as if the
// process had died before the record: its Claim has Takeover, or it waits for a
// decision under Hold.
//
// The back-off begins with a second and doubles with each delivery up to a
// minute; of that and of "a minute", up to half is taken off at random, so that
// messages that failed together do not come back together.
//
// A message is never dead-lettered for having been delivered too often:
// deliveries count those that met a running duplicate as well. To give up on a
// message that fails again and again, have the handler compare Claim.Attempt,
// which counts the attempts that ran, with a limit, and return [NoEffect] of an
// error of its own; see examples/consumer.
//
// A consumer that settles without waiting for others sets Options.NoWait; else
// Do holds the delivery until the running duplicate is done, which is as right.
func Settle(err error, delivery int) Settlement {
	is := func(target error) bool { return errors.Is(err, target) }
	e, _ := errors.AsType[*Error](err)
	switch {
	case err == nil:
		return Settlement{Action: Ack}

	// First what comes together with its cause, whatever that is.
	case is(ErrNotRecorded) && e != nil && e.Op == "call":
		return Settlement{Action: DeadLetter}
	case is(ErrNotRecorded):
		return Settlement{Retry, backOff(delivery)}
	case is(ErrInProgress) && e != nil && e.RetryAfter() > 0:
		return Settlement{Retry, e.RetryAfter()}

	case is(ErrMismatch), is(ErrKey), is(ErrOptions):
		return Settlement{Action: DeadLetter}
	case is(ErrUnresolved), is(ErrCorrupt), is(ErrStoreLost):
		return Settlement{Retry, jitter(lastRetry)}
	case is(context.Canceled) && delivery <= 1:
		return Settlement{Action: Retry}
	}
	return Settlement{Retry, backOff(delivery)}
}

// backOff returns how long to wait after a delivery that failed.
func backOff(delivery int) time.Duration {
	d := firstRetry
	for ; delivery > 1 && d < lastRetry; delivery-- {
		d *= 2
	}
	return jitter(min(d, lastRetry))
}
