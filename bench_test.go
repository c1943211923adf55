package idem_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

// What the rules cost by themselves: a claim and a completion over a map. The
// target is 12 allocations.
func BenchmarkBeginComplete(b *testing.B) {
	s := open(b, nil, nil)
	ctx := context.Background()
	r := idem.Result{Code: 200, Body: make([]byte, 256)}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c, _, err := s.Begin(ctx, strconv.Itoa(i), payloadA)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Complete(ctx, c, r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReplay(b *testing.B) {
	s := open(b, nil, nil)
	ctx := context.Background()
	c := begin(b, s, "k", payloadA)
	if err := s.Complete(ctx, c, idem.Result{Code: 200, Body: make([]byte, 256)}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, done, err := s.Begin(ctx, "k", payloadA); done == nil {
			b.Fatal(err)
		}
	}
}

// Counts, unlike times, can be held exactly.
func TestAllocationsOfBeginAndComplete(t *testing.T) {
	if testenv.Race {
		t.Skip("counted without the race detector, which allocates too: make test does both")
	}
	s := open(t, nil, nil)
	ctx := context.Background()
	r := idem.Result{Code: 200, Body: make([]byte, 256)}
	const runs = 2000
	keys := make([]string, 0, runs+1)
	for i := range cap(keys) {
		keys = append(keys, "order-"+strconv.Itoa(i))
	}
	got := testing.AllocsPerRun(runs, func() {
		key := keys[0]
		keys = keys[1:]
		c, _, err := s.Begin(ctx, key, payloadA)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Complete(ctx, c, r); err != nil {
			t.Fatal(err)
		}
	})
	if got > 12 {
		t.Errorf("%.0f allocations, want at most 12", got)
	}
}
