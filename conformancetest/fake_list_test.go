package conformancetest

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/idem-go/idem"
)

func (h *handle) List(ctx context.Context, q idem.Query) (entries []idem.Entry, next string, err error) {
	if err := h.begin(ctx); err != nil {
		return nil, "", err
	}
	defer h.mu.Unlock()
	after, ok := strings.CutPrefix(q.Cursor, "after:")
	if !ok && q.Cursor != "" && !h.is("starts again at a bad cursor") {
		return nil, "", errors.New("fake: bad cursor")
	}
	if q.Limit < 1 {
		q.Limit = 10
	}
	if h.is("lists one too many") {
		q.Limit++
	}
	var keys []string
	for key := range h.records {
		if key > after {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for i, key := range keys {
		if h.is("skips at the page's end") && i == q.Limit && len(keys) > i+1 {
			return entries, "after:" + key, nil
		}
		if i == q.Limit { // of records looked at, so that pages may be empty
			if h.is("ends at an empty page") && len(entries) == 0 {
				return nil, "", nil
			}
			return entries, "after:" + keys[i-1], nil
		}
		if r := h.listed(key); r.Token != "" && h.matches(q, key, r) {
			entries = append(entries, idem.Entry{Key: key, Record: h.out(r)})
		}
	}
	if h.is("has a cursor at the end") && len(keys) > 0 {
		return entries, "after:", nil
	}
	return entries, "", nil
}

func (h *handle) listed(key string) idem.Record {
	r := h.live(key)
	if r.Token == "" && h.is("lists expired records") {
		r = h.records[key].record
		r.Age = h.now() - h.records[key].written
	}
	if h.is("lists records without meta") {
		r.Result.Meta = nil
	}
	if h.is("lists records without age") {
		r.Age = 0
	}
	return r
}

func (h *handle) matches(q idem.Query, key string, r idem.Record) bool {
	switch h.fault {
	case "lists any prefix":
		q.Prefix = ""
	case "lists prefixes of any case":
		key, q.Prefix = strings.ToLower(key), strings.ToLower(q.Prefix)
	case "lists any status":
		q.Status = 0
	case "lists what is not lapsed":
		q.Lapsed = false
	}
	return q.Matches(key, r)
}

func (h *handle) Watch(ctx context.Context, key, token string) error {
	if h.is("watches without a context") {
		ctx = context.Background()
	}
	for first := true; ; first = false {
		if err := h.begin(ctx); err != nil {
			return err
		}
		r, changed := h.live(key), h.changed
		h.mu.Unlock()
		if h.is("watches for ever") {
			changed = nil
		} else if r.Token != token && !(first && h.is("watches what has changed already")) {
			return nil
		}
		select {
		case <-changed:
		case <-h.closed:
			return nil
		case <-ctx.Done():
			if h.is("hides the context's end") {
				return errors.New("fake: interrupted")
			}
			return ctx.Err()
		}
	}
}
