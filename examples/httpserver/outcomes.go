package main

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemhttp"
)

// An outcome is what became of one request.
type outcome struct {
	At       time.Time // of its end
	Customer string
	Key      string
	Via      string // "form" or "fetch"
	Kind     string // "ran", "replayed", "conflict", "in progress", "refused" or "failed"
	Status   int    // 0 if there was no answer
	Lost     bool   // the answer was not sent
	Takeover bool   // an earlier attempt had ended without a known outcome
}

type outcomeContext struct{}

// observe is told by the store how each operation ended. It notes that for the
// request in whose context it happened; the last one is what counts, for one that
// had to wait.
func observe(ctx context.Context, e idem.Event) {
	o, ok := ctx.Value(outcomeContext{}).(*outcome)
	if !ok {
		return
	}
	switch {
	case e.Op == "begin":
		o.Takeover = e.Takeover
	case e.Op != "do":
	case e.Err == nil && e.Replayed:
		o.Kind = "replayed"
	case e.Err == nil:
		o.Kind = "ran"
	case errors.Is(e.Err, idem.ErrMismatch):
		o.Kind = "conflict"
	case errors.Is(e.Err, idem.ErrInProgress):
		o.Kind = "in progress"
	default:
		o.Kind = ""
	}
}

// watched goes around the middleware, and notes and logs the outcome of each
// request.
func (s *shop) watched(via string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		o := &outcome{Customer: customerOf(r), Via: via, Lost: r.Header.Get(lostReply) != ""}
		o.Key, _ = idemhttp.ParseKey(r.Header.Get(idemhttp.KeyHeader)) // the middleware refuses what is none
		answer := &statusWriter{ResponseWriter: w}
		defer func() { // also of a handler that panics
			o.At, o.Status = time.Now(), answer.status
			if o.Kind == "" && o.Status >= 400 && o.Status < 500 {
				o.Kind = "refused"
			} else if o.Kind == "" {
				o.Kind = "failed"
			}
			s.outcomes.add(*o)
			s.log.Info("order", "outcome", o.Kind, "status", o.Status, "via", o.Via, "customer", o.Customer, "key", o.Key,
				"takeover", o.Takeover, "reply_lost", o.Lost, "took", o.At.Sub(begun).Round(time.Millisecond))
		}()
		next.ServeHTTP(answer, r.WithContext(context.WithValue(r.Context(), outcomeContext{}, o)))
	})
}

// A statusWriter remembers the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// outcomes has the last outcomes of this process, for the page.
type outcomes struct {
	mu   sync.Mutex
	last []outcome
}

const (
	outcomesKept  = 500 // of all customers
	outcomesShown = 24  // ten requests that are told once to come back, and some
)

func (all *outcomes) add(o outcome) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if len(all.last) == outcomesKept {
		all.last = all.last[1:]
	}
	all.last = append(all.last, o)
}

// of returns the last outcomes of a customer, newest first.
func (all *outcomes) of(customer string) []outcome {
	all.mu.Lock()
	defer all.mu.Unlock()
	var own []outcome
	for i := len(all.last) - 1; i >= 0 && len(own) < outcomesShown; i-- {
		if all.last[i].Customer == customer {
			own = append(own, all.last[i])
		}
	}
	return own
}
