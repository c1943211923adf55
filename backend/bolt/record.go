package bolt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/idem-go/idem"
)

// A stored record is, in this order:
//
//	format       1 byte, formatVersion
//	status       1 byte
//	flags        1 byte, omitted
//	stamp        8 bytes, nanoseconds since 1970 by the file's clock
//	fence        8 bytes
//	fingerprint  32 bytes
//	key          length and bytes
//	token        length and bytes
//	attempt      varint
//	lease        varint, nanoseconds
//	code         varint
//	checkpoint   length and bytes
//	body         length and bytes
//	meta         number of pairs; each name and value, length and bytes
//	TTL          8 bytes, nanoseconds, in a mixed log; see layout.go
//	checksum     4 bytes, CRC-32C
//
// Integers are big-endian, lengths and numbers are uvarints. Where the log is not
// mixed, the TTL is in its name. The checksum covers the log's name, the
// record's number in it and everything before the checksum, so that a record
// which turns up in another place is damage too.
const (
	formatVersion = 1

	flagOmitted = 1

	statusAt      = 1
	flagsAt       = 2
	stampAt       = 3
	fenceAt       = stampAt + 8
	fingerprintAt = fenceAt + 8
	keyAt         = fingerprintAt + 32

	ttlLen      = 8
	checksumLen = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode returns r as it is stored under key, except for the stamp and the
// checksum, which seal adds when the record's place is known.
func encode(key string, r idem.Record) ([]byte, error) {
	switch {
	case key == "" || len(key) > idem.MaxStoredKey:
		return nil, fmt.Errorf("%w: stored keys have 1 to %d bytes, not %d", idem.ErrKey, idem.MaxStoredKey, len(key))
	case r.Token == "":
		return nil, errors.New("the record has no token")
	case r.Status < idem.InProgress || r.Status > idem.Released:
		return nil, fmt.Errorf("the record has the unknown status %d", uint8(r.Status))
	}
	n := keyAt + len(key) + len(r.Token) + len(r.Checkpoint) + len(r.Result.Body) + ttlLen + checksumLen + 8*binary.MaxVarintLen32
	for name, value := range r.Result.Meta {
		n += len(name) + len(value) + 2*binary.MaxVarintLen32
	}
	if n > math.MaxInt32 {
		return nil, fmt.Errorf("the record has %d bytes, the limit is %d", n, math.MaxInt32)
	}
	v := make([]byte, keyAt, n)
	v[0], v[statusAt] = formatVersion, byte(r.Status)
	if r.Result.Omitted {
		v[flagsAt] = flagOmitted
	}
	binary.BigEndian.PutUint64(v[fenceAt:], uint64(r.Fence))
	copy(v[fingerprintAt:], r.Fingerprint[:])
	v = appendBytes(v, key)
	v = appendBytes(v, r.Token)
	v = binary.AppendVarint(v, int64(r.Attempt))
	v = binary.AppendVarint(v, int64(r.Lease))
	v = binary.AppendVarint(v, int64(r.Result.Code))
	v = appendBytes(v, r.Checkpoint)
	v = appendBytes(v, r.Result.Body)
	v = binary.AppendUvarint(v, uint64(len(r.Result.Meta)))
	for name, value := range r.Result.Meta {
		v = appendBytes(v, name)
		v = appendBytes(v, value)
	}
	if logOf(r).mixed() {
		v = binary.BigEndian.AppendUint64(v, uint64(r.TTL))
	}
	return append(v, 0, 0, 0, 0), nil
}

func appendBytes[T string | []byte](b []byte, s T) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// seal writes the stamp and the checksum into an encoded record.
func seal(v []byte, at place, stamp int64) {
	binary.BigEndian.PutUint64(v[stampAt:], uint64(stamp))
	binary.BigEndian.PutUint32(v[len(v)-checksumLen:], checksum(v, at))
}

// checksum computes the checksum of a stored record.
func checksum(v []byte, at place) uint32 {
	return crc32.Update(placeChecksum(at), castagnoli, v[:len(v)-checksumLen])
}

// placeChecksum is the checksum of a log's name and a number in it. For so few
// bytes a loop is quicker than the package, and keeps them on the stack.
func placeChecksum(at place) uint32 {
	crc := ^uint32(0)
	for _, b := range at.log {
		crc = castagnoli[byte(crc)^b] ^ crc>>8
	}
	for shift := 56; shift >= 0; shift -= 8 {
		crc = castagnoli[byte(crc)^byte(at.seq>>shift)] ^ crc>>8
	}
	return ^crc
}

// storedChecksum returns the checksum that a stored record has.
func storedChecksum(v []byte) uint32 {
	return binary.BigEndian.Uint32(v[len(v)-checksumLen:])
}

// verify reports what is wrong with the bytes of a stored record.
func verify(v []byte, at place) error {
	switch {
	case len(v) < keyAt+checksumLen:
		return fmt.Errorf("it has only %d bytes", len(v))
	case v[0] != formatVersion:
		return fmt.Errorf("it has the format %d, this program knows %d", v[0], formatVersion)
	case storedChecksum(v) != checksum(v, at):
		return errors.New("its checksum is wrong")
	case at.log.mixed() && (len(v) < keyAt+ttlLen+checksumLen || mixedTTL(ttlOf(v, at)) != at.log.ttl()):
		return errors.New("its TTL is not one of the log's")
	}
	return nil
}

// ttlOf returns the TTL of a stored record that has been verified.
func ttlOf(v []byte, at place) time.Duration {
	if at.log.mixed() {
		return time.Duration(binary.BigEndian.Uint64(v[len(v)-checksumLen-ttlLen:]))
	}
	return at.log.ttl()
}

// keyOf returns the key of a stored record, within v, or nil if there is none.
func keyOf(v []byte) []byte {
	if len(v) < keyAt+checksumLen {
		return nil
	}
	d := decoder{rest: v[keyAt : len(v)-checksumLen]}
	key := d.bytes()
	if d.bad {
		return nil
	}
	return key
}

// tokenOf returns the token of a stored record that has been verified, within v.
func tokenOf(v []byte) []byte {
	d := decoder{rest: v[keyAt : len(v)-checksumLen]}
	d.bytes() // the key
	return d.bytes()
}

// stampOf returns the stamp of a stored record that has been verified.
func stampOf(v []byte) int64 {
	return int64(binary.BigEndian.Uint64(v[stampAt:]))
}

// decode reads a stored record, with its age at the time now. The result shares
// no memory with v.
func decode(v []byte, at place, now int64) (idem.Record, error) {
	if err := verify(v, at); err != nil {
		return idem.Record{}, err
	}
	end := len(v) - checksumLen
	if at.log.mixed() {
		end -= ttlLen
	}
	d := decoder{rest: v[keyAt:end]}
	r := idem.Record{
		Status: idem.Status(v[statusAt]),
		Fence:  int64(binary.BigEndian.Uint64(v[fenceAt:])),
		TTL:    ttlOf(v, at),
		Age:    time.Duration(max(0, now-stampOf(v))),
	}
	copy(r.Fingerprint[:], v[fingerprintAt:])
	key := d.bytes()
	r.Token = string(d.bytes())
	r.Attempt = d.int()
	r.Lease = time.Duration(d.varint())
	r.Result.Code = d.int()
	r.Checkpoint = d.clone()
	r.Result.Body = d.clone()
	for n := d.uvarint(); n > 0 && !d.bad; n-- {
		if r.Result.Meta == nil {
			r.Result.Meta = make(map[string]string, min(n, 64))
		}
		name := string(d.bytes())
		r.Result.Meta[name] = string(d.bytes())
	}
	r.Result.Omitted = v[flagsAt]&flagOmitted != 0
	switch {
	case d.bad || len(d.rest) > 0:
		return idem.Record{}, errors.New("its fields do not fill it")
	case len(key) == 0 || r.Token == "" || v[flagsAt]&^flagOmitted != 0 || at.log.inProgress() != (r.Status == idem.InProgress):
		return idem.Record{}, errors.New("a field has an impossible value")
	}
	return r, nil
}

// A decoder reads fields off the front of rest. After the first one that is
// damaged it is bad and returns zeros.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	return advance(d, v, n)
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.rest)
	return advance(d, v, n)
}

func advance[T int64 | uint64](d *decoder, v T, n int) T {
	if n <= 0 || d.bad {
		d.bad = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) int() int {
	v := d.varint()
	if int64(int(v)) != v {
		d.bad = true
	}
	return int(v)
}

func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if d.bad || n > uint64(len(d.rest)) {
		d.bad = true
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) clone() []byte {
	b := d.bytes()
	if len(b) == 0 {
		return nil
	}
	return append([]byte(nil), b...)
}
