package idemgrpc_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemgrpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A handler is what a test has the service do.
type handler = func(context.Context, *wrapperspb.StringValue) (proto.Message, error)

// Methods of the service.
const (
	charge = "/shop.Payments/Charge"
	refund = "/shop.Payments/Refund"
)

// payments is the service shop.Payments, registered by hand: its requests are
// strings, and its responses whatever the test's handler returns.
func payments(h handler) *grpc.ServiceDesc {
	method := func(name string) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			req := new(wrapperspb.StringValue)
			if err := decode(req); err != nil {
				return nil, err
			}
			info := &grpc.UnaryServerInfo{Server: srv, FullMethod: "/shop.Payments/" + name}
			return interceptor(ctx, req, info, func(ctx context.Context, req any) (any, error) {
				return h(ctx, req.(*wrapperspb.StringValue))
			})
		}}
	}
	return &grpc.ServiceDesc{ServiceName: "shop.Payments", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{method("Charge"), method("Refund")}}
}

// A bench is a server with its client.
type bench struct {
	t     *testing.T
	conn  *grpc.ClientConn
	store *idem.Store
	runs  atomic.Int64
	log   logs
}

type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A setup is what a bench is made of; zero fields stand for the usual.
type setup struct {
	backend idem.Backend
	store   *idem.Options
	server  *idemgrpc.Options
	outer   grpc.UnaryServerInterceptor // before that of idemgrpc
	client  grpc.UnaryClientInterceptor
}

func serve(t *testing.T, s setup, h handler) *bench {
	t.Helper()
	b := &bench{t: t}
	if s.backend == nil {
		s.backend = memory.New()
	}
	var err error
	if b.store, err = idem.New(s.backend, s.store); err != nil {
		t.Fatal(err)
	}
	var opts idemgrpc.Options
	if s.server != nil {
		opts = *s.server
	}
	opts.Log = slog.New(slog.NewTextHandler(&b.log, nil))
	chain := []grpc.UnaryServerInterceptor{idemgrpc.UnaryServerInterceptor(b.store, &opts)}
	if s.outer != nil {
		chain = append([]grpc.UnaryServerInterceptor{s.outer}, chain...)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(chain...))
	server.RegisterService(payments(func(ctx context.Context, req *wrapperspb.StringValue) (proto.Message, error) {
		b.runs.Add(1)
		return h(ctx, req)
	}), nil)
	listener := bufconn.Listen(1 << 20)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(serving.Wait)
	t.Cleanup(server.Stop)
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
	}
	if s.client != nil {
		dial = append(dial, grpc.WithUnaryInterceptor(s.client))
	}
	if b.conn, err = grpc.NewClient("passthrough:bufconn", dial...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.conn.Close() })
	return b
}

// An answer is what a client got.
type answer struct {
	text     string
	err      error
	header   metadata.MD
	trailer  metadata.MD
	replayed bool
}

func (a answer) code() codes.Code { return status.Code(a.err) }
func (a answer) reason() string   { return idemgrpc.ReasonOf(a.err) }

// retryAfter returns what RetryInfo asks for.
func (a answer) retryAfter() time.Duration {
	for _, d := range status.Convert(a.err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// call calls a method with a key, or without one if it is empty, and with other
// metadata, given as names and values in turn.
func (b *bench) call(ctx context.Context, method, key, text string, md ...string) answer {
	b.t.Helper()
	if key != "" {
		md = append(md, "idempotency-key", key)
	}
	var a answer
	var resp wrapperspb.StringValue
	a.err = b.conn.Invoke(metadata.AppendToOutgoingContext(ctx, md...), method, wrapperspb.String(text), &resp, grpc.Header(&a.header), grpc.Trailer(&a.trailer))
	a.text = resp.GetValue()
	a.replayed = len(a.header.Get("idempotent-replayed")) > 0
	return a
}

// charge calls Charge.
func (b *bench) charge(key, text string, md ...string) answer {
	b.t.Helper()
	return b.call(b.t.Context(), charge, key, text, md...)
}

// ran checks how often the handler has run.
func (b *bench) ran(want int64) {
	b.t.Helper()
	if got := b.runs.Load(); got != want {
		b.t.Errorf("the handler ran %d times, want %d", got, want)
	}
}

// echo answers with what it was asked.
func echo(_ context.Context, req *wrapperspb.StringValue) (proto.Message, error) {
	return wrapperspb.String("charged " + req.GetValue()), nil
}

var errDown = errors.New("wire broke")

// flaky is a backend whose Swap fails where fails says so.
type flaky struct {
	idem.Backend
	fails func(idem.Record) error
}

func (f flaky) Swap(ctx context.Context, key, old string, r idem.Record) (idem.Record, error) {
	if err := f.fails(r); err != nil {
		return idem.Record{}, err
	}
	return f.Backend.Swap(ctx, key, old, r)
}
