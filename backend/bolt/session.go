package bolt

import (
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
)

// A session reads and writes records in one read-write transaction. It sees what
// the transaction has written, and leaves the index alone until that is
// committed: a rollback needs no clean-up.
type session struct {
	table
	head head   // as of the session's last write
	base uint64 // the state of the index: that before the transaction
	seq  uint64 // of the head that is stored

	added   spots           // what the transaction has added ...
	gone    map[spot]uint64 // ... and taken away from the index, with the hashes
	logs    map[logName]*log
	changed []string // keys, for those who watch them

	alone      bool // no other session writes in this transaction
	written    bool // the head has to be stored
	registered bool // the transaction's commit will reach the index
	txid       int
}

// A log is an open log bucket of the transaction.
type log struct {
	bucket *bbolt.Bucket
	number uint64
}

// newSession begins a session for about size writes in tx, which another session
// may have written to. The transaction holds the lock of the writer, so the
// committed state cannot change before it ends.
func (c *core) newSession(tx *bbolt.Tx, size int) (*session, error) {
	t, err := c.table(tx)
	if err != nil {
		return nil, err
	}
	s := &session{
		table: t,
		txid:  tx.ID(),
		added: newSpots(size),
		gone:  make(map[spot]uint64, size),
		logs:  make(map[logName]*log),
	}
	x := c.index
	x.mu.RLock()
	committed := x.txid == tx.ID()-1
	x.mu.RUnlock()
	if !committed {
		// What the transaction itself has written must not get into the index.
		if err := c.catchUpCommitted(tx.DB()); err != nil {
			return nil, err
		}
	}
	x.mu.RLock()
	s.base, s.head.seq = x.seq, x.seq
	x.mu.RUnlock()
	return s, s.refresh(true)
}

// catchUpCommitted gives the index the committed state.
func (c *core) catchUpCommitted(db *bbolt.DB) error {
	for range maxRetries {
		view, err := c.begin(db, false)
		if err != nil {
			return err
		}
		err = c.fenced(func() error {
			t, err := c.table(view)
			if err == nil {
				err = c.catchUp(t)
			}
			return err
		})
		_ = view.Rollback()
		if err != errIndexNewer {
			return err
		}
	}
	return c.lost("the file is older than what was read from it before")
}

// refresh takes in what others have written in the same transaction.
func (s *session) refresh(first bool) error {
	h, err := s.table.head()
	if err != nil {
		return err
	}
	if h.seq != s.head.seq {
		clear(s.logs) // they may have dropped one
		s.c.index.mu.Lock()
		defer s.c.index.mu.Unlock()
		err = s.eachRecord(s.head.seq+1, func(at place, v []byte) error {
			number, err := s.c.index.logNumberLocked(at.log)
			if err == nil {
				s.added.add(s.c.index.hashBytes(keyOf(v)), makeSpot(number, at.seq))
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if first || h.seq != s.head.seq {
		s.c.clock.learn(h.stamp)
		s.head, s.seq = h, h.seq
	}
	return nil
}

// find returns the stored record under key, expired or not, and its place, or
// nil.
func (s *session) find(key string, hash uint64) (v []byte, at place, err error) {
	x := s.c.index
	var room [4]hint
	x.mu.RLock()
	found := x.appendHints(room[:0], &s.added, hash)
	found = x.appendHints(found, &x.spots, hash)
	x.mu.RUnlock()
	for _, h := range found {
		if _, ok := s.gone[h.spot]; ok {
			continue
		}
		v := s.fetch(h.place)
		switch {
		case v == nil:
			if s.surely(hash, h.spot) {
				return nil, place{}, s.c.corrupt("%v cannot be found", h.place)
			}
			s.added.remove(hash, h.spot)
		case string(keyOf(v)) == key:
			return v, h.place, nil
		default:
			if err := verify(v, h.place); err != nil {
				return nil, place{}, s.c.corrupt("%v: %v", h.place, err)
			}
		}
	}
	return nil, place{}, nil
}

// surely reports whether a record that cannot be found must be there: the session
// knows of it, and of no more records than there are. If it knows of more, others
// have deleted some.
func (s *session) surely(hash uint64, sp spot) bool {
	x := s.c.index
	x.mu.RLock()
	defer x.mu.RUnlock()
	known := x.spots.has(hash, sp) || s.added.has(hash, sp)
	return known && uint64(x.spots.n+s.added.n-len(s.gone)) <= s.head.records
}

// fetch returns the stored record at a place, or nil.
func (s *session) fetch(at place) []byte {
	if l, ok := s.logs[at.log]; ok {
		return l.bucket.Get(seqKey(at.seq))
	}
	return s.table.fetch(at)
}

// open opens a log, or makes it.
func (s *session) open(name logName) (*log, error) {
	if l, ok := s.logs[name]; ok {
		return l, nil
	}
	number, err := s.c.index.logNumber(name)
	if err != nil {
		return nil, err
	}
	b, err := s.makeLog(name)
	if err != nil {
		return nil, err
	}
	b.FillPercent = fillPercent
	l := &log{b, number}
	s.logs[name] = l
	return l, nil
}

// fillPercent is how full the pages of a log are made: nothing is ever put
// between its records.
const fillPercent = 0.95

// get returns the record under key, or the zero Record.
func (s *session) get(key string, hash uint64) (idem.Record, error) {
	v, at, err := s.find(key, hash)
	if v == nil || err != nil {
		return idem.Record{}, err
	}
	return s.c.live(v, at, key)
}

// swap stores w if the token of the record under its key is w.old. Otherwise it
// returns the record in the way.
func (s *session) swap(w *write) (present idem.Record, swapped bool, err error) {
	v, at, err := s.find(w.key, w.hash)
	if err != nil {
		return idem.Record{}, false, err
	}
	token := ""
	if v != nil {
		if err := verify(v, at); err != nil {
			return idem.Record{}, false, s.c.corrupt("%v, with the key %q: %v", at, w.key, err)
		}
		if !s.c.expired(v, at) {
			token = string(tokenOf(v))
		}
	}
	switch {
	case w.decided(token) && token == "":
		return idem.Record{}, false, nil
	case w.decided(token):
		present, err = s.c.live(v, at, w.key)
		return present, false, err
	case v != nil:
		if err := s.remove(v, at, w.hash); err != nil {
			return idem.Record{}, false, err
		}
	}
	return idem.Record{}, true, s.append(w)
}

// append adds the record of w, whose key must not be there.
func (s *session) append(w *write) error {
	l, err := s.open(w.log)
	if err != nil {
		return s.broken(err)
	}
	s.head.seq++
	s.head.stamp = max(s.head.stamp, s.c.clock.read())
	s.head.records++
	at := place{w.log, s.head.seq}
	seal(w.value, at, s.head.stamp)
	s.head.sum += uint64(storedChecksum(w.value))
	s.written = true
	if err := l.bucket.Put(seqKey(at.seq), w.value); err != nil {
		return s.broken(err)
	}
	s.added.add(w.hash, makeSpot(l.number, at.seq))
	s.changed = append(s.changed, w.key)
	return nil
}

// remove deletes the stored record v.
func (s *session) remove(v []byte, at place, hash uint64) error {
	l, err := s.open(at.log)
	if err != nil {
		return s.broken(err)
	}
	s.head.records--
	s.head.sum -= uint64(storedChecksum(v))
	s.written = true
	if err := l.bucket.Delete(seqKey(at.seq)); err != nil {
		return s.broken(err)
	}
	sp := makeSpot(l.number, at.seq)
	if before := s.added.n; before > 0 {
		if s.added.remove(hash, sp); s.added.n < before {
			return nil
		}
	}
	s.gone[sp] = hash
	return nil
}

// sweep deletes expired records from the fronts of the logs, at most limit, and
// the logs that it empties.
func (s *session) sweep(limit int, how thoroughness) (n int, err error) {
	var names []logName
	err = s.eachLog(func(name logName, _ *bbolt.Bucket) error {
		names = append(names, name)
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		swept, err := s.sweepLog(name, limit-n, how)
		n += swept
		if err != nil || n >= limit {
			return n, err
		}
	}
	return n, nil
}

func (s *session) sweepLog(name logName, limit int, how thoroughness) (n int, err error) {
	l, err := s.open(name)
	if err != nil {
		return 0, err
	}
	// Each step looks for the front anew: a cursor is of no use after a
	// deletion.
	var next uint64
	for n < limit {
		at, v, err := s.due(name, l.bucket, next, how)
		if err != nil {
			return n, err
		}
		if v == nil {
			break
		}
		if err := s.remove(v, at, s.c.index.hashBytes(keyOf(v))); err != nil {
			return n, err
		}
		next = at.seq + 1
		n++
	}
	if k, _ := l.bucket.Cursor().First(); k == nil && n > 0 {
		delete(s.logs, name)
		if err := s.dropLog(name); err != nil {
			return n, s.broken(err)
		}
	}
	return n, nil
}

// flush stores the head, if the session has changed anything.
func (s *session) flush() error {
	if !s.written {
		return nil
	}
	if s.head.seq == s.seq {
		s.head.seq++ // a sweep appends nothing, and others have to notice it
	}
	if err := s.putHead(s.head); err != nil {
		return s.broken(err)
	}
	s.written, s.seq = false, s.head.seq
	if !s.registered {
		s.registered = true
		s.tx.OnCommit(s.committed)
	}
	return nil
}

// committed tells the index, and those who wait, what the transaction has done.
func (s *session) committed() {
	x := s.c.index
	x.mu.Lock()
	for sp, hash := range s.gone {
		x.spots.remove(hash, sp)
	}
	// If a reader has caught up already, what was added is in the index.
	if x.seq == s.base {
		for hash, first := range s.added.first {
			x.spots.add(hash, first)
			for _, sp := range s.added.more[hash] {
				x.spots.add(hash, sp)
			}
		}
		x.seq = s.head.seq
		// Another handle may have written in this transaction: whether the index
		// has its state is for the next reader to see.
		x.txid = unknownTx
		if s.alone {
			x.txid = s.txid
		}
	}
	x.mu.Unlock()
	s.c.watchers.wake(s.changed)
}

// A brokenError is an error after which the transaction may be half changed, and
// must be rolled back.
type brokenError struct{ err error }

func (e *brokenError) Error() string {
	return fmt.Sprintf("the transaction has to be rolled back: %v", e.err)
}
func (e *brokenError) Unwrap() error { return e.err }

func (s *session) broken(err error) error { return &brokenError{err} }
