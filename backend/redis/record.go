package redis

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/idem-go/idem"
)

// A stored record is a string: what the script reads and writes comes first.
//
//	format       1 byte, formatVersion
//	stamp        8 bytes, microseconds since 1970 by the server's clock
//	check        2 bytes, stamp modulo stampPrime
//	ttl          8 bytes, microseconds, rounded up
//	token        2 bytes of length, and its bytes
//	status       1 byte
//	flags        1 byte
//	attempt      varint
//	fence        8 bytes
//	fingerprint  32 bytes, unless flagNoFingerprint
//	lease        varint, nanoseconds
//	less         uvarint, nanoseconds by which ttl is rounded up
//	code         varint
//	checkpoint   length and bytes
//	body         length and bytes
//	meta         number of pairs; each name and value, length and bytes
//	checksum     4 bytes, CRC-32C
//
// Integers are big-endian, lengths and numbers are uvarints. Redis stamps the
// record when it stores it, so the stamp has a check of its own; the checksum
// covers everything from ttl to before the checksum, and the key.
const (
	formatVersion = 1
	stampPrime    = 65521

	flagOmitted       = 1
	flagNoFingerprint = 2

	stampAt = 1
	checkAt = stampAt + 8
	ttlAt   = checkAt + 2
	tokenAt = ttlAt + 8

	headLen     = ttlAt       // what Redis puts in front
	shortest    = tokenAt + 2 // what the script needs to look at a record
	checksumLen = 4
)

// maxRecord is the longest string that Redis stores by default.
const maxRecord = 512 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checkKey reports why a key cannot be stored.
func checkKey(key string) error {
	if key == "" || len(key) > idem.MaxStoredKey {
		return fmt.Errorf("%w: stored keys have 1 to %d bytes, not %d", idem.ErrKey, idem.MaxStoredKey, len(key))
	}
	return nil
}

// keyTagLen is the length of what name puts between the prefix and the key.
const keyTagLen = 6

// name returns the name that the key's record has in Redis. The hash tag in
// front makes one slot of whatever braces the key contains, and spreads keys over
// the slots by all of their bytes.
func name(prefix, key string) string {
	b := make([]byte, 0, len(prefix)+keyTagLen+len(key))
	b = append(b, key...)
	sum := crc32.Checksum(b, castagnoli)
	b = append(b[:0], prefix...)
	b = append(b, '{')
	b = base64.RawURLEncoding.AppendEncode(b, []byte{byte(sum >> 16), byte(sum >> 8), byte(sum)})
	b = append(b, '}')
	return string(append(b, key...))
}

// encode returns r as it is stored under key, without what Redis puts in front.
func encode(key string, r idem.Record) ([]byte, error) {
	switch {
	case r.Token == "":
		return nil, errors.New("the record has no token")
	case len(r.Token) > math.MaxUint16:
		return nil, fmt.Errorf("the token has %d bytes, the limit is %d", len(r.Token), math.MaxUint16)
	case r.Status < idem.InProgress || r.Status > idem.Released:
		return nil, fmt.Errorf("the record has the unknown status %d", uint8(r.Status))
	}
	n := 128 + len(key) + len(r.Token) + len(r.Checkpoint) + len(r.Result.Body)
	for name, value := range r.Result.Meta {
		n += len(name) + len(value) + 2*binary.MaxVarintLen32
	}
	if n > maxRecord {
		return nil, fmt.Errorf("the record has %d bytes, the limit is %d", n, maxRecord)
	}
	ttl := max(0, r.TTL)
	micros := uint64(ttl / time.Microsecond)
	less := uint64(0)
	if rest := ttl % time.Microsecond; rest > 0 {
		micros++
		less = uint64(time.Microsecond - rest)
	}
	var flags byte
	if r.Result.Omitted {
		flags |= flagOmitted
	}
	if r.Fingerprint == (idem.Fingerprint{}) {
		flags |= flagNoFingerprint
	}
	v := make([]byte, 0, n)
	v = binary.BigEndian.AppendUint64(v, micros)
	v = binary.BigEndian.AppendUint16(v, uint16(len(r.Token)))
	v = append(v, r.Token...)
	v = append(v, byte(r.Status), flags)
	v = binary.AppendVarint(v, int64(r.Attempt))
	v = binary.BigEndian.AppendUint64(v, uint64(r.Fence))
	if flags&flagNoFingerprint == 0 {
		v = append(v, r.Fingerprint[:]...)
	}
	v = binary.AppendVarint(v, int64(r.Lease))
	v = binary.AppendUvarint(v, less)
	v = binary.AppendVarint(v, int64(r.Result.Code))
	v = appendBytes(v, r.Checkpoint)
	v = appendBytes(v, r.Result.Body)
	v = binary.AppendUvarint(v, uint64(len(r.Result.Meta)))
	for name, value := range r.Result.Meta {
		v = appendBytes(v, name)
		v = appendBytes(v, value)
	}
	sum := checksum(append(v, key...))
	return binary.BigEndian.AppendUint32(v, sum), nil
}

// stamp puts in front of an encoded record what Redis does when a script stores
// it.
func stamp(encoded []byte, now int64) []byte {
	v := make([]byte, headLen, headLen+len(encoded))
	v[0] = formatVersion
	binary.BigEndian.PutUint64(v[stampAt:], uint64(now))
	binary.BigEndian.PutUint16(v[checkAt:], uint16(now%stampPrime))
	return append(v, encoded...)
}

func appendBytes[T string | []byte](b []byte, s T) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// checksum returns the checksum of an encoded record with its key behind it.
func checksum(encoded []byte) uint32 { return crc32.Checksum(encoded, castagnoli) }

// decode returns a stored record and its stamp. The record's age is not set, and
// its slices are its own.
func decode(key, stored string) (r idem.Record, stamp int64, err error) {
	v := append(make([]byte, 0, len(stored)+len(key)), stored...)
	switch {
	case len(v) < shortest+checksumLen:
		return r, 0, fmt.Errorf("it has only %d bytes", len(v))
	case v[0] != formatVersion:
		return r, 0, fmt.Errorf("it has the format %d, this program knows %d", v[0], formatVersion)
	}
	end := len(v) - checksumLen
	stamp = int64(binary.BigEndian.Uint64(v[stampAt:]))
	if stamp < 0 || uint16(stamp%stampPrime) != binary.BigEndian.Uint16(v[checkAt:]) {
		return r, 0, errors.New("its stamp does not match its check")
	}
	sum := binary.BigEndian.Uint32(v[end:])
	if checksum(append(v[headLen:end], key...)) != sum {
		return r, 0, errors.New("its checksum does not match")
	}
	in := reader{b: v[ttlAt:end]}
	ttl := in.uint64()
	r.Token = string(in.take(uint64(in.uint16())))
	r.Status = idem.Status(in.byte())
	flags := in.byte()
	r.Attempt = int(in.varint())
	r.Fence = int64(in.uint64())
	if flags&flagNoFingerprint == 0 {
		copy(r.Fingerprint[:], in.take(uint64(len(r.Fingerprint))))
	}
	r.Lease = time.Duration(in.varint())
	r.TTL = micros(ttl, in.uvarint())
	r.Result.Code = int(in.varint())
	r.Result.Omitted = flags&flagOmitted != 0
	r.Checkpoint = in.slice()
	r.Result.Body = in.slice()
	if n := in.uvarint(); n > 0 && n <= uint64(len(in.b)) {
		r.Result.Meta = make(map[string]string, n)
		for range n {
			name := string(in.slice())
			r.Result.Meta[name] = string(in.slice())
		}
	} else if n > 0 {
		in.short = true
	}
	if in.short || len(in.b) > 0 || r.Token == "" || r.Status < idem.InProgress || r.Status > idem.Released {
		return idem.Record{}, 0, errors.New("its fields do not add up")
	}
	return r, stamp, nil
}

// tokenOf returns the token of a stored record, or "" if it is damaged.
func tokenOf(stored string) string {
	if len(stored) < shortest {
		return ""
	}
	n := int(stored[tokenAt])<<8 | int(stored[tokenAt+1])
	return stored[shortest:min(len(stored), shortest+n)]
}

// micros returns the duration of n microseconds, less some nanoseconds.
func micros(n, less uint64) time.Duration {
	if less == 0 {
		return time.Duration(n) * time.Microsecond
	}
	// The longest duration, rounded up, would be too long.
	return time.Duration(n-1)*time.Microsecond + time.Duration(1000-less)
}

// A reader takes fields off the front of b and notes if one is missing.
type reader struct {
	b     []byte
	short bool
}

var zeros [64]byte

func (in *reader) take(n uint64) []byte {
	if n > uint64(len(in.b)) {
		in.short = true
		return zeros[:min(n, uint64(len(zeros)))]
	}
	field := in.b[:n:n]
	in.b = in.b[n:]
	return field
}

func (in *reader) byte() byte     { return in.take(1)[0] }
func (in *reader) uint16() uint16 { return binary.BigEndian.Uint16(in.take(2)) }
func (in *reader) uint64() uint64 { return binary.BigEndian.Uint64(in.take(8)) }

func (in *reader) uvarint() uint64 {
	x, n := binary.Uvarint(in.b)
	in.advance(n)
	return x
}

func (in *reader) varint() int64 {
	x, n := binary.Varint(in.b)
	in.advance(n)
	return x
}

func (in *reader) advance(n int) {
	if n <= 0 {
		in.short = true
		return
	}
	in.b = in.b[n:]
}

// slice returns nil for what is empty.
func (in *reader) slice() []byte {
	if b := in.take(in.uvarint()); len(b) > 0 {
		return b
	}
	return nil
}
