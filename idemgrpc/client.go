package idemgrpc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idem-go/idem"
)

// ClientOptions configure a UnaryClientInterceptor. Nil ClientOptions and zero
// fields stand for the defaults.
type ClientOptions struct {
	// Methods reports whether calls of a method, such as "/shop.Payments/Charge",
	// get a key and are repeated; all unary ones by default. The others are passed
	// on as they are.
	Methods func(fullMethod string) bool

	// MaxAttempts is how often a call is sent, the first one included; 5 by
	// default. 1 means that nothing is repeated.
	MaxAttempts int

	// MaxTime is how long after its first attempt a call is sent again at the
	// latest; 1 min by default. An attempt that is under way is not cut off: the
	// context does that.
	MaxTime time.Duration
}

type keyContext struct{}

// WithKey returns a context for the calls of one operation, which are sent with
// key. A second operation needs a second key.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyContext{}, key)
}

const (
	firstDelay = 100 * time.Millisecond
	lastDelay  = 10 * time.Second
)

// UnaryClientInterceptor returns an interceptor that sends calls with an
// idempotency-key and repeats them, always with the same key, until there is a
// definite answer. It is for servers that honour the key: with others, a
// repetition is a second operation.
//
// The key is, in this order, that of the context (see [WithKey]), the one in the
// outgoing metadata, or a new one for this call. A new one protects the
// repetitions of the interceptor only. A program that may itself retry, or be
// restarted, makes the key before its first attempt, keeps it with what it is about
// to do, and gives it to every attempt with WithKey.
//
// Repeated are the codes Unavailable, Aborted and ResourceExhausted, unless the
// answer is a stored one (idempotent-replayed). All others are not, because the
// server has judged. Between two attempts the interceptor waits at least as long as
// RetryInfo asks for, and in addition about 100 ms, doubling up to 10 s. When
// attempts or time are used up, the caller gets the last error: it may call again
// later, with the same key.
//
// It panics if the options are out of range, as that is a mistake in the program.
func UnaryClientInterceptor(opts *ClientOptions) grpc.UnaryClientInterceptor {
	var o ClientOptions
	if opts != nil {
		o = *opts
	}
	if o.MaxAttempts < 0 || o.MaxTime < 0 {
		panic(fmt.Sprintf("idemgrpc: MaxAttempts %d or MaxTime %v is negative", o.MaxAttempts, o.MaxTime))
	}
	if o.Methods == nil {
		o.Methods = func(string) bool { return true }
	}
	if o.MaxAttempts == 0 {
		o.MaxAttempts = 5
	}
	if o.MaxTime == 0 {
		o.MaxTime = time.Minute
	}
	return o.intercept
}

func (o ClientOptions) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if !o.Methods(method) {
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	ctx, err := withKeySent(ctx)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "idemgrpc: the call was not sent: the key: %v", err)
	}
	last := time.Now().Add(o.MaxTime)
	for attempt, delay := 1, firstDelay; ; attempt, delay = attempt+1, min(2*delay, lastDelay) {
		var header metadata.MD
		err := invoker(ctx, method, req, reply, cc, append(slices.Clone(opts), grpc.Header(&header))...)
		again, wait := mayRepeat(err, header, delay)
		if !again || attempt >= o.MaxAttempts || time.Now().Add(wait).After(last) || !sleep(ctx, wait) {
			return err
		}
	}
}

// withKeySent returns ctx with one key in its outgoing metadata.
func withKeySent(ctx context.Context) (context.Context, error) {
	md, _ := metadata.FromOutgoingContext(ctx)
	key, ok := ctx.Value(keyContext{}).(string)
	var err error
	if ok {
		err = checkKey(key)
	} else if key, err = keyIn(md); errors.Is(err, errNoKey) {
		key, err = idem.NewKey(), nil
	}
	if err != nil {
		return nil, err
	}
	md = md.Copy()
	md.Set(KeyMetadata, key)
	return metadata.NewOutgoingContext(ctx, md), nil
}

// mayRepeat reports whether a call that ended like this may be repeated, and after
// how long: what the server asks for and a part of delay, so that those who were
// turned away together do not come back together.
func mayRepeat(err error, header metadata.MD, delay time.Duration) (again bool, wait time.Duration) {
	if len(header.Get(ReplayedHeader)) > 0 {
		return false, 0 // a stored answer stays what it is
	}
	s := status.Convert(err)
	switch s.Code() {
	case codes.Unavailable, codes.Aborted, codes.ResourceExhausted:
	default:
		return false, 0
	}
	wait = delay/2 + rand.N(delay/2+1)
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			wait += max(0, info.GetRetryDelay().AsDuration())
		}
	}
	return true, wait
}

// sleep waits and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
