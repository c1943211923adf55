package idemtest

import (
	"context"
	"sync"
)

// A Barrier lets goroutines go on together: each waits until all have come. It
// can be used again as soon as it has opened.
type Barrier struct {
	mu   sync.Mutex
	n    int
	here int
	open chan struct{}
}

// NewBarrier returns a Barrier for n goroutines, at least one.
func NewBarrier(n int) *Barrier {
	return &Barrier{n: max(1, n), open: make(chan struct{})}
}

// Wait waits until n goroutines wait, and returns nil in all of them. It returns
// the context's error if that is done before.
func (b *Barrier) Wait(ctx context.Context) error {
	b.mu.Lock()
	open := b.open
	if b.here++; b.here == b.n {
		b.here, b.open = 0, make(chan struct{})
		close(open)
	}
	b.mu.Unlock()
	select {
	case <-open:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-open: // in the same moment: the others count on this one
		return nil
	default:
		b.here--
		return ctx.Err()
	}
}
