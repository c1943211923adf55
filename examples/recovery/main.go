// The program recovery charges orders through a payment provider, once each, even if
// it is killed at any point of it.
//
// The provider is another system: it cannot take part in a transaction, and this one
// does not recognise repetitions either. So the program notes down, before it calls
// the provider, under which reference it will (a checkpoint), and no request takes
// over from an attempt that died (the policy Hold). What became of such an attempt is
// found out by the janitor: it asks the provider for the reference, and completes the
// order, frees it, or leaves it open and asks again later.
//
//	go run ./examples/recovery         # a demonstration: dies at each step, and recovers
//
// or its parts, the first in a terminal of its own:
//
//	go run ./examples/recovery provider
//	go run ./examples/recovery charge order-1 4999
//	go run ./examples/recovery -hang-at unanswered charge order-2 100    # kill it with SIGKILL
//	go run ./examples/recovery recover
//	go run ./examples/recovery compare
//
// The provider's charges are in its memory; the orders are in a bolt file.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "recovery:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	slog.SetDefault(slog.New(slog.NewTextHandler(stderr, nil)))
	flags := flag.NewFlagSet("recovery", flag.ContinueOnError)
	flags.SetOutput(stderr)
	path := flags.String("orders", "orders.db", "`file` of the orders")
	addr := flags.String("provider", "127.0.0.1:8099", "`address` of the payment provider")
	hang := flags.String("hang-at", "", "`step` at which charge hangs, to be killed: "+strings.Join(stepNames(), ", "))
	opts := options{}
	flags.DurationVar(&opts.lease, "lease", 5*time.Second, "after how `long` a charge whose process died is over")
	flags.DurationVar(&opts.timeout, "timeout", 2*time.Second, "how `long` to wait for the provider")
	if err := flags.Parse(args); err != nil {
		return err
	}
	command := flags.Args()
	if len(command) == 0 {
		return demonstrate(ctx, stdout)
	}
	if command[0] == "provider" {
		return serveProvider(ctx, *addr, stdout)
	}
	if opts.hang, err = hangAt(*hang, stdout); err != nil {
		return err
	}
	opts.provider = *addr
	s, err := openShop(*path, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	switch {
	case command[0] == "charge" && len(command) == 3:
		cents, err := strconv.ParseInt(command[2], 10, 64)
		if err != nil || cents <= 0 {
			return fmt.Errorf("%q is no amount in cents", command[2])
		}
		receipt, replayed, err := s.charge(ctx, command[1], cents)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%s: %s replayed=%v\n", command[1], receipt, replayed)
		return nil
	case command[0] == "recover" && len(command) == 1:
		return s.recoverAll(ctx, stdout)
	case command[0] == "compare" && len(command) == 1:
		return s.compare(ctx, stdout)
	}
	return fmt.Errorf("%q is nothing that this program does: say provider, charge ORDER CENTS, recover or compare", strings.Join(command, " "))
}

// serveProvider runs the provider until ctx is done.
func serveProvider(ctx context.Context, addr string, stdout io.Writer) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: newProvider(), ReadHeaderTimeout: time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	fmt.Fprintf(stdout, "the payment provider listens on %s\n", listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
