package idemtest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/idem-go/idem"
)

// HTTP returns a Subject.Send for a program that is an http.Handler, whatever
// makes it idempotent. request makes the request to be sent; its context is
// replaced.
//
// The answer consists of the status, the headers Content-Type, Content-Encoding
// and Location, and the body. 408, 425, 429 and 5xx are errors: the caller tries
// again. So is 409; one without Retry-After may also say that the key was used
// with another payload. 400, 412 and 422 are errors that are [ErrConflict]. All
// other statuses are answers.
func HTTP(h http.Handler, request func(r Request) *http.Request) func(context.Context, Request) (string, error) {
	return func(ctx context.Context, r Request) (answer string, err error) {
		defer func() {
			if p := recover(); p != nil { // net/http would close the connection
				answer, err = "", fmt.Errorf("the handler panicked: %v", p)
			}
		}()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request(r).WithContext(ctx))
		got := w.Result()
		switch code := got.StatusCode; {
		case code >= 500, code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests,
			code == http.StatusBadRequest, code == http.StatusConflict, code == http.StatusPreconditionFailed, code == http.StatusUnprocessableEntity:
			return "", &statusError{code, got.Header.Get("Retry-After"), w.Body.String()}
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%d %s\n", got.StatusCode, http.StatusText(got.StatusCode))
		for _, name := range []string{"Content-Type", "Content-Encoding", "Location"} {
			for _, v := range got.Header.Values(name) {
				fmt.Fprintf(&b, "%s: %s\n", name, v)
			}
		}
		b.WriteString("\n")
		b.Write(w.Body.Bytes())
		return b.String(), nil
	}
}

// A statusError is a status upon which a caller does not have an answer.
type statusError struct {
	code       int
	retryAfter string
	body       string
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("%d %s: %s", e.code, http.StatusText(e.code), strings.TrimSpace(e.body))
	return strings.TrimSuffix(text, ": ")
}

func (e *statusError) Is(target error) bool {
	if target != ErrConflict {
		return false
	}
	switch e.code {
	case http.StatusBadRequest, http.StatusPreconditionFailed, http.StatusUnprocessableEntity:
		return true
	case http.StatusConflict:
		return e.retryAfter == ""
	}
	return false
}

// isConflict reports whether err says that the key was used with another
// payload.
func isConflict(err error) bool {
	return errors.Is(err, ErrConflict) || errors.Is(err, idem.ErrMismatch)
}

// isFinal reports whether err surely tells a caller not to come again. 409 is
// said in both meanings.
func isFinal(err error) bool {
	if e, ok := errors.AsType[*statusError](err); ok && e.code == http.StatusConflict {
		return false
	}
	return isConflict(err)
}
