package idemgrpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemgrpc"
)

var discard = slog.New(slog.DiscardHandler)

// says returns an error with a code, and a detail, which a replay has to have.
func says(code codes.Code) error {
	s, err := status.New(code, "the handler says "+code.String()).WithDetails(&errdetails.ErrorInfo{Reason: "OWN", Domain: "shop.example"})
	if err != nil {
		panic(err)
	}
	return s.Err()
}

// The table of the documentation: what becomes of an operation by the code of its
// answer.
func TestEndings(t *testing.T) {
	const (
		record  = "is replayed"
		release = "runs again"
		abandon = "runs as a takeover"
	)
	endings := map[codes.Code]string{
		codes.OK: record, codes.InvalidArgument: record, codes.NotFound: record, codes.AlreadyExists: record,
		codes.PermissionDenied: record, codes.FailedPrecondition: record, codes.OutOfRange: record,
		codes.Unauthenticated: release, codes.Unavailable: release, codes.ResourceExhausted: release,
		codes.Aborted: release, codes.Unimplemented: release,
		codes.Unknown: abandon, codes.Internal: abandon, codes.DataLoss: abandon, codes.DeadlineExceeded: abandon,
		codes.Canceled: abandon, codes.Code(77): abandon,
	}
	if len(endings) != 18 {
		t.Errorf("%d codes, want all 17 and another", len(endings))
	}
	for code, want := range endings {
		takeover := false
		b := serve(t, setup{}, func(ctx context.Context, _ *wrapperspb.StringValue) (proto.Message, error) {
			c, _ := idemgrpc.ClaimFrom(ctx)
			takeover = c.Takeover
			if code == codes.OK {
				return wrapperspb.String("done"), nil
			}
			return nil, says(code)
		})
		first, second := b.charge("k", "10"), b.charge("k", "10")
		got := record
		switch {
		case b.runs.Load() == 1 && second.replayed:
		case takeover:
			got = abandon
		default:
			got = release
		}
		if got != want {
			t.Errorf("%v: a retry %s, but should be one that %s", code, got, want)
		}
		s1, s2 := status.Convert(first.err).Proto(), status.Convert(second.err).Proto()
		if !proto.Equal(s1, s2) || first.code() != code || code != codes.OK && len(s2.GetDetails()) != 1 {
			t.Errorf("%v: the first got %v, the second %v", code, s1, s2)
		}
	}
}

// Errors without a status end as the code that gRPC makes of them, or as they say.
func TestPlainErrors(t *testing.T) {
	for _, c := range []struct {
		err      error
		code     codes.Code
		takeover bool
	}{
		{errors.New("database is on fire"), codes.Unknown, true},
		{context.DeadlineExceeded, codes.DeadlineExceeded, true},
		{context.Canceled, codes.Canceled, true},
		{idem.NoEffect(errors.New("no connection")), codes.Unknown, false},
		{idem.NoEffect(says(codes.Internal)), codes.Internal, false},
		{fmt.Errorf("charging: %w", says(codes.Unavailable)), codes.Unavailable, false},
		// What an operation inside this one says is not about this one.
		{&idem.Error{Op: "do", Key: "k", Err: idem.ErrNotRecorded}, codes.Unknown, true},
	} {
		var last *idem.Claim
		b := serve(t, setup{}, func(ctx context.Context, _ *wrapperspb.StringValue) (proto.Message, error) {
			last, _ = idemgrpc.ClaimFrom(ctx)
			return nil, c.err
		})
		if a := b.charge("k", "10"); a.code() != c.code || a.reason() != "" {
			t.Errorf("%v: %+v", c.err, a)
		}
		b.charge("k", "10")
		if last.Attempt != 2 || last.Takeover != c.takeover {
			t.Errorf("%v: the retry is attempt %d, takeover %v", c.err, last.Attempt, last.Takeover)
		}
	}
}

// A panic goes on to whoever recovers it, and leaves the outcome unknown.
func TestPanic(t *testing.T) {
	recovering := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = status.Errorf(codes.Internal, "recovered: %v", p)
			}
		}()
		return next(ctx, req)
	}
	b := serve(t, setup{outer: recovering}, func(ctx context.Context, _ *wrapperspb.StringValue) (proto.Message, error) {
		if c, _ := idemgrpc.ClaimFrom(ctx); c.Takeover {
			return wrapperspb.String("recovered from"), nil
		}
		panic("out of paper")
	})
	if a := b.charge("k", "10"); a.code() != codes.Internal || !strings.Contains(a.err.Error(), "recovered: out of paper") {
		t.Errorf("%+v", a)
	}
	if a := b.charge("k", "10"); a.text != "recovered from" {
		t.Errorf("the retry: %+v", a)
	}
}

// A program can decide for its methods.
func TestOwnEnding(t *testing.T) {
	b := serve(t, setup{server: &idemgrpc.Options{Ending: func(method string, code codes.Code) idemgrpc.Ending {
		switch {
		case method == charge && code == codes.Internal:
			return idemgrpc.Record
		case method == refund && code == codes.OK:
			return idemgrpc.Omit
		case method == charge && code == codes.DeadlineExceeded:
			return idemgrpc.Release
		}
		return 0
	}}}, func(ctx context.Context, req *wrapperspb.StringValue) (proto.Message, error) {
		switch req.GetValue() {
		case "fail":
			return nil, says(codes.Internal)
		case "late":
			if c, _ := idemgrpc.ClaimFrom(ctx); c.Takeover {
				t.Error("the code that gRPC makes of a context's error was not asked about")
			}
			return nil, context.DeadlineExceeded
		}
		return wrapperspb.String("secret"), nil
	})
	b.charge("k1", "fail")
	if a := b.charge("k1", "fail"); a.code() != codes.Internal || !a.replayed {
		t.Errorf("recorded: %+v", a)
	}
	if a := b.call(t.Context(), refund, "k2", "10"); a.text != "secret" {
		t.Errorf("omitted, the first: %+v", a)
	}
	if a := b.call(t.Context(), refund, "k2", "10"); a.code() != codes.AlreadyExists || a.reason() != "RESPONSE_OMITTED" || !a.replayed {
		t.Errorf("omitted, the second: %+v", a)
	}
	if a := b.charge("k3", "10"); a.text != "secret" {
		t.Errorf("the default: %+v", a)
	}
	if a := b.charge("k3", "10"); a.text != "secret" || !a.replayed {
		t.Errorf("the default again: %+v", a)
	}
	b.charge("k4", "late")
	b.charge("k4", "late")
	b.ran(5)
}

// A response that is too large is done all the same, and does not run again.
func TestTooLarge(t *testing.T) {
	large := strings.Repeat("x", 100)
	b := serve(t, setup{store: &idem.Options{MaxResult: 100}}, func(_ context.Context, req *wrapperspb.StringValue) (proto.Message, error) {
		if req.GetValue() == "fail" {
			return nil, status.Error(codes.NotFound, large)
		}
		return wrapperspb.String(large), nil
	})
	if a := b.charge("k1", "10"); a.text != large {
		t.Errorf("the first: %+v", a)
	}
	if a := b.charge("k1", "10"); a.code() != codes.AlreadyExists || a.reason() != "RESPONSE_OMITTED" {
		t.Errorf("the second: %+v", a)
	}
	b.charge("k2", "fail")
	if a := b.charge("k2", "fail"); a.code() != codes.NotFound || !a.replayed || !strings.Contains(a.err.Error(), "was not kept") {
		t.Errorf("a large error: %+v", a)
	}
	b.ran(2)
}

// Of the headers and trailers a replay has those that are named, with all their
// values, whatever bytes are in them.
func TestMetadata(t *testing.T) {
	b := serve(t, setup{server: &idemgrpc.Options{Metadata: []string{"X-Receipt", "x-raw-bin", "x-late"}}}, func(ctx context.Context, req *wrapperspb.StringValue) (proto.Message, error) {
		for _, err := range []error{
			grpc.SetHeader(ctx, metadata.Pairs("x-receipt", "4711", "x-receipt", "4712", "x-session", "secret")),
			grpc.SendHeader(ctx, metadata.Pairs("x-raw-bin", "a\n\x00\xff")),
			grpc.SetTrailer(ctx, metadata.Pairs("x-late", "and last", "x-other", "not kept")),
		} {
			if err != nil {
				return nil, err
			}
		}
		return echo(ctx, req)
	})
	first, second := b.charge("k", "10"), b.charge("k", "10")
	if got := first.header.Get("x-session"); len(got) != 1 || first.trailer.Get("x-other") == nil {
		t.Errorf("the first: %v, %v", first.header, first.trailer)
	}
	for _, a := range []answer{first, second} {
		if !slices.Equal(a.header.Get("x-receipt"), []string{"4711", "4712"}) || !slices.Equal(a.header.Get("x-raw-bin"), []string{"a\n\x00\xff"}) || !slices.Equal(a.trailer.Get("x-late"), []string{"and last"}) {
			t.Errorf("%v, %v", a.header, a.trailer)
		}
	}
	if second.header.Get("x-session") != nil || second.trailer.Get("x-other") != nil || !second.replayed {
		t.Errorf("the replay has: %v, %v", second.header, second.trailer)
	}
}

// A response that has a map is one message whatever the order of its entries, and so
// is a request; and a type that the program does not know by name is replayed too.
func TestMessages(t *testing.T) {
	fields := map[string]any{}
	for i := range 50 {
		fields[fmt.Sprint("field", i)] = float64(i)
	}
	doc, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	unknown := unknownMessage(t)
	store, err := idem.New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	intercept := idemgrpc.UnaryServerInterceptor(store, &idemgrpc.Options{Log: discard})
	for key, message := range map[string]proto.Message{"map": doc, "unknown": unknown} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("idempotency-key", key))
		runs := 0
		for range 10 {
			got, err := intercept(ctx, proto.Clone(doc), &grpc.UnaryServerInfo{FullMethod: charge}, func(context.Context, any) (any, error) {
				runs++
				return message, nil
			})
			if err != nil {
				t.Fatalf("%s: %v", key, err)
			}
			encode := proto.MarshalOptions{Deterministic: true}
			want, _ := encode.Marshal(message)
			if bytes, _ := encode.Marshal(got.(proto.Message)); string(bytes) != string(want) {
				t.Errorf("%s: got %v", key, got)
			}
			if key == "map" && !maps.Equal(got.(*structpb.Struct).AsMap(), fields) {
				t.Errorf("got %v", got)
			}
		}
		if runs != 1 {
			t.Errorf("%s: the handler ran %d times", key, runs)
		}
	}
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("idempotency-key", "raw"))
	_, err = intercept(ctx, []byte("no message"), &grpc.UnaryServerInfo{FullMethod: charge}, nil)
	if status.Code(err) != codes.Internal || idemgrpc.ReasonOf(err) != "NOT_PROTO" {
		t.Errorf("a request that is no message: %v", err)
	}
}

// unknownMessage returns a message of a type that is registered nowhere.
func unknownMessage(t *testing.T) proto.Message {
	t.Helper()
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("receipt.proto"), Package: proto.String("shop"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{Name: proto.String("Receipt"), Field: []*descriptorpb.FieldDescriptorProto{{
			Name: proto.String("number"), Number: proto.Int32(1), Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(),
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}}}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	kind := file.Messages().Get(0)
	m := dynamicpb.NewMessage(kind)
	m.Set(kind.Fields().Get(0), protoreflect.ValueOfString("4711"))
	return m
}

// A handler can record its response in the transaction of its change. What it has
// recorded is what everybody gets.
func TestCompleteInTheTransaction(t *testing.T) {
	backend := memory.New() // bound to no transaction, it commits at once
	b := serve(t, setup{backend: backend}, func(ctx context.Context, req *wrapperspb.StringValue) (proto.Message, error) {
		if err := idemgrpc.Complete(ctx, backend, wrapperspb.String("recorded")); err != nil {
			return nil, err
		}
		if req.GetValue() == "fail" {
			return nil, says(codes.NotFound)
		}
		return wrapperspb.String("something else"), nil
	})
	for _, text := range []string{"10", "fail"} {
		first, second := b.charge("k-"+text, text), b.charge("k-"+text, text)
		if first.text != "recorded" || second.text != "recorded" || first.replayed || !second.replayed {
			t.Errorf("%s: the first %+v, the second %+v", text, first, second)
		}
		// A refusal after the commit is a mistake of the handler, which somebody
		// has to hear of.
		if told := b.log.String() != ""; told != (text == "fail") {
			t.Errorf("%s: the log says: %s", text, b.log.String())
		}
	}
	b.ran(2)
	if a := b.charge("", "10"); a.text != "something else" {
		t.Errorf("without a key: %+v", a)
	}
	// A record that is damaged is told apart from one that is not there.
	damaged := idem.Result{Body: bytes.Repeat([]byte{0xff}, 9), Meta: map[string]string{"type": "google.protobuf.StringValue"}}
	c, _, err := b.store.Begin(t.Context(), "damaged", idem.FingerprintOf([]byte("grpc"), []byte(charge), mustMarshal(t, wrapperspb.String("10"))))
	if err == nil {
		err = b.store.Complete(t.Context(), c, damaged)
	}
	if err != nil {
		t.Fatal(err)
	}
	if a := b.charge("damaged", "10"); a.code() != codes.DataLoss || a.reason() != "DAMAGED" {
		t.Errorf("a damaged record: %+v", a)
	}
}

func mustMarshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
