package idemgrpc_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemgrpc"
)

// attempts calls the client's interceptor with a server that answers with errs, one
// after another, and returns the keys of the attempts and when they came.
func attempts(ctx context.Context, opts *idemgrpc.ClientOptions, errs ...error) (keys []string, at []time.Duration, err error) {
	start := time.Now()
	invoke := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
		md, _ := metadata.FromOutgoingContext(ctx)
		keys = append(keys, strings.Join(md.Get("idempotency-key"), " and "))
		at = append(at, time.Since(start))
		return errs[min(len(keys), len(errs))-1]
	}
	err = idemgrpc.UnaryClientInterceptor(opts)(ctx, charge, nil, nil, nil, invoke)
	return keys, at, err
}

func TestClientRepeatsWhatIsSafe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for code := codes.OK; code <= codes.Unauthenticated; code++ {
			keys, _, err := attempts(t.Context(), nil, status.Error(code, "first"), nil)
			safe := code == codes.Unavailable || code == codes.Aborted || code == codes.ResourceExhausted
			if want := map[bool]int{false: 1, true: 2}[safe]; len(keys) != want || (err == nil) != (safe || code == codes.OK) {
				t.Errorf("%v: %d attempts, %v", code, len(keys), err)
			}
		}
	})
}

// One key for all attempts of a call, and another one for the next.
func TestClientKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := status.Error(codes.Unavailable, "down")
		made, _, err := attempts(t.Context(), nil, down)
		if status.Code(err) != codes.Unavailable || len(made) != 5 || len(slices.Compact(made)) != 1 || len(made[0]) < 20 {
			t.Errorf("%v, %v", made, err)
		}
		other, _, _ := attempts(t.Context(), nil, nil)
		if other[0] == made[0] {
			t.Error("two calls have one key")
		}
		sent := metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", "sent", "x-trace", "1")
		for want, ctx := range map[string]context.Context{
			"sent":  sent,
			"given": idemgrpc.WithKey(sent, "given"),
			"later": idemgrpc.WithKey(idemgrpc.WithKey(t.Context(), "given"), "later"),
		} {
			if keys, _, _ := attempts(ctx, nil, down); len(keys) != 5 || slices.Compact(keys)[0] != want {
				t.Errorf("want the key %s, got %v", want, keys)
			}
		}
		for _, bad := range []string{"", "a b", "ü", strings.Repeat("k", idem.MaxKey+1)} {
			keys, _, err := attempts(idemgrpc.WithKey(t.Context(), bad), nil, nil)
			if status.Code(err) != codes.InvalidArgument || len(keys) > 0 {
				t.Errorf("key %q: %v, sent %v", bad, err, keys)
			}
		}
		keys, _, _ := attempts(t.Context(), &idemgrpc.ClientOptions{Methods: func(m string) bool { return m != charge }}, down)
		if len(keys) != 1 || keys[0] != "" {
			t.Errorf("a method that takes no part: %v", keys)
		}
	})
}

// The server says when to come back, and the client does not come before.
func TestClientWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := status.New(codes.Aborted, "busy").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(3 * time.Second)})
		if err != nil {
			t.Fatal(err)
		}
		_, at, err := attempts(t.Context(), nil, s.Err(), status.Error(codes.Unavailable, "down"), nil)
		if err != nil || len(at) != 3 || at[1] < 3050*time.Millisecond || at[1] > 3100*time.Millisecond || at[2] < at[1]+100*time.Millisecond || at[2] > at[1]+200*time.Millisecond {
			t.Errorf("attempts at %v: %v", at, err)
		}
		down := status.Error(codes.Unavailable, "down")
		if _, at, err = attempts(t.Context(), &idemgrpc.ClientOptions{MaxAttempts: 1000}, down); status.Code(err) != codes.Unavailable || at[len(at)-1] > time.Minute || len(at) < 8 {
			t.Errorf("attempts at %v: %v", at, err)
		}
		if _, at, _ = attempts(t.Context(), &idemgrpc.ClientOptions{MaxAttempts: 2}, down); len(at) != 2 {
			t.Errorf("attempts at %v, want 2", at)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, at, err = attempts(ctx, nil, s.Err()); len(at) != 1 || status.Code(err) != codes.Aborted {
			t.Errorf("a context that ends: attempts at %v: %v", at, err)
		}
	})
}

// A client and a server: whatever gets in the way, one effect and its answer.
func TestClientAndServer(t *testing.T) {
	var effects, writes atomic.Int64
	begun := make(chan struct{})
	met := make(chan struct{}) // the second call has met the first
	var once sync.Once
	b := serve(t, setup{
		client: idemgrpc.UnaryClientInterceptor(nil),
		store: &idem.Options{Observe: func(_ context.Context, e idem.Event) {
			if errors.Is(e.Err, idem.ErrInProgress) {
				once.Do(func() { close(met) })
			}
		}},
		backend: flaky{memory.New(), func(idem.Record) error {
			if writes.Add(1) == 1 {
				return idem.NoEffect(errDown) // the first attempt finds the storage down
			}
			return nil
		}},
	}, func(ctx context.Context, req *wrapperspb.StringValue) (proto.Message, error) {
		if c, _ := idemgrpc.ClaimFrom(ctx); c.Attempt == 1 {
			return nil, status.Error(codes.ResourceExhausted, "not now") // the second one is turned away
		}
		effects.Add(1)
		close(begun)
		<-met
		return echo(ctx, req)
	})
	ctx := idemgrpc.WithKey(t.Context(), "order-1")
	answers := make(chan answer, 2)
	go func() { answers <- b.call(ctx, charge, "", "10") }()
	<-begun
	go func() { answers <- b.call(ctx, charge, "", "10") }() // another process has the same job
	replays := 0
	for range 2 {
		a := <-answers
		if a.err != nil || a.text != "charged 10" {
			t.Errorf("%+v", a)
		}
		if a.replayed {
			replays++
		}
	}
	if effects.Load() != 1 || replays != 1 {
		t.Errorf("%d effects, %d replays", effects.Load(), replays)
	}
}

// A stored answer stays what it is, also where its code is one to repeat.
func TestClientDoesNotRepeatReplays(t *testing.T) {
	var asked atomic.Int64
	b := serve(t, setup{
		client: idemgrpc.UnaryClientInterceptor(nil),
		store: &idem.Options{Observe: func(_ context.Context, e idem.Event) {
			if e.Op == "begin" {
				asked.Add(1)
			}
		}},
		server: &idemgrpc.Options{Ending: func(string, codes.Code) idemgrpc.Ending { return idemgrpc.Record }},
	}, func(context.Context, *wrapperspb.StringValue) (proto.Message, error) {
		return nil, says(codes.Unavailable)
	})
	a := b.charge("k", "10") // the first answer is repeated, and the repetition is a replay
	if a.code() != codes.Unavailable || !a.replayed || asked.Load() != 2 {
		t.Errorf("after %d attempts: %+v", asked.Load(), a)
	}
	b.ran(1)
	if s := status.Convert(a.err); len(s.Details()) != 1 {
		t.Errorf("%v", s.Proto())
	}
}
