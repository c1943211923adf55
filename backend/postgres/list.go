package postgres

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/idem-go/idem"
)

// cursorMark begins every cursor; the last key that was looked at follows.
const cursorMark = "pg1."

const (
	listLimit = 1000
	// lookAt bounds how many records one call of List looks at, so that a query
	// that few of them match does not keep a connection busy for long.
	lookAt = 10_000
	// lookPerEntry bounds the same for a query with a filter and a small limit.
	lookPerEntry = 4
)

// List implements [idem.Lister], in the order of the keys. A call looks at 10,000
// records at most, and with a small limit at four for each entry of it; a listing of
// few among many goes through the whole table in such steps.
func (b *Backend) List(ctx context.Context, q idem.Query) ([]idem.Entry, string, error) {
	if err := ctx.Err(); err != nil {
		return nil, "", fmt.Errorf("postgres: list: %w", err)
	}
	after := ""
	if q.Cursor != "" {
		text, ok := strings.CutPrefix(q.Cursor, cursorMark)
		last, err := base64.RawURLEncoding.Strict().DecodeString(text)
		if after = string(last); !ok || err != nil || after == "" || len(after) > idem.MaxStoredKey || !utf8.ValidString(after) {
			return nil, "", fmt.Errorf("postgres: list: cursor %q is not from this backend", q.Cursor)
		}
	}
	limit := q.Limit
	if limit < 1 {
		limit = listLimit
	}
	limit = min(limit, lookAt)
	// What is looked at costs time whether it is returned or not: in small pages no
	// more than they are likely to need.
	atMost := limit
	if q.Status != 0 || q.Lapsed {
		atMost = min(lookAt, lookPerEntry*limit)
	}
	from, to := keyRange(q.Prefix)
	args := []any{after, from, to, int64(atMost), int64(limit), int64(q.Status), q.Lapsed}

	var entries []idem.Entry
	var looked int64
	var last *string
	for {
		entries, looked, last = nil, 0, nil
		err := b.src.with(ctx, func(s session) error {
			return s.query(ctx, b.sql.list, args, func(scan func(...any) error) error {
				var n int64
				var key *string
				rep, err := scanReply(scan, &n, &key)
				switch {
				case err != nil:
					return err
				case rep.outcome == present:
					entries = append(entries, idem.Entry{Key: *key, Record: *rep.record})
				default:
					looked, last = n, key
				}
				return nil
			})
		})
		if err == nil {
			break
		}
		if !conflict(err) || ctx.Err() != nil {
			return nil, "", b.failed(ctx, "list", err)
		}
	}

	// The server joins in whatever order it likes.
	slices.SortFunc(entries, func(x, y idem.Entry) int { return strings.Compare(x.Key, y.Key) })
	next := ""
	switch {
	case len(entries) == limit:
		next = entries[limit-1].Key
	case looked == int64(atMost):
		next = *last
	}
	if next != "" {
		next = cursorMark + base64.RawURLEncoding.EncodeToString([]byte(next))
	}
	// A prefix is bytes and may end within a character; and the clock has moved
	// on since the rows were chosen.
	matching := entries[:0]
	for _, e := range entries {
		if q.Matches(e.Key, e.Record) && !e.Record.Expired() {
			matching = append(matching, e)
		}
	}
	return matching, next, nil
}

// keyRange returns bounds in which all keys with the prefix lie: from inclusive,
// to exclusive.
func keyRange(prefix string) (from, to string) {
	// Parameters are text, in which only whole characters can be said.
	for !utf8.ValidString(prefix) {
		prefix = prefix[:len(prefix)-1]
	}
	if strings.IndexByte(prefix, 0) >= 0 {
		return "", "" // in no key
	}
	// Nothing of the length of a key is larger.
	return prefix, prefix + strings.Repeat("\U0010FFFF", idem.MaxStoredKey/4+1)
}
