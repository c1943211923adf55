package idem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// Call is [Store.Do] for a request and a response that are JSON: it runs fn once
// for the key, stores its response, and returns that to every later call with
// the key and the same request. The request's fingerprint is that of its JSON.
//
// A later caller gets the response as it comes back from JSON: fields that JSON
// does not carry are zero. If the response was too large to be stored, cannot be
// encoded, or is erased, the operation is done all the same, and later callers get
// [ErrNotRecorded].
func Call[Req, Resp any](ctx context.Context, s *Store, key string, req Req, fn func(context.Context, Req) (Resp, error)) (Resp, error) {
	var fresh, stored Resp
	if fn == nil {
		return stored, s.fail("call", key, Record{}, errNoFunction)
	}
	doc, err := json.Marshal(req)
	if err != nil {
		return stored, s.fail("call", key, Record{}, fmt.Errorf("%w: the request cannot be encoded: %w", ErrOptions, err))
	}
	fp, err := FingerprintJSON(doc)
	if err != nil {
		return stored, s.fail("call", key, Record{}, fmt.Errorf("%w: %w", ErrOptions, err))
	}
	if _, err := json.Marshal(stored); err != nil {
		if _, never := errors.AsType[*json.UnsupportedTypeError](err); never {
			return stored, s.fail("call", key, Record{}, fmt.Errorf("%w: no response of type %T can be encoded: %w", ErrOptions, stored, err))
		}
	}
	var notEncoded error
	out, err := s.Do(ctx, key, fp, func(ctx context.Context, _ *Claim) (r Result, err error) {
		if fresh, err = fn(ctx, req); err != nil {
			return Result{}, err
		}
		if r.Body, notEncoded = json.Marshal(fresh); notEncoded != nil {
			r = Result{Omitted: true}
		}
		return r, nil
	})
	switch {
	case err != nil && !errors.Is(err, ErrNotRecorded):
		return stored, err
	case err != nil:
		return fresh, err
	case notEncoded != nil:
		return fresh, s.fail("call", key, Record{}, fmt.Errorf("%w: the response cannot be encoded: %w", ErrNotRecorded, notEncoded))
	case !out.Replayed:
		return fresh, nil
	case out.Result.Omitted:
		return stored, s.fail("call", key, Record{}, fmt.Errorf("%w: attempt %d was done, but its response is not stored: it was too large, or is erased", ErrNotRecorded, out.Attempt))
	}
	if err := json.Unmarshal(out.Result.Body, &stored); err != nil {
		return stored, s.fail("call", key, Record{}, fmt.Errorf("%w: the stored response is not of type %T: %w", ErrCorrupt, stored, err))
	}
	return stored, nil
}
