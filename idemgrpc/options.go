package idemgrpc

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/idem-go/idem"
)

// Options configure a UnaryServerInterceptor. Nil Options and zero fields stand
// for the defaults.
type Options struct {
	// Scope returns whose keys a call's are, such as a tenant or a user: the same
	// key of two scopes names two operations, and nobody is answered with what
	// belongs to another. Take it from what an interceptor before this one has
	// authenticated, and let it be the same in every retry: not a token that is
	// renewed. It has 1 to [idem.MaxScope] bytes; a call for which it is empty or
	// no valid scope is refused with Internal.
	//
	// Without Scope all callers share one set of keys. Calls that carry credentials
	// (the metadata authorization, cookie or x-api-key, or a client certificate)
	// together with a key are then refused with Internal, and that is logged:
	// whoever guesses a key would read the answer of another caller.
	Scope func(context.Context) string

	// SharedKeys lets callers with credentials share one set of keys, without
	// Scope. It is right where there is one caller, or where all may see what
	// each gets.
	SharedKeys bool

	// Methods reports whether calls of a method, such as "/shop.Payments/Charge",
	// are protected; all unary ones by default. Others are passed on.
	Methods func(fullMethod string) bool

	// Required refuses calls without a key with InvalidArgument. By default they
	// are passed on unprotected. Methods keeps it from such as health checks.
	Required bool

	// Wait is how long a duplicate waits for the answer of the call that is
	// running. After that, and with 0 at once, it is answered with Aborted and
	// RetryInfo. A Store with NoWait does not wait.
	Wait time.Duration

	// Ending decides, once the handler has returned, what becomes of the
	// operation. For what it returns 0, and if it is nil, [DefaultEnding]
	// decides.
	Ending func(fullMethod string, code codes.Code) Ending

	// Metadata are the names of headers and trailers to keep for replays; none by
	// default.
	Metadata []string

	// Log is told what a caller cannot see: why the storage failed, and that a
	// scope is missing. By default it is slog.Default().
	Log *slog.Logger
}

// withDefaults returns o with its defaults filled in, or what is wrong with it.
func (o Options) withDefaults() (Options, error) {
	if o.Methods == nil {
		o.Methods = func(string) bool { return true }
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	switch {
	case o.Scope != nil && o.SharedKeys:
		return o, fmt.Errorf("%w: Scope and SharedKeys exclude each other", idem.ErrOptions)
	case o.Wait < 0:
		return o, fmt.Errorf("%w: Wait %v is negative", idem.ErrOptions, o.Wait)
	}
	kept := make([]string, len(o.Metadata))
	for i, name := range o.Metadata {
		kept[i] = strings.ToLower(name)
		switch kept[i] {
		case KeyMetadata, ReplayedHeader, "authorization", "set-cookie", "date":
			return o, fmt.Errorf("%w: the metadata %s is never kept for a replay", idem.ErrOptions, kept[i])
		}
	}
	o.Metadata = kept
	return o, nil
}
