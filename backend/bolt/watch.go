package bolt

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// watchers are those who wait for a change of a key. Each has a channel that the
// next write of the key closes.
type watchers struct {
	mu    sync.Mutex
	byKey map[string]*watched
}

type watched struct {
	changed chan struct{}
	n       int
}

// join adds a watcher of key.
func (ws *watchers) join(key string) *watched {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.byKey[key]
	if w == nil {
		w = &watched{changed: make(chan struct{})}
		if ws.byKey == nil {
			ws.byKey = make(map[string]*watched)
		}
		ws.byKey[strings.Clone(key)] = w
	}
	w.n++
	return w
}

// leave takes a watcher of key off.
func (ws *watchers) leave(key string, w *watched) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.n--; w.n == 0 && ws.byKey[key] == w {
		delete(ws.byKey, key)
	}
}

// wake tells those who watch the keys.
func (ws *watchers) wake(keys []string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.byKey) == 0 {
		return
	}
	for _, key := range keys {
		if w, ok := ws.byKey[key]; ok {
			close(w.changed)
			delete(ws.byKey, key)
		}
	}
}

// How others' writes are looked for, where there can be others.
const (
	firstPoll = 2 * time.Millisecond
	lastPoll  = 100 * time.Millisecond
)

// Watch implements [idem.Watcher]. What this Backend writes wakes it at once.
// Where others can write, which is with Shared and on a file that the caller has
// opened, it looks for that at growing intervals up to 100 ms.
func (b *Backend) Watch(ctx context.Context, key, token string) error {
	if b.bound != nil {
		return b.failed("watch", errBound)
	}
	// First join, then look: a change in between is not missed.
	w := b.watchers.join(key)
	defer b.watchers.leave(key, w)
	for delay := firstPoll; ; delay = min(2*delay, lastPoll) {
		r, err := b.Get(ctx, key)
		if err != nil || r.Token != token {
			return err
		}
		var poll <-chan time.Time
		if b.file == nil || b.shared != nil {
			poll = time.After(delay/2 + rand.N(delay))
		}
		select {
		case <-w.changed:
			return nil
		case <-poll:
		case <-b.closed:
			return b.failed("watch", errClosed)
		case <-ctx.Done():
			return b.gaveUp(ctx, "watching")
		}
	}
}
