package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
)

// errIndexNewer tells that a transaction began before the state that the index
// has.
var errIndexNewer = errors.New("the transaction is older than the index")

// lookup returns the record under key, or the zero Record.
func (c *core) lookup(ctx context.Context, key string) (r idem.Record, err error) {
	db, err := c.acquire(ctx, reading)
	if err != nil {
		return idem.Record{}, err
	}
	defer c.release()
	defer c.recovered(&err, debug.SetPanicOnFault(true))
	hash := c.index.hash(key)
	for range maxRetries {
		if err = c.lookupOnce(db, key, hash, &r); err != errIndexNewer {
			return r, err
		}
		// A commit came between; the next transaction has it.
	}
	return idem.Record{}, c.lost("the file is older than what was read from it before")
}

func (c *core) lookupOnce(db *bbolt.DB, key string, hash uint64, r *idem.Record) error {
	s, err := c.snapshot(db)
	if err != nil {
		return err
	}
	defer c.endSnapshot(s)
	if err = c.lookupIn(s, key, hash, r); err != nil {
		s.epoch-- // whatever it is, the next reader begins anew
	}
	return err
}

// maxRetries bounds how often a reader starts again because a commit came in
// between. It takes one for each; more means that the file has gone back.
const maxRetries = 1000

// lookupIn is lookup in a transaction that has written nothing, into a zero r. It
// returns errIndexNewer if the index does not have the state of the transaction any
// more.
func (c *core) lookupIn(s *snapshot, key string, hash uint64, r *idem.Record) error {
	var room [4]hint
	hints, err := c.hints(room[:0], s, hash)
	if err != nil {
		return err
	}
	for i := range hints {
		h := &hints[i]
		v := s.fetch(h)
		if v == nil {
			if err := c.missing(s, hash, h); err != nil {
				return err
			}
			continue
		}
		if string(keyOf(v)) == key {
			*r, err = c.live(v, h.place, key)
			return err
		}
		if err := verify(v, h.place); err != nil {
			return c.corrupt("%v: %v", h.place, err)
		}
	}
	return nil
}

// live decodes the record under key. An expired record is the zero Record.
func (c *core) live(v []byte, at place, key string) (idem.Record, error) {
	r, err := decode(v, at, c.clock.read())
	if err != nil {
		return idem.Record{}, c.corrupt("%v, with the key %q: %v", at, key, err)
	}
	if r.Expired() {
		return idem.Record{}, nil
	}
	return r, nil
}

// hints appends where a key with the hash may be in the state of s.
func (c *core) hints(to []hint, s *snapshot, hash uint64) ([]hint, error) {
	x := c.index
	for range 2 {
		x.mu.RLock()
		if x.txid == s.tx.ID() {
			to = x.appendHints(to, &x.spots, hash)
			x.mu.RUnlock()
			return to, nil
		}
		x.mu.RUnlock()
		if err := c.catchUp(s.table); err != nil {
			return nil, err
		}
	}
	return nil, errIndexNewer
}

// catchUp gives the index the state of t, a transaction that has written nothing,
// by reading what has been appended since the state it has. It returns
// errIndexNewer if the index is ahead of the transaction.
func (c *core) catchUp(t table) error {
	h, err := t.head()
	if err != nil {
		return err
	}
	x := c.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.id == ([16]byte{}) {
		x.id = h.id
	}
	switch {
	case h.id != x.id:
		return c.lost("another store has taken its place")
	case h.seq < x.seq:
		return errIndexNewer
	case h.seq > x.seq:
		c.clock.learn(h.stamp)
		x.txid = unknownTx // in case it ends half-way
		if err := c.readTail(t, h); err != nil {
			return err
		}
		x.seq = h.seq
	}
	x.txid = t.tx.ID()
	return nil
}

// readTail adds to the index what has been written after index.seq, or builds it
// anew if it is empty or most of it is out of date.
func (c *core) readTail(t table, h head) error {
	x := c.index
	if x.seq == 0 {
		return c.readAll(t, h)
	}
	err := t.eachRecord(x.seq+1, func(at place, v []byte) error {
		hash := x.hashBytes(keyOf(v))
		for _, old := range x.appendHints(nil, &x.spots, hash) {
			if t.fetch(old.place) == nil {
				x.spots.remove(hash, old.spot)
			}
		}
		return x.add(hash, at)
	})
	if err != nil {
		return err
	}
	records := int(h.records)
	switch {
	case x.spots.n < records:
		return c.corrupt("it has %d records, but only %d can be found", records, x.spots.n)
	case x.spots.n > 2*records+1000:
		return c.readAll(t, h)
	}
	return nil
}

// readAll builds the index from all records, and makes sure that they are the
// ones that the head knows of.
func (c *core) readAll(t table, h head) error {
	x := c.index
	x.seq, x.spots = 0, newSpots(int(min(h.records, 1<<24)))
	var records, sum, last uint64
	err := t.eachRecord(0, func(at place, v []byte) error {
		records++
		sum += uint64(storedChecksum(v))
		last = max(last, at.seq)
		if stampOf(v) > h.stamp {
			return c.corrupt("%v is newer than the file's last write", at)
		}
		key := keyOf(v)
		hash := x.hashBytes(key)
		for _, other := range x.appendHints(nil, &x.spots, hash) {
			if bytes.Equal(keyOf(t.fetch(other.place)), key) {
				return c.corrupt("%v and %v have the same key %q", other.place, at, key)
			}
		}
		return x.add(hash, at)
	})
	switch {
	case err != nil:
		return err
	case records != h.records:
		return c.corrupt("it has %d records and should have %d", records, h.records)
	case sum != h.sum:
		return c.corrupt("its %d records are not those that were written last", records)
	case last > h.seq || last > maxSeq:
		return c.corrupt("it has a record %d, which is after the last write %d", last, h.seq)
	}
	return nil
}

// missing judges a record that the index has and the transaction has not. If the
// index has more than the file, somebody else has deleted it.
func (c *core) missing(s *snapshot, hash uint64, gone *hint) error {
	h, err := s.head()
	if err != nil {
		return err
	}
	x := c.index
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.txid != s.tx.ID():
		return errIndexNewer
	case !x.spots.has(hash, gone.spot): // another reader was here
		return nil
	case uint64(x.spots.n) <= h.records:
		return c.corrupt("%v cannot be found", gone.place)
	}
	x.spots.remove(hash, gone.spot)
	return nil
}

// scanFor returns the record under key by looking at all records of a transaction
// that began before the state that the index has.
func (t table) scanFor(key string) (r idem.Record, err error) {
	err = t.eachRecord(0, func(at place, v []byte) (err error) {
		if string(keyOf(v)) != key {
			return nil
		}
		if r, err = t.c.live(v, at, key); err == nil {
			err = errFound
		}
		return err
	})
	if err == errFound {
		err = nil
	}
	return r, err
}

var errFound = errors.New("found")

// corrupt returns an error that is idem.ErrCorrupt and names the file.
func (c *core) corrupt(format string, args ...any) error {
	return fmt.Errorf("bolt: %s: %w: "+format, append([]any{c.path, idem.ErrCorrupt}, args...)...)
}

// lost returns an error that is idem.ErrStoreLost and names the file.
func (c *core) lost(format string, args ...any) error {
	return fmt.Errorf("bolt: %s: %w: "+format, append([]any{c.path, idem.ErrStoreLost}, args...)...)
}
