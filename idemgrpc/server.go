package idemgrpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/idem-go/idem"
)

// UnaryServerInterceptor returns an interceptor for servers whose operations are to
// happen once per key. See the documentation of the package for what a client is
// told, and [Options] for what can be chosen.
//
// What is about one call and not about the operation, such as authentication,
// limits and logs, belongs before it in the chain.
//
// It panics if store is nil or the options are out of range, as that is a mistake
// in the program.
func UnaryServerInterceptor(store *idem.Store, opts *Options) grpc.UnaryServerInterceptor {
	if store == nil {
		panic("idemgrpc: there is no store")
	}
	if opts == nil {
		opts = &Options{}
	}
	o, err := opts.withDefaults()
	if err != nil {
		panic("idemgrpc: " + err.Error())
	}
	return (&interceptor{store: store, opts: o}).intercept
}

type interceptor struct {
	store *idem.Store
	opts  Options
}

func (i *interceptor) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !i.opts.Methods(info.FullMethod) {
		return handler(ctx, req)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	key, err := keyIn(md)
	switch {
	case err == nil:
	case err != errNoKey:
		return nil, malformedKey.because(fmt.Sprintf("the metadata %s: %v; nothing was done", KeyMetadata, err)).err()
	case i.opts.Required:
		return nil, missingKey.err()
	default:
		return handler(ctx, req)
	}
	call := &call{interceptor: i, method: info.FullMethod, req: req, handler: handler}
	if call.store = i.storeFor(ctx, md); call.store == nil {
		call.report(ctx, errNoScope)
		return nil, noScope.err()
	}
	message := asProto(req)
	if message == nil {
		return nil, notProto.err()
	}
	body, err := encode.Marshal(message)
	if err != nil {
		return nil, notProto.err()
	}
	return call.do(ctx, key, idem.FingerprintOf([]byte("grpc"), []byte(info.FullMethod), body))
}

var errNoScope = errors.New("the call carries credentials and an " + KeyMetadata + ", but Options has neither Scope nor SharedKeys: callers would get each other's answers; it was refused")

// storeFor returns the store with the keys of the caller, or nil if callers who
// must not share their keys cannot be told apart.
func (i *interceptor) storeFor(ctx context.Context, md metadata.MD) *idem.Store {
	if i.opts.Scope != nil {
		return i.store.Scoped(i.opts.Scope(ctx))
	}
	if !i.opts.SharedKeys && hasCredentials(ctx, md) {
		return nil
	}
	return i.store
}

func hasCredentials(ctx context.Context, md metadata.MD) bool {
	for _, name := range []string{"authorization", "cookie", "x-api-key"} {
		if len(md.Get(name)) > 0 {
			return true
		}
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	return ok && len(info.State.PeerCertificates) > 0
}

// A call is one with a key.
type call struct {
	*interceptor
	method  string
	req     any
	handler grpc.UnaryHandler
	store   *idem.Store

	ran    bool // the handler has
	resp   any  // what it returned
	err    error
	record bool // its answer is to be recorded
}

// Why a handler's answer is not recorded.
var (
	errReleased  = errors.New("idemgrpc: the handler's answer says that nothing happened")
	errAbandoned = errors.New("idemgrpc: the handler's answer does not say what happened")
)

// do answers the call: from the record, from the handler, or with a refusal.
func (c *call) do(ctx context.Context, key string, fp idem.Fingerprint) (any, error) {
	deadline := time.Now().Add(c.opts.Wait)
	impatient := c.store.NoWait()
	out, err := impatient.Do(ctx, key, fp, c.run)
	for !c.ran && errors.Is(err, idem.ErrInProgress) && c.wait(ctx, key, deadline) {
		out, err = impatient.Do(ctx, key, fp, c.run)
	}
	switch {
	case !c.ran && err == nil:
		return c.replay(ctx, out.Result)
	case !c.ran:
		r, report := refusalOf(err)
		if report {
			c.report(ctx, err)
		}
		return nil, r.err()
	case c.record && err != nil:
		return c.notRecorded(ctx, err)
	}
	return c.resp, c.err
}

// wait waits for the end of a running duplicate and reports whether to ask again.
func (c *call) wait(ctx context.Context, key string, deadline time.Time) bool {
	if !time.Now().Before(deadline) {
		return false
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return c.store.Wait(ctx, key) == nil
}

// run is the function that runs under the claim.
func (c *call) run(ctx context.Context, claim *idem.Claim) (idem.Result, error) {
	c.ran = true
	run := &running{store: c.store, claim: claim}
	ctx = context.WithValue(ctx, runningKey{}, run)
	var sent recorder
	if stream := grpc.ServerTransportStreamFromContext(ctx); stream != nil && len(c.opts.Metadata) > 0 {
		sent.ServerTransportStream = stream
		ctx = grpc.NewContextWithServerTransportStream(ctx, &sent)
	}
	c.resp, c.err = c.handler(ctx, c.req)
	s, ok := status.FromError(c.err)
	if !ok { // as the server does with it
		s = status.FromContextError(c.err)
	}
	switch ending := c.ending(s.Code()); ending {
	case Record, Omit:
		c.record = true
		if run.completed != nil && s.Code() == codes.OK {
			c.resp, c.err = answerOf(*run.completed)
			return *run.completed, nil
		}
		r, err := resultOf(c.resp, s)
		if err != nil {
			// It was done all the same, and must not be again.
			c.report(ctx, err)
			r = idem.Result{Code: int(s.Code()), Omitted: true}
		}
		if ending == Omit && s.Code() == codes.OK {
			r = idem.Result{Code: r.Code, Omitted: true}
		}
		sent.addTo(&r, c.opts.Metadata)
		return r, nil
	case Release:
		return idem.Result{}, idem.NoEffect(errReleased)
	}
	if c.err == nil {
		return idem.Result{}, errAbandoned
	}
	return idem.Result{}, c.err // which may say by itself that it had no effect
}

func (c *call) ending(code codes.Code) Ending {
	if c.opts.Ending != nil {
		if e := c.opts.Ending(c.method, code); e != 0 {
			return e
		}
	}
	return DefaultEnding(code)
}

// replay answers with what was stored before.
func (c *call) replay(ctx context.Context, r idem.Result) (any, error) {
	resp, err := answerOf(r)
	if errors.Is(err, idem.ErrCorrupt) {
		c.report(ctx, err)
		return nil, damaged.err()
	}
	header := kept(r, metaHeader)
	header.Set(ReplayedHeader, "true")
	// A client that is gone asks again.
	_ = grpc.SetHeader(ctx, header)
	_ = grpc.SetTrailer(ctx, kept(r, metaTrailer))
	return resp, err
}

// notRecorded answers a call whose operation was done without a record of it. A
// client gets no answer that a retry would not get.
func (c *call) notRecorded(ctx context.Context, err error) (any, error) {
	c.report(ctx, err)
	refused, _ := errors.AsType[*idem.Error](err)
	switch {
	case errors.Is(err, idem.ErrCompleted) && refused != nil:
		// The handler has completed the claim itself, or somebody has resolved
		// it. That is what a retry gets.
		return answerOf(refused.Record.Result)
	case errors.Is(err, idem.ErrLost):
		return nil, takenOver.err()
	}
	return nil, notRecorded.err()
}

func (c *call) report(ctx context.Context, err error) {
	c.opts.Log.ErrorContext(ctx, "idemgrpc: "+err.Error(), "method", c.method)
}

// A recorder notes the headers and trailers that a handler sends.
type recorder struct {
	grpc.ServerTransportStream

	mu              sync.Mutex
	header, trailer metadata.MD
}

func (r *recorder) SetHeader(md metadata.MD) error {
	r.mu.Lock()
	r.header = metadata.Join(r.header, md)
	r.mu.Unlock()
	return r.ServerTransportStream.SetHeader(md)
}

func (r *recorder) SendHeader(md metadata.MD) error {
	r.mu.Lock()
	r.header = metadata.Join(r.header, md)
	r.mu.Unlock()
	return r.ServerTransportStream.SendHeader(md)
}

func (r *recorder) SetTrailer(md metadata.MD) error {
	r.mu.Lock()
	r.trailer = metadata.Join(r.trailer, md)
	r.mu.Unlock()
	return r.ServerTransportStream.SetTrailer(md)
}

// addTo adds what is kept of them to a result.
func (r *recorder) addTo(result *idem.Result, names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if result.Meta == nil {
		result.Meta = map[string]string{}
	}
	keep(result, metaHeader, r.header, names)
	keep(result, metaTrailer, r.trailer, names)
}
