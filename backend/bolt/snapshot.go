package bolt

import (
	"runtime"
	"sync"

	"go.etcd.io/bbolt"
)

// A snapshot is an open read transaction with what has been opened in it. It is
// used by one goroutine at a time.
type snapshot struct {
	table
	logs   []*bbolt.Cursor // by the numbers of the logs
	seqKey [seqLen]byte
	epoch  uint64
}

// fetch returns the stored record that h points to, valid until the transaction
// ends, or nil.
func (s *snapshot) fetch(h *hint) []byte {
	cur := s.cursor(h)
	if cur == nil {
		return nil
	}
	putSeq(s.seqKey[:], h.seq)
	k, v := cur.Seek(s.seqKey[:])
	if string(k) != string(s.seqKey[:]) {
		return nil
	}
	return v
}

func (s *snapshot) cursor(h *hint) *bbolt.Cursor {
	n := h.spot.log()
	if n < len(s.logs) && s.logs[n] != nil {
		return s.logs[n]
	}
	log := s.log(h.log)
	if log == nil {
		return nil
	}
	if n >= len(s.logs) {
		s.logs = append(s.logs, make([]*bbolt.Cursor, n+1-len(s.logs))...)
	}
	s.logs[n] = log.Cursor()
	return s.logs[n]
}

// snapshots keeps read transactions open between calls, as long as nobody writes:
// to begin one and to find the logs in it costs more than to read a record. It
// does so only for a file of which this process has all writers. An open read
// transaction keeps bbolt from using pages again and from mapping a larger file;
// before a write transaction begins, the idle ones are ended.
type snapshots struct {
	keep bool

	mu      sync.Mutex
	idle    []*snapshot
	writing int    // write transactions, begun or about to
	epoch   uint64 // of them, so far
}

// take returns an idle snapshot, or nil and the epoch for a new one.
func (p *snapshots) take() (*snapshot, uint64) {
	if !p.keep {
		return nil, 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		s := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return s, s.epoch
	}
	return nil, p.epoch
}

// give takes a snapshot back and reports whether it is kept. If not, the caller
// ends it.
func (p *snapshots) give(s *snapshot) bool {
	if !p.keep {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writing > 0 || p.epoch != s.epoch || len(p.idle) >= 2*runtime.GOMAXPROCS(0) {
		return false
	}
	p.idle = append(p.idle, s)
	return true
}

// pause ends the idle snapshots and keeps none until resume is called.
func (p *snapshots) pause() {
	p.mu.Lock()
	p.writing++
	p.epoch++
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, s := range idle {
		_ = s.tx.Rollback()
	}
}

func (p *snapshots) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writing--
}

// snapshot returns a snapshot of the present state, which endSnapshot ends or
// keeps.
func (c *core) snapshot(db *bbolt.DB) (*snapshot, error) {
	s, epoch := c.snapshots.take()
	if s != nil {
		return s, nil
	}
	tx, err := c.begin(db, false)
	if err != nil {
		return nil, err
	}
	var t table
	if err := c.fenced(func() error { t, err = c.table(tx); return err }); err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return &snapshot{table: t, epoch: epoch}, nil
}

// endSnapshot ends a snapshot, or keeps it for the next reader.
func (c *core) endSnapshot(s *snapshot) {
	if !c.snapshots.give(s) {
		_ = s.tx.Rollback()
	}
}
