// The program routers serves the same protected operation with net/http's
// ServeMux, chi, echo or gin: the middleware is a func(http.Handler)
// http.Handler, which each of them takes in its own way.
//
//	go run . -router chi
//	curl -i -H 'Idempotency-Key: "order-1"' -d 100 localhost:8080/accounts/7/charges
//	curl -i -H 'Idempotency-Key: "order-1"' -d 100 localhost:8080/accounts/7/charges
//
// The second answer is the first one, with Idempotent-Replayed: true. It is a
// module of its own, so that the routers are dependencies of this example only.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemhttp"
)

// routers make a handler of the shop with one router each.
var routers = map[string]func(*shop, middleware) http.Handler{
	"servemux": withServeMux,
	"chi":      withChi,
	"echo":     withEcho,
	"gin":      withGin,
}

type middleware = func(http.Handler) http.Handler

// A shop charges accounts, which is what must not happen twice.
type shop struct{ charges atomic.Int64 }

// charge returns what the client is told.
func (s *shop) charge(account string) string {
	return fmt.Sprintf("charge %d: account %s\n", s.charges.Add(1), account)
}

func main() {
	router := flag.String("router", "servemux", "`name` of the router: "+strings.Join(slices.Sorted(maps.Keys(routers)), ", "))
	addr := flag.String("addr", "localhost:8080", "`address` to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *router, *addr); err != nil {
		fmt.Fprintln(os.Stderr, "routers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, router, addr string) error {
	handler, err := newHandler(router, &shop{})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf("%s: POST http://%s/accounts/7/charges\n", router, listener.Addr())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		// Requests that are running finish, and their answers are recorded.
		finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		stopped <- server.Shutdown(finish)
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// newHandler returns the shop behind a router. Its records are in memory: a shop
// that is restarted, or runs more than once, has them in a database.
func newHandler(router string, s *shop) (http.Handler, error) {
	with, ok := routers[router]
	if !ok {
		return nil, fmt.Errorf("there is no router %q", router)
	}
	protect, err := protection(memory.New())
	if err != nil {
		return nil, err
	}
	return with(s, protect), nil
}

// protection returns the middleware, with its records in b.
func protection(b idem.Backend) (middleware, error) {
	// A charge is recorded after it has happened, and nobody can ask this shop what
	// became of one whose attempt ended in between. So it is not tried again: retries
	// are refused until somebody has decided.
	store, err := idem.New(b, &idem.Options{OnLapse: idem.Hold})
	if err != nil {
		return nil, err
	}
	return idemhttp.Middleware(store, &idemhttp.Options{Required: true}), nil
}
