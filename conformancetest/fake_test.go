package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

// A storage is a backend for the suite's own tests. It can do whatever the
// suite can test, and do it wrong: fault names what.
type storage struct {
	fault fault

	// frozen time passes by Advance only, which shows what happens at the very
	// moment at which a record expires.
	frozen bool
	// optimistic transactions run side by side and are checked at their commit;
	// otherwise there is one writer at a time.
	optimistic bool

	writer chan struct{} // holds the right to write
	closed chan struct{} // at the end of the test
	began  time.Time

	mu      sync.Mutex
	skipped time.Duration
	records map[string]entry
	changed chan struct{} // closed by the next write
	broken  bool
	writes  uint64
	locks   map[string]chan struct{} // of the fault that locks keys
}

type entry struct {
	record  idem.Record
	written time.Duration
}

type fault string

// A handle is the storage as one process, or one transaction, sees it.
type handle struct {
	*storage
	tx    *tx
	cache map[string]idem.Record // of the fault that keeps one
	late  map[string]idem.Record // of the fault that writes when the caller has left
}

// A tx has what a transaction has written and, for a check at its commit, the
// tokens it has seen.
type tx struct {
	written map[string]entry
	seen    map[string]string
	failed  bool
}

func newStorage(f fault) *storage {
	return &storage{
		fault: f, writer: make(chan struct{}, 1), closed: make(chan struct{}), began: time.Now(),
		records: make(map[string]entry), changed: make(chan struct{}),
	}
}

func (s *storage) is(fs ...fault) bool { return slices.Contains(fs, s.fault) }

// harness returns a Harness with everything, whose storages have the fault.
func harness(f fault, options ...func(*storage)) Harness {
	return Harness{
		New: func(t testing.TB) idem.Backend {
			s := newStorage(f)
			t.Cleanup(func() { close(s.closed) })
			for _, set := range options {
				set(s)
			}
			return &handle{storage: s}
		},
		Peer: func(_ testing.TB, b idem.Backend) idem.Backend { return &handle{storage: b.(*handle).storage} },
		Advance: func(_ testing.TB, b idem.Backend, d time.Duration) {
			s := b.(*handle).storage
			s.mu.Lock()
			defer s.mu.Unlock()
			s.skipped += d
		},
		InTx: func(t testing.TB, b idem.Backend, fn func(idem.Backend) error) error {
			return b.(*handle).inTx(t.Context(), fn)
		},
		Break: func(_ testing.TB, b idem.Backend) func() {
			s := b.(*handle).storage
			set := func(broken bool) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.broken = broken
			}
			set(true)
			return func() { set(false) }
		},
		Writes: func(_ testing.TB, b idem.Backend) uint64 {
			s := b.(*handle).storage
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.writes
		},
	}
}

func (s *storage) now() time.Duration {
	if s.frozen {
		return s.skipped
	}
	return s.skipped + time.Since(s.began)
}

// begin locks the storage for a call.
func (h *handle) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil && !h.is("ignores the context") {
		if h.is("loses the context's error") {
			return errors.New("interrupted")
		}
		return err
	}
	h.mu.Lock()
	if h.broken && !h.is("hides a failure") {
		h.mu.Unlock()
		return errors.New("fake: the storage is broken")
	}
	if h.tx != nil && h.tx.failed {
		h.mu.Unlock()
		return errors.New("fake: the transaction is aborted")
	}
	return nil
}

// key returns the key as the storage takes it.
func (s *storage) key(key string) string {
	switch s.fault {
	case "folds case":
		return strings.ToLower(key)
	case "trims keys":
		return strings.TrimSpace(key)
	case "normalises keys":
		return strings.ReplaceAll(key, "e\u0301", "é")
	case "cuts keys":
		return key[:min(len(key), 255)]
	}
	return key
}

// live returns what is stored under key and not expired.
func (h *handle) live(key string) idem.Record {
	key = h.key(key)
	e, ok := h.records[key]
	if h.tx != nil {
		if own, written := h.tx.written[key]; written && !h.is("hides a transaction's own Swaps") {
			e, ok = own, true
		}
	}
	if h.is("takes keys for patterns") {
		for stored, other := range h.records {
			if match, _ := path.Match(key, stored); match && !ok {
				e, ok = other, true
			}
		}
	}
	if !ok {
		return idem.Record{}
	}
	r := e.record
	r.Age = h.now() - e.written
	if r.Age < 0 && !h.is("lets ages be negative") {
		r.Age = 0
	}
	switch h.fault {
	case "expires too late":
		ok = r.Age <= r.TTL
	case "expires with the lease":
		ok = r.Age < r.TTL && (r.Status != idem.InProgress || r.Age < r.Lease)
	case "adds up times that overflow":
		ok = time.Duration(1<<62)+e.written+r.TTL > time.Duration(1<<62)+h.now()
	case "takes short times for no limit":
		ok = r.Age < r.TTL || r.TTL < time.Millisecond
	default:
		ok = !r.Expired()
	}
	if !ok {
		return idem.Record{}
	}
	return r
}

func (h *handle) out(r idem.Record) idem.Record {
	if h.is("shares what it returns") {
		return r
	}
	return copyRecord(r)
}

func (h *handle) Get(ctx context.Context, key string) (idem.Record, error) {
	if err := h.begin(ctx); err != nil {
		return idem.Record{}, err
	}
	defer h.mu.Unlock()
	if r, ok := h.cache[key]; ok && h.is("reads from a cache") {
		return h.out(r), nil
	}
	if r, ok := h.late[key]; ok {
		delete(h.late, key)
		h.write(key, idem.Record{}, r)
	}
	r := h.live(key)
	if e, ok := h.records[h.key(key)]; ok && r.Token == "" && h.is("returns expired records") {
		r = e.record
		r.Age = h.now() - e.written
	}
	if h.is("reads from a cache") {
		if h.cache == nil {
			h.cache = make(map[string]idem.Record)
		}
		h.cache[key] = r
	}
	if h.tx != nil {
		h.tx.note(h.key(key), r.Token)
	}
	if h.is("makes records younger") && r.Token != "" {
		h.records[h.key(key)] = entry{r, h.now()}
	}
	if h.is("fails for what is absent") && r.Token == "" {
		return r, errors.New("fake: not found")
	}
	return h.out(r), nil
}

// note remembers what a transaction has seen first.
func (t *tx) note(key, token string) {
	if _, ok := t.seen[key]; !ok {
		t.seen[key] = token
	}
}

// lockWriter takes the right to write, except from the transaction that has it.
func (h *handle) lockWriter(ctx context.Context) (unlock func(), err error) {
	if h.tx != nil || h.optimistic {
		return func() {}, nil
	}
	select {
	case h.writer <- struct{}{}:
		return func() { <-h.writer }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (h *handle) Swap(ctx context.Context, key, old string, r idem.Record) (idem.Record, error) {
	if ctx.Err() != nil && h.is("writes although it was cancelled") {
		defer h.Swap(context.WithoutCancel(ctx), key, old, r)
	}
	if err := ctx.Err(); err != nil && !h.is("ignores the context") {
		return idem.Record{}, err
	}
	unlock, err := h.lockWriter(ctx)
	if err != nil {
		return idem.Record{}, err
	}
	defer unlock()
	if err := h.begin(ctx); err != nil {
		return idem.Record{}, err
	}
	defer h.mu.Unlock()
	if end, ok := ctx.Deadline(); ok && time.Until(end) < 100*time.Millisecond && h.is("shares what callers have given who left") {
		<-ctx.Done()
		if h.late == nil {
			h.late = make(map[string]idem.Record)
		}
		h.late[key] = r
		return idem.Record{}, ctx.Err()
	}
	return h.swap(key, old, r)
}

// swap does one Swap. The caller has the storage.
func (h *handle) swap(key, old string, r idem.Record) (idem.Record, error) {
	present := h.live(key)
	if h.is("looks first and writes later") {
		h.others()
	}
	if h.tx != nil {
		h.tx.note(h.key(key), present.Token)
	}
	if e, ok := h.records[h.key(key)]; ok && present.Token == "" && h.is("lets expired records block") {
		present = e.record
	}
	swaps := present.Token == old && present.Token != r.Token
	switch {
	case h.is("ignores the old token"):
		swaps = present.Token != r.Token && (old != "" || present.Token == "")
	case h.is("compares the attempt only"):
		swaps = swaps || old != "" && strings.HasPrefix(present.Token, old[:min(len(old), 1)]) && strings.Contains(old, ".") && len(old) > 20
	case h.is("overwrites") && old == "":
		swaps = true
	case h.is("creates with any token") && present.Token == "":
		swaps = true
	case h.is("writes a repeated Swap again"):
		swaps = swaps || present.Token == r.Token
	case h.is("refuses a repeated Swap") && present.Token == r.Token:
		return idem.Record{}, nil
	}
	if !swaps {
		return h.refused(key, present, r)
	}
	h.write(key, present, r)
	switch {
	case h.is("returns the record before"):
		return h.out(present), nil
	case h.is("shares what it returns"):
		return h.live(key), nil
	}
	return copyRecord(h.live(key)), nil
}

// others lets others have the storage in the middle of a call.
func (h *handle) others() {
	h.mu.Unlock()
	for range 20 {
		runtime.Gosched()
	}
	h.mu.Lock()
}

// refused is what a Swap comes to that does not swap.
func (h *handle) refused(key string, present, r idem.Record) (idem.Record, error) {
	switch {
	case h.is("writes a refused Swap"):
		h.writes++
	case h.is("touches the record in the way") && present.Token != "":
		h.records[h.key(key)] = entry{present, h.now()}
	case h.is("breaks a transaction by a refused Swap") && h.tx != nil && present.Token != r.Token:
		h.tx.failed = true
	case h.is("returns new though it did not swap"):
		return h.out(r), nil
	case h.is("fails on a conflict") && present.Token != "" && present.Token != r.Token:
		return idem.Record{}, errors.New("fake: duplicate key")
	case h.is("fails for what is absent") && present.Token == "":
		return idem.Record{}, errors.New("fake: not found")
	}
	return h.out(present), nil
}

// write stores r in the place of present.
func (h *handle) write(key string, present, r idem.Record) {
	if !h.is("shares what it is given") {
		r = copyRecord(r)
	}
	written := h.now()
	switch h.fault {
	case "drops binary meta":
		for k, v := range r.Result.Meta {
			r.Result.Meta[k] = strings.ToValidUTF8(v, "\ufffd")
		}
	case "drops empty results":
		if len(r.Result.Body) == 1 && r.Result.Body[0] == '0' {
			r.Result.Body = nil
		}
	case "stores floats":
		r.Fence = int64(float64(r.Fence))
	case "stores milliseconds":
		r.Lease = r.Lease.Truncate(time.Millisecond)
	case "keeps what new leaves out":
		if len(r.Checkpoint) == 0 {
			r.Checkpoint = present.Checkpoint
		}
	case "merges meta":
		merged := maps.Clone(present.Result.Meta)
		if merged == nil {
			merged = make(map[string]string)
		}
		maps.Copy(merged, r.Result.Meta)
		r.Result.Meta = merged
	case "keeps what has expired":
		if e, ok := h.records[h.key(key)]; ok && len(r.Result.Body) == 0 {
			r.Result.Body = e.record.Result.Body
		}
	case "counts from the first write":
		if e, ok := h.records[h.key(key)]; ok && present.Token != "" {
			written = e.written
		}
	case "believes the caller's age":
		written -= r.Age
	case "forgets the fingerprint":
		if r.Status == idem.Completed {
			r.Fingerprint = idem.Fingerprint{}
		}
	}
	if h.is("forgets the checkpoint") {
		r.Checkpoint = nil
	}
	if h.is("loses claims") && h.writes%10 == 9 {
		maps.DeleteFunc(h.records, func(other string, _ entry) bool { return other == "k3" })
	}
	if h.is("loses results") && r.Status == idem.Completed {
		r.Result = idem.Result{}
	}
	if h.tx != nil && !h.is("writes through transactions") {
		h.tx.written[h.key(key)] = entry{r, written}
		return
	}
	h.apply(h.key(key), entry{r, written})
}

// apply puts an entry into the storage and wakes the watchers.
func (h *handle) apply(key string, e entry) {
	h.records[key] = e
	h.writes++
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *handle) Sweep(ctx context.Context, limit int) (int, error) {
	unlock, err := h.lockWriter(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { unlock() }()
	if err := h.begin(ctx); err != nil {
		return 0, err
	}
	defer h.mu.Unlock()
	switch {
	case h.is("fails on an empty storage") && len(h.records) == 0:
		return 0, errors.New("fake: no such table")
	case h.is("takes no limit for no end") && limit < 1, h.is("sweeps without a limit"):
		limit = 1 << 30
	case h.is("sweeps in a batch only"):
		limit = min(limit, 50)
	}
	var due []string
	for key, e := range h.records {
		if len(due) >= limit {
			break
		}
		lapsed := h.is("sweeps lapsed claims") && e.record.Status == idem.InProgress && h.now()-e.written >= e.record.Lease
		if h.live(key).Token == "" || lapsed {
			due = append(due, key)
		}
	}
	if h.is("sweeps what was expired before") {
		unlock()
		unlock = func() {}
		h.others()
	}
	for _, key := range due {
		delete(h.records, key)
		h.writes++
	}
	if h.is("counts one too many") && len(due) > 0 {
		return len(due) + 1, nil
	}
	return len(due), nil
}

// inTx runs fn in a transaction.
func (h *handle) inTx(ctx context.Context, fn func(idem.Backend) error) error {
	bound := &handle{storage: h.storage, tx: &tx{written: make(map[string]entry), seen: make(map[string]string)}}
	if !h.optimistic {
		h.writer <- struct{}{}
		defer func() { <-h.writer }()
	}
	if err := fn(bound); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, token := range bound.tx.seen {
		if h.optimistic && h.live(key).Token != token && !h.is("commits in spite of a race") {
			return fmt.Errorf("%w: %q was written by another", idem.ErrRetryTx, key)
		}
	}
	for key, e := range bound.tx.written {
		h.apply(key, e)
	}
	return nil
}
