// Package memory keeps records in the memory of one process. It is the
// reference implementation of [idem.Backend]: read it before you write another
// one.
//
// What it holds is gone when the process ends, so it protects against
// duplicates within one process only: in tests, in caches in front of something
// that is idempotent itself, or while trying idem out. It has no fixed ceiling;
// expired records are freed by Sweep and, a few at a time, by new ones.
package memory

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/idem-go/idem"
)

// Backend implements [idem.Backend], [idem.Lister], [idem.Watcher] and
// [idem.Batcher].
type Backend struct {
	mu       sync.RWMutex
	records  map[string]entry
	watchers map[string]*watchers
	now      func() time.Time
}

// Watchers of one key share a channel, which the next write of the key closes.
type watchers struct {
	changed chan struct{}
	n       int
}

// An entry is a record and when it was written. Go's monotonic clock makes the
// difference between two such times immune to changes of the wall clock.
type entry struct {
	record  idem.Record
	written time.Time
}

// New returns an empty Backend.
func New() *Backend {
	return &Backend{
		records:  make(map[string]entry),
		watchers: make(map[string]*watchers),
		now:      time.Now,
	}
}

// Get implements [idem.Backend].
func (b *Backend) Get(ctx context.Context, key string) (idem.Record, error) {
	if err := ctx.Err(); err != nil {
		return idem.Record{}, err
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.live(key).Clone(), nil
}

// Swap implements [idem.Backend].
func (b *Backend) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	if err := ctx.Err(); err != nil {
		return idem.Record{}, idem.NoEffect(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.swap(key, old, new), nil
}

// SwapAll implements [idem.Batcher].
func (b *Backend) SwapAll(ctx context.Context, swaps []idem.Swap) []idem.Swapped {
	swapped := make([]idem.Swapped, len(swaps))
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, sw := range swaps {
		if err := ctx.Err(); err != nil {
			swapped[i].Err = idem.NoEffect(err)
			continue
		}
		swapped[i].Record = b.swap(sw.Key, sw.Old, sw.New)
	}
	return swapped
}

// swap does one Swap. b.mu is held.
func (b *Backend) swap(key, old string, new idem.Record) idem.Record {
	present := b.live(key)
	if present.Token != old || present.Token == new.Token {
		return present.Clone()
	}
	new.Age = 0
	if _, ok := b.records[key]; !ok {
		key = strings.Clone(key)
	}
	b.records[key] = entry{new.Clone(), b.now()}
	b.wake(key)
	b.free(2)
	return new
}

// wake tells those who watch key that its record has changed.
func (b *Backend) wake(key string) {
	if w, ok := b.watchers[key]; ok {
		close(w.changed)
		delete(b.watchers, key)
	}
}

// live returns the record under key with its age, or the zero Record if there
// is none or it is expired. The result shares memory with what is stored.
func (b *Backend) live(key string) idem.Record {
	e, ok := b.records[key]
	if !ok {
		return idem.Record{}
	}
	e.record.Age = max(0, b.now().Sub(e.written))
	if e.record.Expired() {
		return idem.Record{}
	}
	return e.record
}

// free looks at n records, whichever the map begins with, and deletes those that
// are expired. Done with every write it keeps a store that nobody sweeps from
// growing without end.
func (b *Backend) free(n int) {
	for key := range b.records {
		if n--; n < 0 {
			return
		}
		b.deleteExpired(key)
	}
}

// deleteExpired deletes the record under key if it is expired, and reports
// whether it was.
func (b *Backend) deleteExpired(key string) bool {
	if b.live(key).Token != "" {
		return false
	}
	delete(b.records, key)
	b.wake(key)
	return true
}

// Sweep implements [idem.Backend].
func (b *Backend) Sweep(ctx context.Context, limit int) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for key := range b.records {
		if n >= limit {
			break
		}
		if b.deleteExpired(key) {
			n++
		}
	}
	return n, nil
}

// cursorMark begins every cursor; the last key of the page before follows.
const cursorMark = "after:"

// List implements [idem.Lister], in the order of the keys. A call looks at every
// record, whatever the limit, which is 1,000 where q has none.
func (b *Backend) List(ctx context.Context, q idem.Query) ([]idem.Entry, string, error) {
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	after, ok := strings.CutPrefix(q.Cursor, cursorMark)
	if !ok && q.Cursor != "" {
		return nil, "", fmt.Errorf("memory: list: cursor %q is not from this backend", q.Cursor)
	}
	limit := q.Limit
	if limit < 1 {
		limit = 1000
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	var keys []string
	for key := range b.records {
		if r := b.live(key); key > after && r.Token != "" && q.Matches(key, r) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	next := ""
	if len(keys) > limit {
		keys = keys[:limit]
		next = cursorMark + keys[limit-1]
	}
	entries := make([]idem.Entry, 0, len(keys))
	for _, key := range keys {
		// The clock has moved on: what has expired since is not returned.
		if r := b.live(key); r.Token != "" && q.Matches(key, r) {
			entries = append(entries, idem.Entry{Key: key, Record: r.Clone()})
		}
	}
	return entries, next, nil
}

// Watch implements [idem.Watcher].
func (b *Backend) Watch(ctx context.Context, key, token string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	if b.live(key).Token != token {
		b.mu.Unlock()
		return nil
	}
	w, ok := b.watchers[key]
	if !ok {
		w = &watchers{changed: make(chan struct{})}
		b.watchers[strings.Clone(key)] = w
	}
	w.n++
	b.mu.Unlock()
	select {
	case <-w.changed:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.n--; w.n == 0 && b.watchers[key] == w {
		delete(b.watchers, key)
	}
	return ctx.Err()
}
