package janitor_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/janitor"
)

// What a sweep costs those who claim keys meanwhile: the 99th percentile of Begin
// in 8 workers beside a sweep, as a multiple of that without one. Both take turns in
// one run, and the median of the rounds is reported.
//
//	go test -run '^$' -bench Beside -benchtime 1x ./janitor
func BenchmarkClaimsBesideSweep(b *testing.B) {
	for name, storageOf := range map[string]func(b *testing.B) storage{
		"bolt":     boltBench,
		"postgres": func(b *testing.B) storage { return postgresStorage(b, benchRecords) },
		// Nothing is swept there: the server deletes while the workers claim.
		"redis": func(b *testing.B) storage { return redisStorage(b, benchRecords, 15*time.Second) },
	} {
		b.Run(name, func(b *testing.B) {
			s := storageOf(b)
			b.ResetTimer()
			for range b.N {
				besideSweep(b, s)
			}
		})
	}
}

const (
	benchRecords = 200_000
	benchRounds  = 10
)

// boltBench waits until the records that it has stored are expired: a benchmark has
// no clock of its own.
func boltBench(b *testing.B) storage {
	handles, done := openBolt(b, filepath.Join(b.TempDir(), "idem.db"))
	b.Cleanup(done)
	fill(b, handles[0], "live", liveRecords, decades)
	const ttl = 30 * time.Second
	fill(b, handles[0], "expired", benchRecords, ttl)
	time.Sleep(ttl)
	return storage{handles: handles, expired: benchRecords, tidies: true}
}

func besideSweep(b *testing.B, s storage) {
	var ratios, without, beside []float64
	swept := 0
	var took time.Duration
	for round := range benchRounds {
		stop := timing(b, s, fmt.Sprint("idle-", round))
		time.Sleep(time.Second)
		idle := stop()

		part := &parted{Backend: s.handles[0], left: benchRecords / benchRounds}
		stop = timing(b, s, fmt.Sprint("sweep-", round))
		r, err := janitor.Sweep(context.Background(), part, nil)
		if err != nil {
			b.Fatal(err)
		}
		if s.expires {
			time.Sleep(time.Second) // the server is at it
		}
		busy := stop()
		swept += r.Swept
		took += r.Duration
		ratios = append(ratios, float64(busy)/float64(idle))
		without = append(without, float64(idle)/1e6)
		beside = append(beside, float64(busy)/1e6)
	}
	b.ReportMetric(median(ratios), "p99-ratio")
	b.ReportMetric(median(without), "idle-p99-ms")
	b.ReportMetric(median(beside), "sweep-p99-ms")
	b.ReportMetric(float64(swept), "swept")
	b.ReportMetric(float64(swept)/max(took.Seconds(), 1e-9), "swept/s")
	b.ReportMetric(0, "ns/op")
}

// parted lets a Sweep have a part of the expired records.
type parted struct {
	idem.Backend
	left int
}

func (p *parted) Sweep(ctx context.Context, limit int) (int, error) {
	n, err := p.Backend.Sweep(ctx, min(limit, p.left))
	p.left -= n
	return n, err
}

// timing has 8 workers claim and complete keys of their own until stop is called,
// which returns the 99th percentile of how long Begin took.
func timing(b *testing.B, s storage, kind string) (stop func() time.Duration) {
	const workers = 8
	stopped := make(chan struct{})
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	for w := range workers {
		store := open(b, s.handles[w%2], nil)
		wg.Go(func() {
			var mine []time.Duration
			for i := 0; ; i++ {
				begun := time.Now()
				c, _, err := store.Begin(context.Background(), fmt.Sprintf("%s-%d-%d", kind, w, i), payload)
				mine = append(mine, time.Since(begun))
				if err == nil {
					err = store.Complete(context.Background(), c, idem.Result{Code: 201})
				}
				if err != nil {
					b.Error(err)
				}
				select {
				case <-stopped:
					mu.Lock()
					defer mu.Unlock()
					all = append(all, mine...)
					return
				default:
				}
			}
		})
	}
	return func() time.Duration {
		close(stopped)
		wg.Wait()
		slices.Sort(all)
		return all[len(all)*99/100]
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
