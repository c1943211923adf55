package idemhttp

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"slices"
	"time"

	"github.com/idem-go/idem"
)

// Options configure a Middleware. Nil Options and zero fields stand for the
// defaults. Routes that need other options get a Middleware of their own.
type Options struct {
	// Scope returns whose keys a request's are, such as a tenant or a user: the
	// same key of two scopes names two operations, and nobody is answered with
	// what belongs to another. Take it from what has been authenticated, and
	// let it be the same in every retry: not a token that is renewed. It has 1
	// to [idem.MaxScope] bytes; a request for which it is empty or no valid
	// scope is refused with 500.
	//
	// Without Scope all callers share one set of keys. Requests that carry
	// credentials (Authorization, Cookie, X-Api-Key or a client certificate)
	// together with a key are then refused with 500, and that is logged:
	// whoever guesses a key would read the answer of another caller.
	Scope func(*http.Request) string

	// SharedKeys lets callers with credentials share one set of keys, without
	// Scope. It is right where there is one caller, or where all may see what
	// each gets.
	SharedKeys bool

	// Required refuses requests without a key with 400. By default they are
	// passed on unprotected.
	Required bool

	// Methods are the methods whose requests are protected; POST and PATCH by
	// default. Others are passed on.
	Methods []string

	// Wait is how long a duplicate waits for the answer of the request that is
	// running. After that, and with 0 at once, it is answered with 409 and
	// Retry-After. A Store with NoWait does not wait.
	Wait time.Duration

	// MaxBody is the largest request body in bytes; 1 MiB by default. It is
	// read whole for the fingerprint. A larger one is refused with 413.
	MaxBody int64

	// Fingerprint returns what makes a request what it is; [Fingerprint] by
	// default. The body has been read and can be read again from the request by
	// the handler only.
	Fingerprint func(r *http.Request, body []byte) idem.Fingerprint

	// Ending decides, once the handler has returned, what becomes of the
	// operation. For what it returns 0, and if it is nil, [DefaultEnding]
	// decides.
	Ending func(r *http.Request, status int, header http.Header) Ending

	// Headers are response headers to keep for replays besides those that the
	// documentation of the package lists. Set-Cookie, Date, those with
	// credentials and those of the connection are never kept.
	Headers []string

	// Policy is the URL at which PolicyHandler is served. Problem answers link
	// to it. By default they link to the documentation of this package.
	Policy string

	// Log is told what a caller cannot see: why the storage failed, and that a
	// scope is missing. By default it is slog.Default().
	Log *slog.Logger
}

// documentation is the policy of those who publish none.
const documentation = "https://pkg.go.dev/github.com/idem-go/idem/idemhttp"

// withDefaults returns o with its defaults filled in, or what is wrong with it.
func (o Options) withDefaults() (Options, error) {
	if o.Methods == nil {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if o.MaxBody == 0 {
		o.MaxBody = 1 << 20
	}
	if o.Fingerprint == nil {
		o.Fingerprint = Fingerprint
	}
	if o.Policy == "" {
		o.Policy = documentation
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	switch {
	case o.Scope != nil && o.SharedKeys:
		return o, fmt.Errorf("%w: Scope and SharedKeys exclude each other", idem.ErrOptions)
	case o.Wait < 0:
		return o, fmt.Errorf("%w: Wait %v is negative", idem.ErrOptions, o.Wait)
	case o.MaxBody < 0:
		return o, fmt.Errorf("%w: MaxBody %d is negative", idem.ErrOptions, o.MaxBody)
	}
	kept := slices.Clone(keptHeaders)
	for _, name := range o.Headers {
		name = textproto.CanonicalMIMEHeaderKey(name)
		if isNeverKept(name) {
			return o, fmt.Errorf("%w: the header %s is never kept for a replay", idem.ErrOptions, name)
		}
		if !slices.Contains(kept, name) {
			kept = append(kept, name)
		}
	}
	o.Headers = kept
	return o, nil
}

// keptHeaders are those that belong to an answer wherever and whenever it is
// given.
var keptHeaders = []string{
	"Accept-Patch", "Accept-Post", "Allow", "Cache-Control",
	"Content-Digest", "Content-Disposition", "Content-Encoding", "Content-Language",
	"Content-Location", "Content-Security-Policy", "Content-Type",
	"Deprecation", "Etag", "Expires", "Last-Modified", "Link", "Location",
	"Preference-Applied", "Referrer-Policy", "Repr-Digest", "Retry-After",
	"Sunset", "Vary", "X-Content-Type-Options", "X-Frame-Options",
}

// isNeverKept reports whether a header belongs to one answer or connection only,
// or hands out a right.
func isNeverKept(name string) bool {
	switch name {
	case "Set-Cookie", "Set-Cookie2", "Authorization", "Authentication-Info",
		"Proxy-Authenticate", "Proxy-Authorization", "Proxy-Authentication-Info", "Www-Authenticate",
		"Date", "Age", "Content-Length", "Content-Range", "Connection", "Keep-Alive", "Proxy-Connection",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade", KeyHeader, ReplayedHeader, OmittedHeader:
		return true
	}
	return false
}
