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
	logs   map[logName]*bbolt.Cursor
	seqKey [seqLen]byte
	epoch  uint64
}

// fetch returns the stored record at a place, valid until the transaction ends,
// or nil.
func (s *snapshot) fetch(at place) []byte {
	cur, ok := s.logs[at.log]
	if !ok {
		log := s.log(at.log)
		if log == nil {
			return nil
		}
		cur = log.Cursor()
		s.logs[at.log] = cur
	}
	putSeq(s.seqKey[:], at.seq)
	k, v := cur.Seek(s.seqKey[:])
	if string(k) != string(s.seqKey[:]) {
		return nil
	}
	return v
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

func newSnapshot(t table) *snapshot {
	return &snapshot{table: t, logs: make(map[logName]*bbolt.Cursor, 4)}
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
	s = newSnapshot(t)
	s.epoch = epoch
	return s, nil
}

// endSnapshot ends a snapshot, or keeps it for the next reader.
func (c *core) endSnapshot(s *snapshot) {
	if !c.snapshots.give(s) {
		_ = s.tx.Rollback()
	}
}
