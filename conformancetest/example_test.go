package conformancetest_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/conformancetest"
)

// A drawer is a small backend, as its author would write it.
type drawer struct {
	mu      sync.Mutex
	records map[string]slip
	moved   time.Duration // by the test
}

type slip struct {
	record  idem.Record
	written time.Time
}

func newDrawer() *drawer { return &drawer{records: make(map[string]slip)} }

// live returns the record under key with its age, or the zero Record.
func (d *drawer) live(key string) idem.Record {
	s, ok := d.records[key]
	r := s.record.Clone()
	if r.Age = max(0, d.moved+time.Since(s.written)); !ok || r.Expired() {
		return idem.Record{}
	}
	return r
}

func (d *drawer) Get(ctx context.Context, key string) (idem.Record, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.live(key), ctx.Err()
}

func (d *drawer) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	present := d.live(key)
	if ctx.Err() != nil || present.Token != old || present.Token == new.Token {
		return present, ctx.Err()
	}
	d.records[key] = slip{new.Clone(), time.Now().Add(d.moved)}
	return d.live(key), nil
}

func (d *drawer) Sweep(ctx context.Context, limit int) (n int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key := range d.records {
		if ctx.Err() == nil && n < limit && d.live(key).Token == "" {
			delete(d.records, key)
			n++
		}
	}
	return n, ctx.Err()
}

// harness tells the suite what it cannot know about a drawer: how to make one,
// how to open another handle, and how to let time pass.
var harness = conformancetest.Harness{
	New:  func(testing.TB) idem.Backend { return newDrawer() },
	Peer: func(_ testing.TB, b idem.Backend) idem.Backend { return b },
	Advance: func(_ testing.TB, b idem.Backend, d time.Duration) {
		drawer := b.(*drawer)
		drawer.mu.Lock()
		defer drawer.mu.Unlock()
		drawer.moved += d
	},
}

// The author of a backend has one test and one benchmark that call the suite.
func Example() {
	// In the file drawer_test.go:
	testConformance := func(t *testing.T) { conformancetest.Run(t, harness) }
	benchmarkConformance := func(b *testing.B) { conformancetest.Bench(b, harness) }

	_, _ = testConformance, benchmarkConformance
	// Output:
}
