package idemhttp

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/idem-go/idem"
)

// A Transport is an [http.RoundTripper] that sends POST and PATCH requests with an
// Idempotency-Key and repeats them, always with the same key, until there is a
// definite answer. Requests with other methods are passed on as they are. It is
// for servers that honour the header: with others, a repetition is a second
// operation.
//
// The key is, in this order, that of the request's context (see [WithKey]), the
// one in the request's header, or a new one for this RoundTrip. A new one protects
// the repetitions of the Transport only. A program that may itself retry, or be
// restarted, makes the key before its first attempt, keeps it with what it is
// about to do, and gives it to every attempt with WithKey.
//
// These are repeated: errors of the connection, and the statuses 409, 425, 429,
// 502, 503 and 504. Not repeated are a 409 that is a stored answer
// (Idempotent-Replayed) or has the reason "unresolved"; 500, because the server has
// judged; 422 and everything else; and a request whose body cannot be read again,
// because it has no GetBody. Between two attempts the Transport waits at least as
// long as Retry-After asks for, and else about 100 ms, doubling up to 10 s.
//
// When attempts or time are used up, the caller gets the last answer or error: it
// may ask again later, with the same key. A body of an answer that breaks off is
// for the caller to retry too.
//
// A Transport is safe for concurrent use. The zero Transport is ready to use.
type Transport struct {
	// Base sends the requests; http.DefaultTransport by default.
	Base http.RoundTripper

	// MaxAttempts is how often a request is sent, the first one included; 5 by
	// default. 1 means that nothing is repeated.
	MaxAttempts int

	// MaxTime is how long after its first attempt a request is sent again at the
	// latest; 1 min by default. An attempt that is under way is not cut off: the
	// request's context and http.Client.Timeout, which spans all attempts, do
	// that.
	MaxTime time.Duration
}

type keyContext struct{}

// WithKey returns a context for the requests of one operation: a Transport sends
// them with key. A second operation needs a second key.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyContext{}, key)
}

const (
	firstDelay = 100 * time.Millisecond
	lastDelay  = 10 * time.Second
)

// RoundTrip implements [http.RoundTripper].
func (t Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	if req.Method != http.MethodPost && req.Method != http.MethodPatch {
		return base.RoundTrip(req)
	}
	key, err := keyOf(req)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	attempts, last := t.limits()
	if !repeatable(req) {
		attempts = 1
	}
	for attempt, delay := 1, firstDelay; ; attempt, delay = attempt+1, min(2*delay, lastDelay) {
		try := req.Clone(req.Context())
		if try.Header == nil {
			try.Header = make(http.Header)
		}
		try.Header.Set(KeyHeader, key)
		if attempt > 1 && req.GetBody != nil {
			if try.Body, err = req.GetBody(); err != nil {
				return nil, fmt.Errorf("idemhttp: attempt %d: the body cannot be read again: %w", attempt, err)
			}
		}
		resp, err := base.RoundTrip(try)
		again, wait := mayRepeat(req.Context(), resp, err, delay)
		if !again || attempt >= attempts || time.Now().Add(wait).After(last) {
			return resp, err
		}
		if resp != nil {
			discard(resp.Body)
			err = fmt.Errorf("status %s", resp.Status)
		}
		if !sleep(req.Context(), wait) {
			return nil, fmt.Errorf("idemhttp: gave up before attempt %d: %w (the one before ended with: %w)", attempt+1, context.Cause(req.Context()), err)
		}
	}
}

// limits returns how often a request is sent, and until when.
func (t Transport) limits() (attempts int, last time.Time) {
	attempts, within := t.MaxAttempts, t.MaxTime
	if attempts == 0 {
		attempts = 5
	}
	if within == 0 {
		within = time.Minute
	}
	return attempts, time.Now().Add(within)
}

// keyOf returns the header value of a request's key.
func keyOf(req *http.Request) (string, error) {
	if key, ok := req.Context().Value(keyContext{}).(string); ok {
		return FormatKey(key)
	}
	switch lines := req.Header[KeyHeader]; len(lines) {
	case 0:
		return FormatKey(idem.NewKey())
	case 1:
		if _, err := ParseKey(lines[0]); err != nil {
			return "", fmt.Errorf("idemhttp: %w: %w", idem.ErrKey, err)
		}
		return lines[0], nil
	}
	return "", fmt.Errorf("idemhttp: %w: %w", idem.ErrKey, errManyKeys)
}

// repeatable reports whether the request's body can be sent again.
func repeatable(req *http.Request) bool {
	return req.Body == nil || req.Body == http.NoBody || req.GetBody != nil
}
