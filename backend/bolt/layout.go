package bolt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
	"time"

	"github.com/idem-go/idem"
)

// # Layout of the file
//
// A storage is a bucket with a head, and logs. A log is a bucket with the records
// of one TTL; those in progress have logs apart from those that are not. So a
// completion takes its record out of a log that is as small as the number of
// operations that run, and appends it to a large one. With the name of the storage
// being "idem", the file has these buckets:
//
//	"idem"
//	    "head"                             see type head
//	"idem", NUL, 'p' and a TTL of 8 bytes  log of records in progress
//	"idem", NUL, 'd' and a TTL of 8 bytes  log of records completed or released
//	"idem", NUL, 'P' or 'D' and a TTL      the same of records whose TTL is up to that
//	    number of 8 bytes                  a record, see record.go
//
// All of them are at the top: a level more would be a page more in each commit.
// bbolt keeps small buckets inside the page that has their names, so a lone claim
// writes that page and no other.
//
// Every write takes the next number for the whole storage and appends, so a commit
// touches the last pages of a log, however many records there are; random keys
// in one bucket would rewrite as many pages as there are keys. Records are found
// by an index in memory, from the hash of the key to the log and the number. It
// is built when the file is opened, and never written.
//
// A record that is replaced is deleted in the same transaction: a key is in the
// file at most once. As the clock of the file never goes back and a log has one
// TTL, a log is in the order of expiry, and a sweep deletes from its front until
// it meets a record that is not expired. Each write deletes an expired record as
// well, if there is one, which keeps the list of free pages short.
//
// Programs use few TTLs, of whole seconds, and each has logs of its own. What is left
// of a TTL can be anything, when a record is erased, or was moved here from another
// storage. Such records have their TTL with them, and the log is that of the next
// of 32 steps between two powers of two. There a sweep also looks behind records
// that are not expired, as far as an expired one can be.
//
// The head counts the writes and the records and sums up their checksums. So a
// reader knows whether its index is that of the transaction it reads, and what
// has been written since; and opening the file notices a record that is missing
// as well as one that is damaged.

// seqLen is the length of a record's number.
const seqLen = 8

// logNameLen is the length of a log's name.
const logNameLen = 1 + 8

const (
	logInProgress = 'p'
	logDone       = 'd'

	mixedInProgress = 'P'
	mixedDone       = 'D'
)

// A logName is the name of a log, without that of the storage.
type logName [logNameLen]byte

// logOf returns the name of the log that r belongs into.
func logOf(r idem.Record) logName {
	name := logName{logDone}
	if r.Status == idem.InProgress {
		name[0] = logInProgress
	}
	ttl := r.TTL
	if step := mixedTTL(ttl); ttl%time.Second != 0 && step != ttl {
		ttl = step
		name[0] = mixedDone
		if r.Status == idem.InProgress {
			name[0] = mixedInProgress
		}
	}
	binary.BigEndian.PutUint64(name[1:], uint64(ttl))
	return name
}

// mixedTTL returns the TTL of the log for records with a TTL of their own, which is
// at most a 32nd more.
func mixedTTL(ttl time.Duration) time.Duration {
	if ttl <= 32 {
		return ttl
	}
	step := uint64(1) << (bits.Len64(uint64(ttl)) - 6)
	up := (uint64(ttl) + step - 1) / step * step
	return time.Duration(min(up, math.MaxInt64))
}

// known reports whether n is what a log is called.
func (n logName) known() bool {
	switch n[0] {
	case logInProgress, logDone, mixedInProgress, mixedDone:
		return true
	}
	return false
}

// ttl returns the TTL of the log's records, or the longest if it is mixed.
func (n logName) ttl() time.Duration { return time.Duration(binary.BigEndian.Uint64(n[1:])) }

// shortest returns a TTL that all records of the log have at least.
func (n logName) shortest() time.Duration {
	if n.mixed() {
		return n.ttl() - n.ttl()/16
	}
	return n.ttl()
}

func (n logName) inProgress() bool { return n[0] == logInProgress || n[0] == mixedInProgress }

// mixed reports whether each record of the log has a TTL of its own.
func (n logName) mixed() bool { return n[0] == mixedInProgress || n[0] == mixedDone }

// String returns the name as messages show it.
func (n logName) String() string { return fmt.Sprintf("%c/%v", n[0], n.ttl()) }

// A place is where a record is in the file.
type place struct {
	log logName
	seq uint64
}

func (p place) String() string { return fmt.Sprintf("record %d in log %v", p.seq, p.log) }

// seqKey returns the key of a record in its log.
func seqKey(seq uint64) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 0, seqLen), seq)
}

func putSeq(b []byte, seq uint64) { binary.BigEndian.PutUint64(b, seq) }

// seqOf is the reverse of seqKey.
func seqOf(k []byte) uint64 { return binary.BigEndian.Uint64(k) }

// headKey is the key of the head in the bucket.
var headKey = []byte("head")

// A head says what the logs hold as a whole.
type head struct {
	id      [16]byte // drawn when the bucket was made: which store this is
	seq     uint64   // number of the last write
	stamp   int64    // of the last write; the next one has no lower one
	records uint64   // how many there are
	sum     uint64   // of their checksums
}

const headLen = 1 + 16 + 4*8 + checksumLen

func (h head) encode() []byte {
	b := make([]byte, 0, headLen)
	b = append(b, formatVersion)
	b = append(b, h.id[:]...)
	b = binary.BigEndian.AppendUint64(b, h.seq)
	b = binary.BigEndian.AppendUint64(b, uint64(h.stamp))
	b = binary.BigEndian.AppendUint64(b, h.records)
	b = binary.BigEndian.AppendUint64(b, h.sum)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeHead(b []byte) (h head, err error) {
	switch {
	case len(b) == 0:
		return h, errors.New("its head is missing")
	case b[0] != formatVersion:
		return h, fmt.Errorf("its head has the format %d, this program knows %d", b[0], formatVersion)
	case len(b) != headLen || crc32.Checksum(b[:headLen-checksumLen], castagnoli) != storedChecksum(b):
		return h, errors.New("the checksum of its head is wrong")
	}
	copy(h.id[:], b[1:])
	b = b[1+16:]
	h.seq = binary.BigEndian.Uint64(b)
	h.stamp = int64(binary.BigEndian.Uint64(b[8:]))
	h.records = binary.BigEndian.Uint64(b[16:])
	h.sum = binary.BigEndian.Uint64(b[24:])
	return h, nil
}
