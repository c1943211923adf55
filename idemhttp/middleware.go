package idemhttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/idem-go/idem"
)

// Middleware returns a wrapper for handlers whose operations are to happen once
// per key. See the documentation of the package for what a client is told, and
// [Options] for what can be chosen.
//
// It panics if store is nil or the options are out of range, as that is a mistake
// in the program.
func Middleware(store *idem.Store, opts *Options) func(http.Handler) http.Handler {
	m, err := newMiddleware(store, opts)
	if err != nil {
		panic("idemhttp: middleware: " + err.Error())
	}
	return func(next http.Handler) http.Handler {
		if next == nil {
			panic("idemhttp: middleware: there is no handler")
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

type middleware struct {
	store *idem.Store
	opts  Options
	limit int // bytes of an answer that are kept
}

func newMiddleware(store *idem.Store, opts *Options) (*middleware, error) {
	if store == nil {
		return nil, fmt.Errorf("%w: there is no store", idem.ErrOptions)
	}
	if opts == nil {
		opts = &Options{}
	}
	o, err := opts.withDefaults()
	return &middleware{store: store, opts: o, limit: store.Options().MaxResult}, err
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !slices.Contains(m.opts.Methods, r.Method) {
		next.ServeHTTP(w, r)
		return
	}
	key, err := requestKey(r.Header)
	switch {
	case err == nil:
	case err != errNoKey:
		m.refuse(w, malformedKey.because("Nothing was done: "+err.Error()+"."))
		return
	case m.opts.Required:
		m.refuse(w, missingKey)
		return
	default:
		next.ServeHTTP(w, r)
		return
	}
	if run := runningFrom(r.Context()); run != nil && run.claim.Key == key {
		// A Middleware around this one has the claim; a second one would wait for
		// the first.
		next.ServeHTTP(w, r)
		return
	}
	store := m.storeFor(r)
	if store == nil {
		m.report(r, errNoScope)
		m.refuse(w, noScope)
		return
	}
	body, err := m.readBody(w, r)
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			m.refuse(w, bodyTooLarge.because(fmt.Sprintf("A request with an Idempotency-Key may have a body of %d bytes. Nothing was done.", m.opts.MaxBody)))
		} else {
			m.refuse(w, unreadableBody)
		}
		return
	}
	op := &operation{middleware: m, w: w, r: r, body: body, next: next, store: store}
	op.do(key, m.opts.Fingerprint(r, body))
}

var errNoScope = errors.New("the request carries credentials and an Idempotency-Key, but Options has neither Scope nor SharedKeys: callers would get each other's answers; it was refused")

// storeFor returns the store with the keys of the caller, or nil if callers who
// must not share their keys cannot be told apart.
func (m *middleware) storeFor(r *http.Request) *idem.Store {
	if m.opts.Scope != nil {
		return m.store.Scoped(m.opts.Scope(r))
	}
	if !m.opts.SharedKeys && hasCredentials(r) {
		return nil
	}
	return m.store
}

func hasCredentials(r *http.Request) bool {
	for _, name := range []string{"Authorization", "Cookie", "X-Api-Key"} {
		if len(r.Header[name]) > 0 {
			return true
		}
	}
	return r.TLS != nil && len(r.TLS.PeerCertificates) > 0
}

// readBody returns the whole body of a request.
func (m *middleware) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if r.ContentLength > m.opts.MaxBody {
		return nil, &http.MaxBytesError{Limit: m.opts.MaxBody}
	}
	return io.ReadAll(http.MaxBytesReader(w, r.Body, m.opts.MaxBody))
}

func (m *middleware) report(r *http.Request, err error) {
	m.opts.Log.ErrorContext(r.Context(), "idemhttp: "+err.Error(), "method", r.Method, "path", r.URL.Path)
}

// An operation is one request with a key.
type operation struct {
	*middleware
	w     http.ResponseWriter
	r     *http.Request
	body  []byte
	next  http.Handler
	store *idem.Store
	rec   *recorder // set when the handler has run
}

// Why a handler's answer is not recorded.
var (
	errReleased  = errors.New("idemhttp: the handler's answer says that nothing happened")
	errAbandoned = errors.New("idemhttp: the handler's answer does not say what happened")
)

// do answers the request: from the record, from the handler, or with a problem.
func (op *operation) do(key string, fp idem.Fingerprint) {
	deadline := time.Now().Add(op.opts.Wait)
	impatient := op.store.NoWait()
	out, err := impatient.Do(op.r.Context(), key, fp, op.run)
	for op.rec == nil && errors.Is(err, idem.ErrInProgress) && op.wait(key, deadline) {
		out, err = impatient.Do(op.r.Context(), key, fp, op.run)
	}
	switch {
	case op.rec == nil && err == nil:
		op.replay(op.w, out.Result)
	case op.rec == nil:
		p, report := problemOf(err)
		if report && op.r.Context().Err() == nil { // else it was the client who failed
			op.report(op.r, err)
		}
		op.refuse(op.w, p)
	case err == nil || err == errReleased || err == errAbandoned:
		op.rec.send()
	default:
		op.notRecorded(err)
	}
}

// wait waits for the end of a running duplicate and reports whether to ask again.
func (op *operation) wait(key string, deadline time.Time) bool {
	if !time.Now().Before(deadline) {
		return false
	}
	ctx, cancel := context.WithDeadline(op.r.Context(), deadline)
	defer cancel()
	return op.store.Wait(ctx, key) == nil
}

// run is the function that runs under the claim.
func (op *operation) run(ctx context.Context, c *idem.Claim) (idem.Result, error) {
	op.rec = newRecorder(op.w, op.limit)
	run := &running{store: op.store, claim: c}
	r := op.request(context.WithValue(ctx, runningKey{}, run))
	op.next.ServeHTTP(op.rec, r)
	if r.MultipartForm != nil {
		_ = r.MultipartForm.RemoveAll() // the server does that for its own copy of the request only
	}
	op.rec.end()
	switch op.ending(r) {
	case Record:
		if run.completed != nil && op.rec.answers(*run.completed) {
			return *run.completed, nil
		}
		return op.rec.result(op.opts.Headers), nil
	case Omit:
		return omitted(op.rec.result(op.opts.Headers)), nil
	case Release:
		return idem.Result{}, idem.NoEffect(errReleased)
	}
	return idem.Result{}, errAbandoned
}

// request returns the request for the handler, which can read the body again. It
// does not ask for a compressed answer: what is stored has to be readable for
// whoever retries.
func (op *operation) request(ctx context.Context) *http.Request {
	r := op.r.WithContext(ctx)
	r.Header = op.r.Header.Clone()
	r.Header.Del("Accept-Encoding")
	r.Body = io.NopCloser(bytes.NewReader(op.body))
	if len(op.body) == 0 {
		r.Body = http.NoBody
	}
	r.ContentLength = int64(len(op.body))
	r.TransferEncoding = nil
	return r
}

func (op *operation) ending(r *http.Request) Ending {
	if op.opts.Ending != nil {
		if e := op.opts.Ending(r, op.rec.status, op.rec.sent.Clone()); e != 0 {
			return e
		}
	}
	return DefaultEnding(op.rec.status)
}

// notRecorded answers a request whose operation was done without a record of it.
// A client gets no answer that a retry would not get.
func (op *operation) notRecorded(err error) {
	refused, _ := errors.AsType[*idem.Error](err)
	switch {
	case errors.Is(err, idem.ErrCompleted) && refused != nil:
		// The handler has completed the claim itself, or somebody has resolved
		// it. That is what a retry gets.
		if !op.rec.through {
			WriteResult(op.w, refused.Record.Result)
		}
		return
	case op.rec.through:
		op.rec.send() // it is on its way, and cannot be called back
	case errors.Is(err, idem.ErrLost):
		op.refuse(op.w, takenOver)
	default:
		op.refuse(op.w, notRecorded)
	}
	op.report(op.r, err)
}
