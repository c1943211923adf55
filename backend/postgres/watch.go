package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/idem-go/idem"
)

// How often somebody who waits asks by himself: soon at first, ten times a second
// in the end. Where a notification will come he asks now and then all the same:
// a transaction that was rolled back notifies nobody.
const (
	firstAsk    = 5 * time.Millisecond
	lastAsk     = 100 * time.Millisecond
	askAnyway   = 500 * time.Millisecond
	waitLockXOR = 0x77616974 // makes the lock of those who wait for a key of the key's own
)

// Watch implements [idem.Watcher]. A change that is made through this Backend
// wakes it at once; a change from elsewhere does with Options.Listen. Otherwise it
// asks in growing intervals. A Store has one such watch per key and process,
// however many wait.
func (b *Backend) Watch(ctx context.Context, key, token string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("postgres: watch: %w", err)
	}
	w := b.waits.join(lockOf("key", b.table, key))
	defer b.waits.leave(w)
	for delay := firstAsk; ; delay = min(2*delay, lastAsk) {
		bell, listening := b.waits.bell(w)
		changed, err := b.changed(ctx, key, w.lock, token)
		if err != nil || changed {
			return err
		}
		if listening {
			delay = askAnyway
		}
		t := time.NewTimer(jitter(delay))
		select {
		case <-bell:
			delay = firstAsk
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("postgres: watch: %w", ctx.Err())
		}
		t.Stop()
	}
}

// changed reports whether key no longer has token. The token of an open
// transaction is that of a key whose transaction has not ended.
func (b *Backend) changed(ctx context.Context, key string, lock int64, token string) (changed bool, err error) {
	now := ""
	err = b.src.with(ctx, func(s session) error {
		if token == openTx {
			return s.query(ctx, freeSQL, []any{lock}, func(scan func(...any) error) error { return scan(&changed) })
		}
		return s.query(ctx, b.sql.token, []any{key}, func(scan func(...any) error) error { return scan(&now) })
	})
	if err != nil {
		return false, b.failed(ctx, "watch", err)
	}
	return changed || token != openTx && now != token, nil
}

// waits are those who wait, by the lock of their key.
type waits struct {
	ears *listener // nil without Options.Listen

	mu     sync.Mutex
	byLock map[int64]*wait
}

// A wait is what all who wait for one key share.
type wait struct {
	lock      int64
	n         int
	bell      chan struct{} // closed to wake them
	listening bool          // whoever writes the key is going to notify
}

func (ws *waits) join(lock int64) *wait {
	ws.mu.Lock()
	w := ws.byLock[lock]
	if w == nil {
		w = &wait{lock: lock, bell: make(chan struct{})}
		if ws.byLock == nil {
			ws.byLock = make(map[int64]*wait)
		}
		ws.byLock[lock] = w
	}
	w.n++
	ws.mu.Unlock()
	if ws.ears != nil {
		ws.ears.attend()
	}
	return w
}

func (ws *waits) leave(w *wait) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.n--; w.n == 0 {
		delete(ws.byLock, w.lock)
	}
}

func (ws *waits) bell(w *wait) (bell <-chan struct{}, listening bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return w.bell, w.listening
}

// wake makes those who wait for the key look again.
func (ws *waits) wake(lock int64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.byLock[lock]; w != nil {
		w.ring()
	}
}

func (w *wait) ring() {
	close(w.bell)
	w.bell = make(chan struct{})
}

var _ interface {
	idem.Backend
	idem.Lister
	idem.Watcher
	idem.Prober
	idem.Batcher
} = (*Backend)(nil)
