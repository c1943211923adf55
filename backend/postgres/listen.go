package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// A listener has the connection on which notifications come in. It is open while
// somebody waits, and for a moment longer.
//
// A notification costs the one who sends it a lock that all commits of the
// database share, so it is sent only where somebody waits. To say so without
// writing anything, the listener holds an advisory lock on the key, shared, for
// as long as somebody waits for it; whoever writes the record tries to take the
// same lock exclusively, and if he does not get it he notifies. The other way
// round, a listener that does not get the lock has met a write that is under way,
// and comes back. After it has got the lock those who wait look at the record
// once more: what was committed before notified nobody.
type listener struct {
	waits   *waits
	config  *pgx.ConnConfig
	channel string

	mu        sync.Mutex
	running   bool
	interrupt context.CancelFunc // ends the present wait for a notification
}

// linger is how long the connection stays open when nobody waits.
const linger = 2 * time.Second

// channelOf returns the name of the channel of a table.
func channelOf(table string) string {
	sum := sha256.Sum256([]byte(table))
	return "idem_" + hex.EncodeToString(sum[:8])
}

// notifySQL is what a write does beside: it has the value NULL if nobody waits.
// The lock is that of the key.
func notifySQL(table, lock string) string {
	return fmt.Sprintf(`CASE WHEN pg_try_advisory_xact_lock(%s # %d::bigint) THEN NULL ELSE pg_notify('%s', (%s)::text)::text END`,
		lock, int64(waitLockXOR), channelOf(table), lock)
}

func newListener(ws *waits, url, table string) (*listener, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	return &listener{waits: ws, config: config, channel: channelOf(table)}, nil
}

// attend makes the listener take up what has changed about who waits.
func (l *listener) attend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.interrupt != nil {
		l.interrupt()
	}
	if !l.running {
		l.running = true
		go l.run()
	}
}

// run listens until nobody waits.
func (l *listener) run() {
	ctx := context.Background()
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, 5*time.Second) {
		started := time.Now()
		l.listen(ctx)
		l.deaf()
		if time.Since(started) > time.Minute {
			delay = 10 * time.Millisecond
		}
		l.mu.Lock()
		if !l.waits.any() {
			l.running = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		_ = pause(ctx, delay) // those who wait ask by themselves in the meantime
	}
}

// listen connects and passes notifications on, until nobody has waited for a
// while or the connection fails.
func (l *listener) listen(ctx context.Context) {
	connecting, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := pgx.ConnectConfig(connecting, l.config)
	if err != nil {
		return
	}
	defer func() {
		closing, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(connecting, `LISTEN `+l.channel); err != nil {
		return
	}
	var held []int64
	for idle := time.Now(); ; {
		waiting, cancelWait := context.WithTimeout(ctx, linger)
		l.mu.Lock()
		l.interrupt = cancelWait
		l.mu.Unlock()

		missing, err := l.hold(ctx, conn, &held)
		if err != nil {
			cancelWait()
			return
		}
		if len(held) > 0 || missing {
			idle = time.Now()
		} else if time.Since(idle) >= linger {
			cancelWait()
			return
		}
		if missing {
			time.AfterFunc(firstAsk, cancelWait)
		}
		note, err := conn.WaitForNotification(waiting)
		interrupted := waiting.Err() != nil
		cancelWait()
		switch {
		case err == nil:
			if lock, err := strconv.ParseInt(note.Payload, 10, 64); err == nil {
				l.waits.wake(lock)
			}
		case !interrupted || conn.IsClosed():
			return
		}
	}
}

// hold takes the locks of the keys for which somebody waits and releases the
// others. It reports whether some were not to be had.
func (l *listener) hold(ctx context.Context, conn *pgx.Conn, held *[]int64) (missing bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	wanted := l.waits.locks()
	for _, lock := range wanted {
		if slices.Contains(*held, lock) {
			continue
		}
		got := false
		if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock_shared($1::bigint # $2::bigint)`, lock, int64(waitLockXOR)).Scan(&got); err != nil {
			return false, err
		}
		if !got {
			missing = true
			continue
		}
		*held = append(*held, lock)
		l.waits.heard(lock)
	}
	kept := (*held)[:0]
	for _, lock := range *held {
		if slices.Contains(wanted, lock) {
			kept = append(kept, lock)
			l.waits.heard(lock) // who waits may have gone and come back
			continue
		}
		if _, err := conn.Exec(ctx, `SELECT pg_advisory_unlock_shared($1::bigint # $2::bigint)`, lock, int64(waitLockXOR)); err != nil {
			return false, err
		}
	}
	*held = kept
	return missing, nil
}

// deaf says that nothing is heard any more.
func (l *listener) deaf() {
	l.mu.Lock()
	l.interrupt = nil
	l.mu.Unlock()
	l.waits.mu.Lock()
	defer l.waits.mu.Unlock()
	for _, w := range l.waits.byLock {
		w.listening = false
		w.ring()
	}
}

func (ws *waits) any() bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return len(ws.byLock) > 0
}

func (ws *waits) locks() []int64 {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	locks := make([]int64, 0, len(ws.byLock))
	for lock := range ws.byLock {
		locks = append(locks, lock)
	}
	return locks
}

// heard says that writes of the key notify from now on.
func (ws *waits) heard(lock int64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.byLock[lock]; w != nil && !w.listening {
		w.listening = true
		w.ring()
	}
}
