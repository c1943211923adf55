package janitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/idem-go/idem"
)

// A Report tells what one run has done.
type Report struct {
	Swept     int // expired records that were deleted
	Recovered int // lapsed claims that Recover had a result for; they are completed
	Freed     int // lapsed claims of which Recover said NoEffect; their keys are free

	// Unresolved counts the lapsed claims that were found and are left: those that
	// Recover failed for and those that wait for their next try. Oldest is for how
	// long the oldest of them has been open, as far as this janitor has seen.
	Unresolved int
	Oldest     time.Duration

	// Errors has what went wrong, the first 100. An error that is about a key
	// is an *idem.Error with that key.
	Errors []error

	// Incomplete tells that the run ended before everything was seen: its
	// budget was spent, the janitor was stopped, or the storage failed. If runs
	// often are, the janitor cannot keep up: give it a larger Budget.
	Incomplete bool

	Duration time.Duration
}

// mostErrors is how many errors a Report has.
const mostErrors = 100

// panicked is the error of a call that has panicked.
type panicked struct {
	value any
	stack []byte
}

func (e *panicked) Error() string { return fmt.Sprintf("panic: %v", e.value) }

func (e *panicked) Unwrap() error {
	err, _ := e.value.(error)
	return err
}

// A reporter collects a Report while several recoveries run, and logs.
type reporter struct {
	mu  sync.Mutex
	log *slog.Logger
	Report
}

func (r *reporter) swept(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Swept += n
}

// incomplete notes that the run did not come to its end.
func (r *reporter) incomplete() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Incomplete = true
}

// failed notes a call of the backend that went wrong. That the janitor is being
// stopped is no error.
func (r *reporter) failed(ctx context.Context, op string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Incomplete = true
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return
	}
	r.Errors = append(r.Errors, &idem.Error{Op: op, Err: err})
	r.log.LogAttrs(ctx, slog.LevelWarn, "janitor: "+op+" failed; it is tried again in the next run", withError(nil, err)...)
}

// completed notes that a claim has got a result.
func (r *reporter) completed(ctx context.Context, e idem.Entry, result idem.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Recovered++
	r.log.LogAttrs(ctx, slog.LevelInfo, "janitor: recovered", append(about(e), slog.Int("code", result.Code))...)
}

// freed notes that a key is free because nothing had happened, as err says.
func (r *reporter) freed(ctx context.Context, e idem.Entry, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Freed++
	r.log.LogAttrs(ctx, slog.LevelInfo, "janitor: freed, nothing had happened", withError(about(e), err)...)
}

// leave notes a claim that is left open since a while. If that is because of an
// error, next is when it is tried again.
func (r *reporter) leave(ctx context.Context, e idem.Entry, since, next time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Unresolved++
	r.Oldest = max(r.Oldest, time.Since(since))
	if err == nil || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return
	}
	_, key := idem.SplitKey(e.Key)
	// The key is said once: an error of the Store about it has it as well.
	if about, ok := err.(*idem.Error); ok && about.Key == key {
		err = about.Err
	}
	if len(r.Errors) < mostErrors {
		r.Errors = append(r.Errors, &idem.Error{Op: "recover", Key: key, Record: e.Record, Err: err})
	}
	r.log.LogAttrs(ctx, slog.LevelWarn, "janitor: left unresolved",
		withError(append(about(e), slog.Duration("open", time.Since(since)), slog.Duration("retry_in", time.Until(next))), err)...)
}

// about returns the attributes that say which claim is spoken of.
func about(e idem.Entry) []slog.Attr {
	scope, key := idem.SplitKey(e.Key)
	attrs := make([]slog.Attr, 0, 8)
	if len(scope) > 0 {
		attrs = append(attrs, slog.Any("scope", scope))
	}
	return append(attrs, slog.String("key", key), slog.Int("attempt", e.Record.Attempt))
}

func withError(attrs []slog.Attr, err error) []slog.Attr {
	attrs = append(attrs, slog.String("error", err.Error()))
	if p, ok := errors.AsType[*panicked](err); ok {
		attrs = append(attrs, slog.String("stack", string(p.stack)))
	}
	return attrs
}

// end returns the finished report.
func (r *reporter) end(ctx context.Context, took time.Duration) Report {
	r.Duration = took
	r.log.LogAttrs(ctx, slog.LevelDebug, "janitor: run",
		slog.Int("swept", r.Swept), slog.Int("recovered", r.Recovered), slog.Int("freed", r.Freed),
		slog.Int("unresolved", r.Unresolved), slog.Duration("oldest", r.Oldest), slog.Int("errors", len(r.Errors)),
		slog.Bool("incomplete", r.Incomplete), slog.Duration("duration", r.Duration))
	return r.Report
}
