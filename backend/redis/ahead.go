package redis

import (
	"sync"
	"time"

	"github.com/idem-go/idem"
)

// age returns the age of a record by the server's clock.
func (b *Backend) age(r idem.Record, stamp, now int64) time.Duration {
	if now >= stamp {
		return time.Duration(now-stamp) * time.Microsecond
	}
	// It is not expired, whatever its age: that is up to the stamp.
	return min(b.ahead.age(r.Token), max(0, r.TTL-1))
}

// ahead measures the age of records whose stamp is ahead of the server's clock,
// because that was set back. Their lease must not last until the clock has caught
// up, so they count from when they were seen first, by the monotonic clock of this
// process. Only a duration is taken from it: the clocks of two machines are never
// compared.
type ahead struct {
	mu    sync.Mutex
	first map[string]time.Time // by token
}

// aheadMost bounds the memory. The records that a set-back clock leaves ahead are
// those of the time that it was set back by, and only the running ones matter.
const aheadMost = 10_000

func (a *ahead) age(token string) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	first, known := a.first[token]
	if !known {
		if a.first == nil || len(a.first) >= aheadMost {
			a.first = make(map[string]time.Time)
		}
		a.first[token] = time.Now()
		return 0
	}
	return time.Since(first)
}
