// The program payments-postgres charges accounts that are in PostgreSQL, and each
// request once, however often it is sent.
//
// A client that gets no answer sends its request again, with the same key in the
// header Idempotency-Key. The service runs each charge with Do: the claim of the
// key, the change of the balance and the answer commit in one transaction. So the
// second request gets the answer of the first one, word for word, whether the
// connection broke before the transaction, after it or in the middle.
//
// The load that comes with it sends every request three times at once, through a
// proxy that cuts connections wherever they are, until each has its answer. Then
// it looks into the books.
//
//	export DATABASE_URL=postgres://...
//	go run ./examples/payments-postgres serve &
//	go run ./examples/payments-postgres load
//
// load exits with 1 if the books do not balance.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "payments-postgres:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return errors.New("say what to do: serve or load")
	}
	flags := flag.NewFlagSet("payments-postgres "+args[0], flag.ContinueOnError)
	addr := flags.String("addr", "127.0.0.1:8080", "`address` of the service")
	database := flags.String("database", os.Getenv("DATABASE_URL"), "connection `string`; DATABASE_URL by default")
	charges := flags.Int("charges", 1000, "`number` of charges that load makes")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, *database)
	if err != nil {
		return err
	}
	defer pool.Close()
	switch args[0] {
	case "serve":
		return serve(ctx, pool, *addr, stdout)
	case "load":
		report, err := load(ctx, pool, *addr, *charges)
		fmt.Fprint(stdout, report)
		return err
	}
	return fmt.Errorf("%q is nothing that this program does: say serve or load", args[0])
}

// serve serves until ctx is done, and then finishes the requests at hand.
func serve(ctx context.Context, pool *pgxpool.Pool, addr string, stdout io.Writer) error {
	handler, err := newService(ctx, pool, charge)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "serving on", listener.Addr())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		late, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		stopped <- server.Shutdown(late)
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}
