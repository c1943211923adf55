package idemgrpc_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemgrpc"
)

// A shop is the server of some generated service.
type shop struct {
	pb.UnimplementedTestServiceServer
	charges atomic.Int64
}

func (s *shop) UnaryCall(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return &pb.SimpleResponse{Username: fmt.Sprintf("charge %d", s.charges.Add(1))}, nil
}

// tenantOf returns whose call it is. Real programs take that from what an
// interceptor before has authenticated.
func tenantOf(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	if who := md.Get("tenant"); len(who) == 1 {
		return who[0]
	}
	return ""
}

func Example() {
	store, err := idem.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(
		idemgrpc.UnaryServerInterceptor(store, &idemgrpc.Options{Scope: tenantOf, Required: true}),
	))
	pb.RegisterTestServiceServer(server, new(shop))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	conn, err := grpc.NewClient(listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(idemgrpc.UnaryClientInterceptor(nil)))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := pb.NewTestServiceClient(conn)

	// The key is made before the first attempt, and kept with the order.
	ctx := metadata.AppendToOutgoingContext(context.Background(), "tenant", "alice")
	ctx = idemgrpc.WithKey(ctx, "order-4711")
	for range 2 {
		var header metadata.MD
		resp, err := client.UnaryCall(ctx, &pb.SimpleRequest{ResponseSize: 10}, grpc.Header(&header))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(resp.GetUsername(), header.Get(idemgrpc.ReplayedHeader))
	}
	_, err = client.UnaryCall(ctx, &pb.SimpleRequest{ResponseSize: 99}) // another order with the key
	fmt.Println(status.Code(err), idemgrpc.ReasonOf(err))
	// Output:
	// charge 1 []
	// charge 1 [true]
	// FailedPrecondition KEY_REUSED
}

// What a program knows of its own codes it can say: here NotFound is that of an
// account which may be opened any moment, and is not kept.
func ExampleOptions_ending() {
	opts := idemgrpc.Options{Ending: func(method string, code codes.Code) idemgrpc.Ending {
		if method == "/shop.Payments/Charge" && code == codes.NotFound {
			return idemgrpc.Release
		}
		return 0 // as by default
	}}
	fmt.Println(opts.Ending("/shop.Payments/Charge", codes.NotFound) == idemgrpc.Release)
	fmt.Println(opts.Ending("/shop.Payments/Charge", codes.OK) == 0, idemgrpc.DefaultEnding(codes.OK) == idemgrpc.Record)
	// Output:
	// true
	// true true
}
