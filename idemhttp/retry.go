package idemhttp

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// mayRepeat reports whether an attempt that ended like this may be repeated, and
// after how long: what the server asks for and a part of delay, so that those who
// were turned away together do not come back together.
func mayRepeat(ctx context.Context, resp *http.Response, err error, delay time.Duration) (again bool, wait time.Duration) {
	wait = delay/2 + rand.N(delay/2+1)
	if err != nil {
		// Most of what can go wrong with a connection passes, and what does not
		// costs a few attempts.
		_, distrusted := errors.AsType[*tls.CertificateVerificationError](err)
		return ctx.Err() == nil && !distrusted, wait
	}
	switch resp.StatusCode {
	case http.StatusConflict:
		again = !isUnresolved(resp)
	case http.StatusTooEarly, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	}
	if resp.Header.Get(ReplayedHeader) != "" {
		again = false // a stored answer stays what it is
	}
	return again, wait + retryAfter(resp.Header, time.Now())
}

// isUnresolved reports whether a 409 says that the outcome has to be found out
// first, which takes longer than a Transport waits. The body can be read after
// that as before.
func isUnresolved(resp *http.Response) bool {
	if resp.Header.Get("Content-Type") != "application/problem+json" {
		return false
	}
	start, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), resp.Body), resp.Body}
	var p struct{ Reason string }
	return json.Unmarshal(start, &p) == nil && p.Reason == unresolved.reason
}

// retryAfter returns how long a Retry-After header asks to wait, which is given in
// seconds or as a date; 0 if there is none or it cannot be read. A date is one of
// the server's clock, of which the header Date is.
func retryAfter(h http.Header, now time.Time) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.ParseInt(value, 10, 32); err == nil {
		return max(0, time.Duration(seconds)*time.Second)
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return min(max(0, at.Sub(now)), 365*24*time.Hour)
}

// discard reads the rest of a body, if that is not much, so that its connection
// can be used again.
func discard(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 256<<10)
	_ = body.Close()
}

// sleep waits and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
