package idemhttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/idem-go/idem"
)

// A problem is an answer of the middleware itself (RFC 9457). Its type is the URL
// of the policy with the reason as fragment, where the policy page explains it.
type problem struct {
	status     int
	reason     string // for programs; stable
	title      string
	detail     string
	retryAfter int // seconds; 0 = no promise
}

// retrySoon is when to come back after a failure that may pass, in seconds.
const retrySoon = 1

var (
	missingKey = problem{
		status: http.StatusBadRequest, reason: "missing-key",
		title:  "Idempotency-Key is missing",
		detail: "This operation needs an Idempotency-Key header. Make a key for the operation, send it with the request and with every retry of it.",
	}
	malformedKey = problem{
		status: http.StatusBadRequest, reason: "malformed-key",
		title:  "Idempotency-Key is malformed",
		detail: "The detail of the answer says what is wrong with the header. Nothing was done.",
	}
	unreadableBody = problem{
		status: http.StatusBadRequest, reason: "unreadable-body",
		title:  "The request body could not be read",
		detail: "The request ended before its body did. Nothing was done. Send it again with the same key.",
	}
	bodyTooLarge = problem{
		status: http.StatusRequestEntityTooLarge, reason: "body-too-large",
		title:  "The request body is too large",
		detail: "The detail of the answer has the limit. Nothing was done.",
	}
	keyReused = problem{
		status: http.StatusUnprocessableEntity, reason: "key-reused",
		title:  "Idempotency-Key is already used",
		detail: "The key was used with another request. Nothing was done. Use a new key for another operation, and for a retry send the same request.",
	}
	inProgress = problem{
		status: http.StatusConflict, reason: "in-progress",
		title:  "A request is outstanding for this Idempotency-Key",
		detail: "A request with the same key is being processed. Send this one again, with the same key, after the time in Retry-After to get its answer.",
	}
	unresolved = problem{
		status: http.StatusConflict, reason: "unresolved",
		title:  "The outcome of this operation is not known",
		detail: "An earlier request with the same key ended without a known outcome, and the operation is not repeated before that has been found out. A retry with the same key does no harm; a new key could have it done twice.",
	}
	unavailable = problem{
		status: http.StatusServiceUnavailable, reason: "unavailable",
		title:      "The record of operations cannot be reached",
		detail:     "Nothing was done. Send the request again, with the same key.",
		retryAfter: retrySoon,
	}
	notRecorded = problem{
		status: http.StatusServiceUnavailable, reason: "not-recorded",
		title:      "The answer could not be recorded",
		detail:     "The operation may have been done, but its answer could not be recorded. Send the request again, with the same key: a new key could have it done twice.",
		retryAfter: retrySoon,
	}
	takenOver = problem{
		status: http.StatusServiceUnavailable, reason: "taken-over",
		title:      "Another request has taken over this operation",
		detail:     "This request took so long that another one with the same key has taken over the operation. Send it again, with the same key, to get the answer.",
		retryAfter: retrySoon,
	}
	damaged = problem{
		status: http.StatusInternalServerError, reason: "damaged",
		title:  "The record of this operation is damaged",
		detail: "Nothing was done, and nothing will be with this key until somebody has looked into it.",
	}
	noScope = problem{
		status: http.StatusInternalServerError, reason: "no-scope",
		title:  "The server does not know whose key this is",
		detail: "Nothing was done. The operators of the server have to set it up.",
	}
)

// problems are in the order of the policy page.
var problems = []problem{missingKey, malformedKey, unreadableBody, bodyTooLarge, keyReused, inProgress, unresolved, unavailable, notRecorded, takenOver, damaged, noScope}

func (p problem) because(detail string) problem {
	p.detail = detail
	return p
}

// problemOf returns what a caller is told when nothing has run, and whether the
// operators are told as well.
func problemOf(err error) (p problem, report bool) {
	switch {
	case errors.Is(err, idem.ErrMismatch):
		return keyReused, false
	case errors.Is(err, idem.ErrInProgress):
		p := inProgress
		p.retryAfter = comeBackIn(err)
		return p, false
	case errors.Is(err, idem.ErrUnresolved):
		return unresolved, true
	case errors.Is(err, idem.ErrKey):
		return noScope, true // the key has been checked
	case errors.Is(err, idem.ErrCorrupt), errors.Is(err, idem.ErrStoreLost):
		return damaged, true
	}
	return unavailable, true
}

// comeBackIn returns after how many seconds to ask for the answer of a running
// request: in as long as it is known to run, at least a second, and not after its
// lease.
func comeBackIn(err error) int {
	e, ok := errors.AsType[*idem.Error](err)
	if !ok {
		return retrySoon
	}
	return min(seconds(e.RetryAfter()), seconds(e.Record.Age))
}

// seconds rounds up, to one at least.
func seconds(d time.Duration) int {
	return max(1, int((d+time.Second-1)/time.Second))
}

// refuse answers a request with a problem.
func (m *middleware) refuse(w http.ResponseWriter, p problem) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Language", "en")
	h.Set("Cache-Control", "no-store")
	h.Add("Link", fmt.Sprintf(`<%s>; rel="describedby"; type="text/html"`, m.opts.Policy))
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	body, _ := json.Marshal(struct { // strings and a number: cannot fail
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
		Reason string `json:"reason"`
	}{m.opts.Policy + "#" + p.reason, p.title, p.status, p.detail, p.reason})
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.status)
	_, _ = w.Write(body)
}
