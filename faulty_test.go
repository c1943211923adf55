package idem_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

var errBroken = errors.New("wire broke")

// A script decides what becomes of the calls of a backend. It is given the call
// and how often its method has been called before.
type script func(method string, n int, rec idem.Record) fate

type fate int

const (
	fine  fate = iota
	lost       // the request is lost: not executed, an error
	muted      // the reply is lost: executed, an error
	hung       // no answer until the context is done, not executed
	never      // surely not executed, and says so
)

// faulty is a backend whose wire breaks as the script says. It counts calls.
type faulty struct {
	idem.Backend
	mu     sync.Mutex
	script script
	calls  map[string]int
}

func newFaulty(b idem.Backend, s script) *faulty {
	return &faulty{Backend: b, script: s, calls: map[string]int{}}
}

func (f *faulty) fate(method string, rec idem.Record) fate {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.calls[method]
	f.calls[method]++
	if f.script == nil {
		return fine
	}
	return f.script(method, n, rec)
}

func (f *faulty) count(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[method]
}

func (f *faulty) Get(ctx context.Context, key string) (idem.Record, error) {
	switch f.fate("Get", idem.Record{}) {
	case fine:
		return f.Backend.Get(ctx, key)
	case hung:
		<-ctx.Done()
		return idem.Record{}, ctx.Err()
	}
	return idem.Record{}, errBroken
}

func (f *faulty) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	switch f.fate("Swap", new) {
	case fine:
		return f.Backend.Swap(ctx, key, old, new)
	case muted:
		if _, err := f.Backend.Swap(ctx, key, old, new); err != nil {
			return idem.Record{}, err
		}
	case hung:
		<-ctx.Done()
		return idem.Record{}, ctx.Err()
	case never:
		return idem.Record{}, idem.NoEffect(errBroken)
	}
	return idem.Record{}, errBroken
}

// during applies a fate to the writes of records in one status, but for the
// first few.
func during(status idem.Status, skip int, what fate) script {
	seen := 0
	return func(method string, _ int, rec idem.Record) fate {
		if method != "Swap" || rec.Status != status {
			return fine
		}
		if seen++; seen <= skip {
			return fine
		}
		return what
	}
}

// open returns a Store on b, which is memory if nil.
func open(t testing.TB, b idem.Backend, opts *idem.Options) *idem.Store {
	t.Helper()
	if b == nil {
		b = memory.New()
	}
	s, err := idem.New(b, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// begin returns the claim that Begin grants.
func begin(t testing.TB, s *idem.Store, key string, fp idem.Fingerprint) *idem.Claim {
	t.Helper()
	c, done, err := s.Begin(context.Background(), key, fp)
	if c == nil {
		t.Fatalf("Begin(%q) = nil, %v, %v; want a claim", key, done, err)
	}
	return c
}

// lookup returns what is stored.
func lookup(t testing.TB, s *idem.Store, key string) idem.Record {
	t.Helper()
	r, err := s.Lookup(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
