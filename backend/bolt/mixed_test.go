package bolt

import (
	"fmt"
	"math"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

func TestMixedTTL(t *testing.T) {
	rnd := testenv.Rand(t)
	for range 100_000 {
		ttl := time.Duration(rnd.Int64() >> rnd.IntN(63))
		up := mixedTTL(ttl)
		if up < ttl || up-ttl > ttl/32 || mixedTTL(up) != up {
			t.Fatalf("mixedTTL(%d) = %d, and of that %d", ttl, up, mixedTTL(up))
		}
		name := logOf(idem.Record{Status: idem.Completed, TTL: ttl})
		if name.ttl() < ttl || name.shortest() > ttl || name.mixed() != (name.ttl() != ttl) {
			t.Fatalf("a TTL of %d is in log %v, of at least %d", ttl, name, name.shortest())
		}
	}
	for _, ttl := range []time.Duration{-1, 0, 1, 32, 33, time.Second, 24*time.Hour + 30*time.Second, 100 * 365 * 24 * time.Hour} {
		if name := logOf(idem.Record{Status: idem.Completed, TTL: ttl}); name.mixed() || name.ttl() != ttl {
			if ttl != 33 { // 33 ns is in the log of 33
				t.Errorf("a TTL of %v is in log %v, want one of its own", ttl, name)
			}
		}
	}
	if got := mixedTTL(math.MaxInt64); got != math.MaxInt64 {
		t.Errorf("mixedTTL of the longest is %d", got)
	}
}

// Records with all sorts of TTLs, as an erasure or a move leaves behind, share a
// few logs, and a sweep finds those that are expired and no others.
func TestSweepOfManyTTLs(t *testing.T) {
	const n = 5000
	machine := newFakeClock()
	path := testPath(t)
	b := machine.use(open(t, path, nil))
	ttl := func(i int) time.Duration { return time.Duration(i+1)*(7*24*time.Hour/n) + 13 }
	fill(t, b, n, func(i int) string { return numbered(i * 7919 % n) }, func(i int) idem.Record {
		r := completed(fmt.Sprintf("t%d.1", i), 20)
		if i*7919%n%3 == 0 {
			r = running(fmt.Sprintf("t%d.1", i))
		}
		r.TTL = ttl(i * 7919 % n)
		return r
	})
	logs := 0
	err := b.view(t.Context(), func(t table) error {
		return t.eachLog(func(logName, *bbolt.Bucket) error { logs++; return nil })
	})
	if err != nil || logs > 1000 {
		t.Errorf("there are %d logs, %v", logs, err)
	}
	swept := 0
	for day := range 8 {
		if day > 0 {
			machine.pass(24 * time.Hour)
		}
		got, err := b.Sweep(t.Context(), n)
		if swept += got; err != nil {
			t.Fatal(err)
		}
		if want := n * day / 7; swept < want-3 || swept > want+3 {
			t.Errorf("day %d: %d records have been swept, want %d", day, swept, want)
		}
		if day == 3 {
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			b = machine.use(open(t, path, nil))
			for i := n * 4 / 7; i < n; i += 97 {
				if r := get(t, b, numbered(i)); r.TTL != ttl(i) {
					t.Fatalf("record %d has the TTL %v, want %v", i, r.TTL, ttl(i))
				}
			}
		}
	}
	machine.pass(time.Minute)
	if got, err := b.Sweep(t.Context(), n); err != nil || swept+got != n {
		t.Errorf("%d of %d records have been swept in the end, %v", swept+got, n, err)
	}
	checkFile(t, b)
}
