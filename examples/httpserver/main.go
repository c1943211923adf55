// The program httpserver is a small shop with a page. It takes each order once,
// however often the order is sent.
//
//	go run ./examples/httpserver
//
// and open the address that it prints. The page has buttons that do what goes wrong
// on real networks: an order that is sent twice, or ten times at once, an answer
// that is lost, and a key that is used for two different orders. It shows what
// became of each request, and how many orders there are.
//
// The order and the answer to it commit together, in the same file or database:
//
//	go run ./examples/httpserver -store bolt:shop.db    # the default
//	go run ./examples/httpserver -store postgres://user:password@localhost/shop
//	go run ./examples/httpserver -store redis://localhost:6379/0
//
// Start reading at shop.go. The README beside this file says what to press, and has
// the same with curl.
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
	"sync"
	"syscall"
	"time"

	"github.com/idem-go/idem/janitor"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); {
	case err == nil || errors.Is(err, flag.ErrHelp):
	default:
		fmt.Fprintln(os.Stderr, "httpserver:", err)
		os.Exit(1)
	}
}

// run serves until ctx is done, and then finishes the orders at hand.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("httpserver", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "127.0.0.1:8080", "`address` to serve on; port 0 chooses a free one")
	url := flags.String("store", "bolt:shop.db", "`URL` of what keeps orders and records: bolt:file, bolt:///path, postgres://... or redis://...")
	packing := flags.Duration("packing", time.Second, "how long it takes to pack an order, so that there is something to see in flight")
	if err := flags.Parse(args); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	books, err := openBooks(ctx, *url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, books.close()) }()
	handler, err := newShop(books, *packing, log)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	// Records whose retention is over are deleted in the background.
	ctx, stop := context.WithCancel(ctx)
	var background sync.WaitGroup
	background.Go(func() {
		if err := janitor.Run(ctx, books.backend(), &janitor.Options{Logger: log}); err != nil {
			log.Error("nothing is swept", "err", err)
		}
	})
	defer background.Wait()
	defer stop()

	fmt.Fprintf(stdout, "the shop is open at http://%s/\n", listener.Addr())
	return serve(ctx, listener, handler, log)
}

// shutdownIn is how long the orders at hand have to end. Whoever is cut off after
// that sends again, to the next process.
const shutdownIn = 20 * time.Second

func serve(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      time.Minute, // above formWait and the packing
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	log.Info("closing: the orders at hand are finished")
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownIn)
	defer cancel()
	err := server.Shutdown(late)
	if err != nil {
		_ = server.Close() // a database that hangs must not keep the process
	}
	log.Info("closed")
	return err
}
