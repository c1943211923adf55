package bolt

import (
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"sync"
)

// A spot is a place in the index: the number of the log among those that the
// process has met, and the record's number. It fits into one word.
type spot uint64

const (
	spotSeqBits = 48
	maxLogs     = 1 << (64 - spotSeqBits)
	maxSeq      = 1<<spotSeqBits - 1
)

func (s spot) seq() uint64 { return uint64(s) & maxSeq }
func (s spot) log() int    { return int(s >> spotSeqBits) }

// spots maps the hash of a key to where records with that hash are. Two keys
// can have one hash: what it finds are hints, and the keys must be compared.
type spots struct {
	first map[uint64]spot
	more  map[uint64][]spot // the others, where a hash has several
	n     int
}

func newSpots(n int) spots {
	return spots{first: make(map[uint64]spot, n), more: make(map[uint64][]spot)}
}

// find returns one spot with the hash, and the others.
func (s *spots) find(hash uint64) (first spot, more []spot, ok bool) {
	if first, ok = s.first[hash]; ok && len(s.more) > 0 {
		more = s.more[hash]
	}
	return first, more, ok
}

func (s *spots) has(hash uint64, at spot) bool {
	first, more, ok := s.find(hash)
	return ok && (first == at || slices.Contains(more, at))
}

func (s *spots) add(hash uint64, at spot) {
	_, more, ok := s.find(hash)
	switch {
	case !ok:
		s.first[hash] = at
	case s.has(hash, at):
		return
	default:
		// A new slice: a reader may be going through the old one.
		s.more[hash] = append(slices.Clone(more), at)
	}
	s.n++
}

func (s *spots) remove(hash uint64, at spot) {
	first, more, ok := s.find(hash)
	i := slices.Index(more, at)
	switch {
	case !ok || first != at && i < 0:
		return
	case first != at:
		more = slices.Delete(slices.Clone(more), i, i+1)
	case len(more) > 0:
		s.first[hash], more = more[0], slices.Clone(more[1:])
	default:
		delete(s.first, hash)
	}
	if len(more) > 0 {
		s.more[hash] = more
	} else {
		delete(s.more, hash)
	}
	s.n--
}

// An index knows where the records of one state of the file are. It always has
// all of them. It can have spots of records that are gone, if another handle or
// process deleted them: then it has more spots than the file has records.
type index struct {
	seed maphash.Seed
	mask uint64 // of the hash; tests make keys collide

	mu     sync.RWMutex
	spots  spots
	logs   []logName          // by their numbers
	number map[logName]uint64 // of each log
	id     [16]byte           // the store
	seq    uint64             // the state: head.seq
	txid   int                // a transaction that has this state; no other has its id
}

func newIndex() *index {
	return &index{
		seed:   maphash.MakeSeed(),
		mask:   math.MaxUint64,
		spots:  newSpots(0),
		number: make(map[logName]uint64),
		txid:   unknownTx,
	}
}

// unknownTx is the id of no transaction.
const unknownTx = -1

func (x *index) hash(key string) uint64      { return maphash.String(x.seed, key) & x.mask }
func (x *index) hashBytes(key []byte) uint64 { return maphash.Bytes(x.seed, key) & x.mask }

// known reports whether there may be a record of a key with the hash. What a
// commit that runs adds may be missing.
func (x *index) known(hash uint64) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	_, ok := x.spots.first[hash]
	return ok
}

// logNumber returns the number of a log; a log keeps it as long as the process
// runs. There is none if the process has met too many.
func (x *index) logNumber(name logName) (uint64, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.logNumberLocked(name)
}

func (x *index) logNumberLocked(name logName) (uint64, error) {
	n, ok := x.number[name]
	if ok {
		return n, nil
	}
	if len(x.logs) == maxLogs {
		return 0, fmt.Errorf("this process has met %d different TTLs, and cannot keep more apart", maxLogs)
	}
	n = uint64(len(x.logs))
	x.logs = append(x.logs, name)
	x.number[name] = n
	return n, nil
}

// add adds a record. The caller holds mu.
func (x *index) add(hash uint64, at place) error {
	number, err := x.logNumberLocked(at.log)
	if err == nil {
		x.spots.add(hash, makeSpot(number, at.seq))
	}
	return err
}

// makeSpot returns the spot of a record.
func makeSpot(log, seq uint64) spot { return spot(log<<spotSeqBits | seq) }

// place is the reverse of makeSpot. The caller holds mu.
func (x *index) place(s spot) place {
	return place{x.logs[s.log()], s.seq()}
}

// A hint is a place where a key may be, and its spot.
type hint struct {
	place
	spot spot
}

// appendHints appends the places of the spots with the hash. The caller holds mu
// of the index.
func (x *index) appendHints(hs []hint, s *spots, hash uint64) []hint {
	first, more, ok := s.find(hash)
	if ok {
		hs = append(hs, hint{x.place(first), first})
	}
	for _, m := range more {
		hs = append(hs, hint{x.place(m), m})
	}
	return hs
}
