package bolt

import (
	"sync"
	"time"
)

// A clock is what stamps and ages are measured by: the wall clock of this
// machine, except that it never goes back. Where the wall clock is set back,
// time goes on from the latest reading, or from the latest stamp in the file, at
// the speed of the monotonic clock. A jump ahead is believed, since it cannot be
// told from a process that slept: leases and records end early by that much, and
// the file's time stays ahead until the wall clock has caught up.
type clock struct {
	now func() (wall, mono int64) // both in nanoseconds

	mu   sync.Mutex
	last int64 // the latest reading
	at   int64 // mono at that reading
}

// systemClock returns the readings of time.Now.
func systemClock() func() (wall, mono int64) {
	start := time.Now()
	return func() (int64, int64) {
		t := time.Now()
		return t.UnixNano(), int64(t.Sub(start))
	}
}

// read returns the present time in nanoseconds since 1970.
func (c *clock) read() int64 {
	wall, mono := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(wall, mono)
	return c.last
}

// learn makes the clock go on from a stamp that has been read from the file.
func (c *clock) learn(stamp int64) {
	_, mono := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(stamp, mono)
}

func (c *clock) advance(t, mono int64) {
	c.last = max(t, c.last+max(0, mono-c.at))
	c.at = max(c.at, mono)
}
