package bolt

import (
	"bytes"

	"go.etcd.io/bbolt"
)

// A table is the storage as one transaction has it.
type table struct {
	c   *core
	tx  *bbolt.Tx
	top *bbolt.Bucket // has the head
}

// table returns the storage in tx.
func (c *core) table(tx *bbolt.Tx) (table, error) {
	t := table{c, tx, tx.Bucket(c.bucket)}
	if t.top == nil {
		return t, c.lost("its bucket %q is gone", c.bucket)
	}
	return t, nil
}

// head reads the head.
func (t table) head() (head, error) {
	h, err := decodeHead(t.top.Get(headKey))
	if err != nil {
		return h, t.c.corrupt("%v", err)
	}
	return h, nil
}

// putHead stores the head.
func (t table) putHead(h head) error { return t.top.Put(headKey, h.encode()) }

// logPrefix returns what the names of all logs begin with in the file.
func (t table) logPrefix() []byte {
	return append(append(make([]byte, 0, len(t.c.bucket)+1+logNameLen), t.c.bucket...), 0)
}

// fileName returns the name of a log in the file.
func (t table) fileName(log logName) []byte { return append(t.logPrefix(), log[:]...) }

// log returns a log, or nil if there is none with that name.
func (t table) log(name logName) *bbolt.Bucket { return t.tx.Bucket(t.fileName(name)) }

func (t table) makeLog(name logName) (*bbolt.Bucket, error) {
	return t.tx.CreateBucketIfNotExists(t.fileName(name))
}

func (t table) dropLog(name logName) error { return t.tx.DeleteBucket(t.fileName(name)) }

// eachLog calls fn for all logs. fn must not make or drop any.
func (t table) eachLog(fn func(name logName, log *bbolt.Bucket) error) error {
	prefix := t.logPrefix()
	cur := t.tx.Cursor()
	for k, _ := cur.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = cur.Next() {
		var name logName
		if copy(name[:], k[len(prefix):]) != logNameLen || len(k) != len(prefix)+logNameLen || !name.known() {
			return t.c.corrupt("it has a bucket %q, which no log is called", k)
		}
		if err := fn(name, t.tx.Bucket(k)); err != nil {
			return err
		}
	}
	return nil
}

// eachRecord calls fn for all records with numbers from from on, log by log. The
// bytes of the record have been verified.
func (t table) eachRecord(from uint64, fn func(at place, v []byte) error) error {
	return t.eachLog(func(name logName, log *bbolt.Bucket) error {
		cur := log.Cursor()
		for k, v := cur.Seek(seqKey(from)); k != nil; k, v = cur.Next() {
			at, err := t.place(name, k, v)
			if err != nil {
				return err
			}
			if err := fn(at, v); err != nil {
				return err
			}
		}
		return nil
	})
}

// place returns the place of a record that a cursor has met, and verifies the
// record.
func (t table) place(log logName, k, v []byte) (place, error) {
	if len(k) != seqLen {
		return place{}, t.c.corrupt("there is a record with the number %x in log %v", k, log)
	}
	at := place{log, seqOf(k)}
	if err := verify(v, at); err != nil {
		return at, t.c.corrupt("%v, with the key %q: %v", at, keyOf(v), err)
	}
	return at, nil
}

// A thoroughness says how far a sweep looks.
type thoroughness int

const (
	front  thoroughness = iota // up to the first record that is not expired
	behind                     // in a mixed log as far as a record can be expired
)

// due returns the first expired record of a log from the number from on, or no
// bytes.
func (t table) due(name logName, log *bbolt.Bucket, from uint64, how thoroughness) (at place, v []byte, err error) {
	cur := log.Cursor()
	for k, v := cur.Seek(seqKey(from)); k != nil; k, v = cur.Next() {
		at, err := t.place(name, k, v)
		if err != nil {
			return at, nil, err
		}
		age := t.c.age(v)
		if age >= ttlOf(v, at) {
			return at, v, nil
		}
		if how == front || age < name.shortest() {
			break
		}
	}
	return place{}, nil, nil
}

// fetch returns the stored record at a place, valid within the transaction, or
// nil.
func (t table) fetch(at place) []byte {
	log := t.log(at.log)
	if log == nil {
		return nil
	}
	return log.Get(seqKey(at.seq))
}
