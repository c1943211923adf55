package bolt

import (
	"context"
	"fmt"
	"hash/crc32"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
)

// How much one call of List does.
const (
	listLimit = 1000  // entries, where the query has no limit
	listLooks = 10000 // records looked at, so that the transaction stays short
)

// List implements [idem.Lister], in the order in which the records were written.
// A record that is replaced meanwhile moves to the end, so none is passed by.
func (b *Backend) List(ctx context.Context, q idem.Query) (entries []idem.Entry, next string, err error) {
	if err := b.check(ctx); err != nil {
		return nil, "", err
	}
	defer b.leave()
	after, err := parseCursor(q.Cursor)
	if err != nil {
		return nil, "", b.failed("list", err)
	}
	list := func(t table) error {
		entries, next, err = t.list(q, after)
		return err
	}
	if b.bound != nil {
		err = b.bound.view(list)
	} else {
		err = b.view(ctx, list)
	}
	return entries, next, err
}

// list goes through all logs at once, by the numbers of the records.
func (t table) list(q idem.Query, after uint64) (entries []idem.Entry, next string, err error) {
	limit := q.Limit
	if limit < 1 {
		limit = listLimit
	}
	m, err := t.merge(q, after)
	if err != nil {
		return nil, "", err
	}
	for looked := 0; ; looked++ {
		at, v, err := m.next(t)
		switch {
		case err != nil:
			return nil, "", err
		case v == nil:
			return entries, "", nil
		case looked == listLooks || len(entries) == limit:
			return entries, cursor(after), nil
		}
		after = at.seq
		r, err := t.c.live(v, at, string(keyOf(v)))
		if err != nil {
			return nil, "", err
		}
		if key := string(keyOf(v)); r.Token != "" && q.Matches(key, r) {
			entries = append(entries, idem.Entry{Key: key, Record: r})
		}
	}
}

// A merge goes through several logs in the order of the numbers.
type merge []mergeLog

type mergeLog struct {
	name logName
	cur  *bbolt.Cursor
	k, v []byte
}

// merge begins after a number, in the logs that can have what the query selects.
func (t table) merge(q idem.Query, after uint64) (m merge, err error) {
	running := q.Lapsed || q.Status == idem.InProgress
	done := q.Status == idem.Completed || q.Status == idem.Released
	err = t.eachLog(func(name logName, log *bbolt.Bucket) error {
		if running && !name.inProgress() || done && name.inProgress() {
			return nil
		}
		l := mergeLog{name: name, cur: log.Cursor()}
		l.k, l.v = l.cur.Seek(seqKey(after + 1))
		m = append(m, l)
		return nil
	})
	return m, err
}

// next returns the next record, or nil at the end.
func (m merge) next(t table) (at place, v []byte, err error) {
	var first *mergeLog
	for i := range m {
		if l := &m[i]; l.k != nil && (first == nil || string(l.k) < string(first.k)) {
			first = l
		}
	}
	if first == nil {
		return place{}, nil, nil
	}
	at, err = t.place(first.name, first.k, first.v)
	v = first.v
	first.k, first.v = first.cur.Next()
	return at, v, err
}

// cursor returns the cursor after a number. It has a checksum, since another
// backend's, or half of one, must not pass for it.
func cursor(after uint64) string {
	s := fmt.Sprintf("bolt-%016x", after)
	return fmt.Sprintf("%s-%08x", s, crc32.Checksum([]byte(s), castagnoli))
}

func parseCursor(s string) (after uint64, err error) {
	if s == "" {
		return 0, nil
	}
	var sum uint32
	if _, err := fmt.Sscanf(s, "bolt-%016x-%08x", &after, &sum); err != nil || cursor(after) != s {
		return 0, fmt.Errorf("the cursor %q is not from this backend", s)
	}
	return after, nil
}
