package idemgrpc_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemgrpc"
)

func TestFirstCallAndReplay(t *testing.T) {
	b := serve(t, setup{}, echo)
	first, second := b.charge("k", "10"), b.charge("k", "10")
	if first.err != nil || first.text != "charged 10" || first.replayed {
		t.Errorf("the first call: %+v", first)
	}
	if second.err != nil || second.text != "charged 10" || !second.replayed {
		t.Errorf("its retry: %+v", second)
	}
	b.ran(1)
	if other := b.charge("k2", "10"); other.err != nil || other.replayed {
		t.Errorf("another key: %+v", other)
	}
	b.ran(2)
}

// PE-15 and the rest of what makes a request what it is: the method and the message.
func TestKeyReused(t *testing.T) {
	b := serve(t, setup{}, echo)
	b.charge("k", `{"id":120}`)
	for name, a := range map[string]answer{
		"another message": b.charge("k", `{"id":201}`),
		"another method":  b.call(t.Context(), refund, "k", `{"id":120}`),
	} {
		if a.code() != codes.FailedPrecondition || a.reason() != "KEY_REUSED" || a.text != "" || a.replayed {
			t.Errorf("%s: %+v", name, a)
		}
	}
	b.ran(1)
}

func TestKeys(t *testing.T) {
	b := serve(t, setup{server: &idemgrpc.Options{Required: true}}, echo)
	if a := b.charge("", "10"); a.code() != codes.InvalidArgument || a.reason() != "MISSING_KEY" {
		t.Errorf("no key: %+v", a)
	}
	long := strings.Repeat("k", idem.MaxKey)
	for name, md := range map[string][]string{
		"empty":    {"idempotency-key", ""},
		"too long": {"idempotency-key", long + "k"},
		"a space":  {"idempotency-key", "a b"},
		"two":      {"idempotency-key", "a", "idempotency-key", "a"},
	} {
		if a := b.charge("", "10", md...); a.code() != codes.InvalidArgument || a.reason() != "MALFORMED_KEY" {
			t.Errorf("%s: %+v", name, a)
		}
	}
	b.ran(0)
	for _, key := range []string{"k", long, `"quoted"`, "~!,;"} {
		if a := b.charge(key, "10"); a.err != nil {
			t.Errorf("key %q: %v", key, a.err)
		}
	}
	optional := serve(t, setup{}, echo)
	for range 2 {
		if a := optional.charge("", "10"); a.err != nil || a.replayed {
			t.Errorf("no key where none is required: %+v", a)
		}
	}
	optional.ran(2)
}

func TestMethods(t *testing.T) {
	b := serve(t, setup{server: &idemgrpc.Options{Required: true, Methods: func(m string) bool { return m == charge }}}, echo)
	for range 2 {
		if a := b.call(t.Context(), refund, "k", "10"); a.err != nil || a.replayed {
			t.Errorf("a method that does not take part: %+v", a)
		}
	}
	b.ran(2)
	if a := b.charge("", "10"); a.reason() != "MISSING_KEY" {
		t.Errorf("one that does: %+v", a)
	}
}

// A duplicate of a running call is told when to come back, or waits for its answer.
func TestInProgress(t *testing.T) {
	for name, wait := range map[string]time.Duration{"told": 0, "waits": time.Minute} {
		t.Run(name, func(t *testing.T) {
			begun, finish := make(chan struct{}), make(chan struct{})
			b := serve(t, setup{server: &idemgrpc.Options{Wait: wait}}, func(ctx context.Context, req *wrapperspb.StringValue) (proto.Message, error) {
				close(begun)
				<-finish
				return echo(ctx, req)
			})
			first := make(chan answer, 1)
			go func() { first <- b.charge("k", "10") }()
			<-begun
			duplicate := make(chan answer, 1)
			go func() { duplicate <- b.charge("k", "10") }()
			if wait == 0 {
				a := <-duplicate
				if a.code() != codes.Aborted || a.reason() != "IN_PROGRESS" || a.retryAfter() < 100*time.Millisecond || a.retryAfter() > 30*time.Second {
					t.Errorf("the duplicate: %+v, come back after %v", a, a.retryAfter())
				}
				duplicate <- a
			}
			if a := b.charge("k", "other"); a.reason() != "KEY_REUSED" {
				t.Errorf("another message while the first runs: %+v", a)
			}
			close(finish)
			if a := <-first; a.err != nil || a.replayed {
				t.Errorf("the first: %+v", a)
			}
			if a := <-duplicate; wait > 0 && (a.err != nil || !a.replayed || a.text != "charged 10") {
				t.Errorf("the duplicate that waited: %+v", a)
			}
			b.ran(1)
		})
	}
}

// Callers with credentials do not share keys unless that is asked for.
func TestScope(t *testing.T) {
	tenant := func(ctx context.Context) string {
		md, _ := metadata.FromIncomingContext(ctx)
		return strings.Join(md.Get("authorization"), "")
	}
	b := serve(t, setup{server: &idemgrpc.Options{Scope: tenant}}, echo)
	for _, who := range []string{"alice", "bob"} {
		if a := b.charge("k", "from "+who, "authorization", who); a.err != nil || a.replayed || a.text != "charged from "+who {
			t.Errorf("%s: %+v", who, a)
		}
	}
	if a := b.charge("k", "from alice", "authorization", "alice"); !a.replayed {
		t.Errorf("alice again: %+v", a)
	}
	b.ran(2)
	if a := b.charge("k", "from nobody"); a.code() != codes.Internal || a.reason() != "NO_SCOPE" {
		t.Errorf("an empty scope: %+v", a)
	}
	for _, credential := range []string{"authorization", "cookie", "x-api-key"} {
		b := serve(t, setup{}, echo)
		if a := b.charge("k", "10", credential, "secret"); a.code() != codes.Internal || a.reason() != "NO_SCOPE" {
			t.Errorf("%s: %+v", credential, a)
		}
		if !strings.Contains(b.log.String(), "neither Scope nor SharedKeys") || strings.Contains(b.log.String(), "secret") {
			t.Errorf("the log says: %s", b.log.String())
		}
		if a := b.charge("", "10", credential, "secret"); a.err != nil {
			t.Errorf("%s without a key: %+v", credential, a)
		}
		b.ran(1)
	}
	shared := serve(t, setup{server: &idemgrpc.Options{SharedKeys: true}}, echo)
	if a := shared.charge("k", "10", "authorization", "alice"); a.err != nil {
		t.Errorf("shared keys: %v", a.err)
	}
}

// A client certificate is a credential too.
func TestScopeOfCertificates(t *testing.T) {
	store, err := idem.New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	intercept := idemgrpc.UnaryServerInterceptor(store, &idemgrpc.Options{Log: discard})
	for certificates, want := range map[int]string{0: "", 1: "NO_SCOPE"} {
		info := credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: make([]*x509.Certificate, certificates)}}
		ctx := peer.NewContext(metadata.NewIncomingContext(t.Context(), metadata.Pairs("idempotency-key", "k")), &peer.Peer{AuthInfo: info})
		_, err := intercept(ctx, wrapperspb.String("10"), &grpc.UnaryServerInfo{FullMethod: charge}, func(context.Context, any) (any, error) {
			return wrapperspb.String("charged"), nil
		})
		if got := idemgrpc.ReasonOf(err); got != want {
			t.Errorf("%d certificates: %v", certificates, err)
		}
	}
}

// With the storage down or damaged nothing runs.
func TestStorageFails(t *testing.T) {
	for failure, want := range map[error]answer{
		idem.NoEffect(errDown): {err: says(codes.Unavailable), text: "UNAVAILABLE"},
		idem.ErrCorrupt:        {err: says(codes.DataLoss), text: "DAMAGED"},
		idem.ErrStoreLost:      {err: says(codes.DataLoss), text: "DAMAGED"},
	} {
		b := serve(t, setup{backend: flaky{memory.New(), func(idem.Record) error { return failure }}}, echo)
		a := b.charge("k", "10")
		if a.code() != want.code() || a.reason() != want.text || (a.retryAfter() > 0) != (want.text == "UNAVAILABLE") {
			t.Errorf("%v: %+v", failure, a)
		}
		if !strings.Contains(b.log.String(), failure.Error()) || strings.Contains(a.err.Error(), failure.Error()) {
			t.Errorf("the client is told %v, the log %s", a.err, b.log.String())
		}
		b.ran(0)
	}
}

// An answer that could not be recorded is not given: a retry would not get it.
func TestNotRecorded(t *testing.T) {
	down := true
	b := serve(t, setup{
		store: &idem.Options{Lease: 50 * time.Millisecond},
		backend: flaky{memory.New(), func(r idem.Record) error {
			if down && r.Status == idem.Completed {
				return idem.NoEffect(errDown)
			}
			return nil
		}},
	}, func(ctx context.Context, _ *wrapperspb.StringValue) (proto.Message, error) {
		c, _ := idemgrpc.ClaimFrom(ctx)
		return wrapperspb.String(map[bool]string{false: "done", true: "done once more"}[c.Takeover]), nil
	})
	if a := b.charge("k", "10"); a.code() != codes.Unavailable || a.reason() != "NOT_RECORDED" || a.retryAfter() == 0 {
		t.Errorf("%+v", a)
	}
	down = false
	if a := b.charge("k", "10"); a.err != nil || a.text != "done once more" {
		t.Errorf("the retry: %+v", a)
	}
}

// Who has lost the claim gives no answer of his own.
func TestTakenOver(t *testing.T) {
	backend := memory.New()
	b := serve(t, setup{backend: backend}, func(ctx context.Context, _ *wrapperspb.StringValue) (proto.Message, error) {
		mine, err := backend.Get(ctx, "k")
		if err != nil {
			return nil, err
		}
		theirs := mine
		theirs.Token = "another-attempt.1"
		_, err = backend.Swap(ctx, "k", mine.Token, theirs)
		return wrapperspb.String("mine"), err
	})
	if a := b.charge("k", "10"); a.code() != codes.Aborted || a.reason() != "TAKEN_OVER" || a.text != "" {
		t.Errorf("%+v", a)
	}
}

func TestUnresolved(t *testing.T) {
	b := serve(t, setup{store: &idem.Options{OnLapse: idem.Hold}}, func(context.Context, *wrapperspb.StringValue) (proto.Message, error) {
		return nil, says(codes.Internal)
	})
	if a := b.charge("k", "10"); a.code() != codes.Internal || a.reason() != "" {
		t.Errorf("the first: %+v", a)
	}
	if a := b.charge("k", "10"); a.code() != codes.FailedPrecondition || a.reason() != "UNRESOLVED" {
		t.Errorf("the second: %+v", a)
	}
	b.ran(1)
	if err := b.store.Forget(t.Context(), "k", 1); err != nil {
		t.Fatal(err)
	}
	b.charge("k", "10")
	b.ran(2)
}

// A client that hangs up loses nothing.
func TestClientHangsUp(t *testing.T) {
	ctx, hangUp := context.WithCancel(t.Context())
	b := serve(t, setup{server: &idemgrpc.Options{Wait: time.Minute}}, func(ctx context.Context, req *wrapperspb.StringValue) (proto.Message, error) {
		hangUp()
		<-ctx.Done()
		return echo(ctx, req) // the effect was done all the same
	})
	if a := b.call(ctx, charge, "k", "10"); a.code() != codes.Canceled {
		t.Errorf("the client that hung up: %+v", a)
	}
	if a := b.charge("k", "10"); a.err != nil || !a.replayed || a.text != "charged 10" {
		t.Errorf("its retry: %+v", a)
	}
	b.ran(1)
}

func TestMistakesInTheProgramPanic(t *testing.T) {
	store, err := idem.New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(){
		"no store": func() { idemgrpc.UnaryServerInterceptor(nil, nil) },
		"scope and shared": func() {
			idemgrpc.UnaryServerInterceptor(store, &idemgrpc.Options{SharedKeys: true, Scope: func(context.Context) string { return "" }})
		},
		"negative wait":      func() { idemgrpc.UnaryServerInterceptor(store, &idemgrpc.Options{Wait: -1}) },
		"credentials kept":   func() { idemgrpc.UnaryServerInterceptor(store, &idemgrpc.Options{Metadata: []string{"Authorization"}}) },
		"negative attempts":  func() { idemgrpc.UnaryClientInterceptor(&idemgrpc.ClientOptions{MaxAttempts: -1}) },
		"negative max. time": func() { idemgrpc.UnaryClientInterceptor(&idemgrpc.ClientOptions{MaxTime: -1}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}
