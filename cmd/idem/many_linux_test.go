package main

import (
	"os"
	"sync"
	"syscall"
)

// An errgroup runs a few functions at once and keeps the first error.
type errgroup struct {
	wg   sync.WaitGroup
	mu   sync.Mutex
	err  error
	slot chan struct{}
}

func (g *errgroup) add(fn func() error) {
	if g.slot == nil {
		g.slot = make(chan struct{}, 64)
	}
	g.slot <- struct{}{}
	g.wg.Go(func() {
		defer func() { <-g.slot }()
		if err := fn(); err != nil {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.err == nil {
				g.err = err
			}
		}
	})
}

func (g *errgroup) wait() error {
	g.wg.Wait()
	return g.err
}

// flock locks a file as another process that uses it does, until it is closed.
func (b *box) flock(name string) *os.File {
	b.t.Helper()
	f, err := os.OpenFile(b.path(name), os.O_RDWR, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { f.Close() })
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		b.t.Fatal(err)
	}
	return f
}
