package conformancetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

// Bench measures a Store on the storage of h, of which it uses New, and Advance
// where it is set. One operation is what its name says: a Pair is Begin and
// Complete of a fresh key with a result of 256 bytes, a Replay is Begin of a
// completed key, a Refusal Begin of a key that is in progress, a Takeover
// Abandon and the Begin after it, a Sweep the deletion of one expired record,
// in batches of 1,000. The last part of the name is the number of callers at
// once.
//
// Run it with -count=10 and compare with benchstat.
func Bench(b *testing.B, h Harness) {
	if h.New == nil {
		b.Fatal("Harness.New is nil")
	}
	for _, m := range measures {
		for _, callers := range m.callers {
			b.Run(fmt.Sprintf("%s/callers=%d", m.name, callers), func(b *testing.B) {
				do, err := m.prepare(b, h, h.New(b))
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				if err := spread(b, callers, do); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// An operation is what a benchmark does for the n-th time.
type operation = func(ctx context.Context, n int) error

// A measure is one benchmark.
type measure struct {
	name    string
	callers []int
	prepare func(b *testing.B, h Harness, backend idem.Backend) (operation, error)
}

var measures = []measure{
	{"Pair", []int{1, 8, 64, 512}, benchPair},
	{"Do", []int{1, 64}, benchDo},
	{"Replay", []int{1, 8, 64}, benchReplay},
	{"Refusal", []int{1, 64}, benchRefusal},
	{"Takeover", []int{1, 64}, benchTakeover},
	{"Extend", []int{1, 64}, benchExtend},
	{"Sweep", []int{1}, benchSweep},
}

// spread has callers goroutines do b.N operations between them.
func spread(b *testing.B, callers int, do operation) error {
	ctx, cancel := context.WithCancelCause(b.Context())
	defer cancel(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	b.ResetTimer()
	b.StartTimer()
	for range min(callers, b.N) {
		all.Go(func() {
			for ctx.Err() == nil {
				n := int(next.Add(1))
				if n > b.N {
					return
				}
				if err := do(ctx, n); err != nil {
					cancel(err)
				}
			}
		})
	}
	all.Wait()
	b.StopTimer()
	return context.Cause(ctx)
}

// benchStore returns a Store whose leases outlast the benchmark.
func benchStore(b *testing.B, backend idem.Backend) *idem.Store {
	s, err := idem.New(backend, &idem.Options{Lease: 24 * time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

var benchResult = idem.Result{Code: 200, Body: make([]byte, 256)}

// freshKeys returns keys of 37 bytes, none of which was there before.
func freshKeys() func(n int) string {
	prefix := rand.Text()
	return func(n int) string { return fmt.Sprintf("%s-%010d", prefix, n) }
}

func benchPair(b *testing.B, _ Harness, backend idem.Backend) (operation, error) {
	s := benchStore(b, backend)
	key := freshKeys()
	return func(ctx context.Context, n int) error {
		c, _, err := s.Begin(ctx, key(n), payload)
		if err != nil {
			return err
		}
		return s.Complete(ctx, c, benchResult)
	}, nil
}

func benchDo(b *testing.B, _ Harness, backend idem.Backend) (operation, error) {
	s := benchStore(b, backend)
	key := freshKeys()
	return func(ctx context.Context, n int) error {
		_, err := s.Do(ctx, key(n), payload, func(context.Context, *idem.Claim) (idem.Result, error) { return benchResult, nil })
		return err
	}, nil
}

// held claims some keys, for operations that spread over them.
func held(b *testing.B, s *idem.Store, n int) ([]*idem.Claim, error) {
	key := freshKeys()
	claims := make([]*idem.Claim, n)
	for i := range claims {
		c, _, err := s.Begin(b.Context(), key(i), payload)
		if err != nil {
			return nil, err
		}
		claims[i] = c
	}
	return claims, nil
}

func benchReplay(b *testing.B, _ Harness, backend idem.Backend) (operation, error) {
	s := benchStore(b, backend)
	claims, err := held(b, s, 1000)
	for _, c := range claims {
		if err == nil {
			err = s.Complete(b.Context(), c, benchResult)
		}
	}
	return func(ctx context.Context, n int) error {
		_, done, err := s.Begin(ctx, claims[n%len(claims)].Key, payload)
		if err == nil && len(done.Result.Body) != len(benchResult.Body) {
			err = errors.New("the replay is not the result")
		}
		return err
	}, err
}

func benchRefusal(b *testing.B, _ Harness, backend idem.Backend) (operation, error) {
	s := benchStore(b, backend)
	claims, err := held(b, s, 100)
	return func(ctx context.Context, n int) error {
		if _, _, err := s.Begin(ctx, claims[n%len(claims)].Key, payload); !errors.Is(err, idem.ErrInProgress) {
			return fmt.Errorf("a duplicate was not refused: %w", err)
		}
		return nil
	}, err
}

func benchTakeover(b *testing.B, _ Harness, backend idem.Backend) (operation, error) {
	s := benchStore(b, backend)
	key := freshKeys()
	var idle sync.Pool // of claims; each caller goes on with one that nobody uses
	return func(ctx context.Context, n int) (err error) {
		c, _ := idle.Get().(*idem.Claim)
		if c == nil {
			if c, _, err = s.Begin(ctx, key(n), payload); err != nil {
				return err
			}
		}
		if err := s.Abandon(ctx, c); err != nil {
			return err
		}
		if c, _, err = s.Begin(ctx, c.Key, payload); err == nil && !c.Takeover {
			err = errors.New("the claim has no Takeover")
		}
		idle.Put(c)
		return err
	}, nil
}

func benchExtend(b *testing.B, _ Harness, backend idem.Backend) (operation, error) {
	s := benchStore(b, backend)
	claims, err := held(b, s, 512)
	return func(ctx context.Context, n int) error {
		return s.Extend(ctx, claims[n%len(claims)])
	}, err
}

// benchSweep deletes what has expired, most of which a storage that cleans up by
// itself may have done before: the metric tells how much was left.
func benchSweep(b *testing.B, h Harness, backend idem.Backend) (operation, error) {
	key := freshKeys()
	ttl := time.Duration(1)
	if h.Advance != nil {
		ttl = time.Hour
	}
	err := spread(b, 64, func(ctx context.Context, n int) error { // so that it may write in groups
		r := newRecord(idem.Completed)
		r.TTL = ttl
		_, err := backend.Swap(ctx, key(n), "", r)
		return err
	})
	if err != nil {
		return nil, err
	}
	if h.Advance != nil {
		h.Advance(b, backend, ttl)
	}
	deleted := 0
	b.Cleanup(func() { b.ReportMetric(float64(deleted)/float64(b.N), "deleted/op") })
	return func(ctx context.Context, n int) error {
		if n%1000 != 1 {
			return nil
		}
		d, err := backend.Sweep(ctx, 1000)
		deleted += d // there is one caller
		return err
	}, nil
}
