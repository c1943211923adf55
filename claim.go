package idem

import (
	"bytes"
	"crypto/rand"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"strings"
	"sync"
	"time"
)

// A Claim is one attempt's right to run an operation. Store.Begin grants it,
// and Complete, Release or Abandon ends it. It is safe for concurrent use, and
// may be used through any Store of the same scope and storage.
//
// A Claim travels as text, so that a worker can complete what an API server
// began. Copies of a claim are one attempt: what one of them extends or
// completes holds for all.
type Claim struct {
	Key         string      // as it was given to Begin
	Attempt     int         // 1, 2, ...: how many claims this key has been granted
	Fence       int64       // larger for every claim of the key; for other systems ("where fence < $1")
	Fingerprint Fingerprint // of the payload

	// Takeover tells that an earlier attempt ended without a known outcome: it
	// may have had its effect. Checkpoint is what it had noted down.
	Takeover   bool
	Checkpoint []byte

	stored string // the key in the storage
	id     string // of the attempt: the part that all its tokens share
	frees  bool   // Release frees the key: no earlier attempt's outcome is unknown, or it has been found out

	mu       sync.Mutex
	last     Record    // what this copy last knew to be stored
	over     bool      // this copy has ended the claim
	leasedAt time.Time // when the write that began the present lease was first sent
}

// Bytes of randomness in a token: 128 bits name the attempt, and do not meet by
// chance; 64 bits tell the writes of one attempt apart.
const (
	idBytes    = 16
	writeBytes = 8
)

// newClaim returns a claim of a new attempt, and the name of its first write. Its
// identity is drawn before the first packet, so that a claim whose answer is lost
// is recognised. It has a copy of a stored key that is the caller's: a caller's
// large buffer must not be held by a key in it.
func newClaim(stored, key string) (c *Claim, token string) {
	if len(stored) == len(key) {
		stored = strings.Clone(stored)
	}
	var random [idBytes + writeBytes]byte
	rand.Read(random[:])
	text := make([]byte, 0, 64) // stays on the stack
	text = base64.RawURLEncoding.AppendEncode(text, random[:idBytes])
	id := len(text)
	text = append(text, '.')
	token = string(base64.RawURLEncoding.AppendEncode(text, random[idBytes:]))
	return &Claim{Key: stored[len(stored)-len(key):], stored: stored, id: token[:id]}, token
}

// newToken returns the name of another write of an attempt. Every write has its
// own: two copies of one claim would otherwise take each other's writes for
// theirs.
func newToken(attemptID string) string {
	var random [writeBytes]byte
	rand.Read(random[:])
	token := make([]byte, 0, 64) // stays on the stack
	token = append(token, attemptID...)
	token = append(token, '.')
	return string(base64.RawURLEncoding.AppendEncode(token, random[:]))
}

// Scope returns the levels of the scope of the Store that granted the claim,
// outermost first; none if it has no scope. Whoever gets claims of several scopes
// finds the Store for one by it.
func (c *Claim) Scope() []string {
	scope, _ := SplitKey(c.stored)
	return scope
}

// ChildKey returns a key to send on to another system with a call that is part
// of this operation. It is the same in every attempt, and different for every
// name and operation. It has 32 letters and digits.
func (c *Claim) ChildKey(name string) string {
	f := FingerprintOf([]byte("child key"), []byte(c.stored), []byte(name))
	return strings.ToLower(base32.StdEncoding.EncodeToString(f[:20]))
}

// NewKey returns a key for an operation that has no natural one, such as an
// order number. Make it for the first attempt, persist it, and send it with
// every retry: a new key for every attempt protects from nothing.
//
// It is a UUID of version 7 (RFC 9562, section 5.7): 48 bits of the time in
// milliseconds, and 74 bits that nobody can guess. A storage that keeps records
// by their keys, as PostgreSQL's index does, finds new keys next to each other,
// and has fewer pages to write than for keys in no order.
func NewKey() string {
	var u [16]byte
	binary.BigEndian.PutUint64(u[:], uint64(time.Now().UnixMilli())<<16)
	rand.Read(u[6:])
	u[6] = u[6]&0x0f | 0x70 // the version
	u[8] = u[8]&0x3f | 0x80 // the variant
	x := hex.EncodeToString(u[:])
	return x[:8] + "-" + x[8:12] + "-" + x[12:16] + "-" + x[16:20] + "-" + x[20:]
}

// claimText begins the text form of a claim.
const claimText = "idem1."

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// MarshalText returns the claim as text of URL-safe characters, to be handed to
// another process. Whoever has it can complete the operation: keep it to
// yourself, and mind that loggers and encoders print what a TextMarshaler gives.
func (c *Claim) MarshalText() ([]byte, error) {
	if c == nil || c.stored == "" {
		return nil, &Error{Op: "marshal claim", Err: errNoClaim}
	}
	c.mu.Lock()
	last := c.last
	c.mu.Unlock()
	b := []byte{0}
	if c.Takeover {
		b[0] |= 1
	}
	if c.frees {
		b[0] |= 2
	}
	b = append(b, c.Fingerprint[:]...)
	b = binary.AppendUvarint(b, uint64(c.Attempt))
	b = binary.AppendVarint(b, c.Fence)
	b = binary.AppendUvarint(b, uint64(last.Lease))
	b = binary.AppendUvarint(b, uint64(last.TTL))
	b = appendText(b, c.stored)
	b = appendText(b, last.Token)
	b = append(b, last.Checkpoint...)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return base64.RawURLEncoding.AppendEncode([]byte(claimText), b), nil
}

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// UnmarshalText makes c the claim whose MarshalText is text. Its Checkpoint is
// the last one that the other copy has noted down. Damaged text is ErrCorrupt.
func (c *Claim) UnmarshalText(text []byte) error {
	b, ok := bytes.CutPrefix(text, []byte(claimText))
	if !ok {
		return &Error{Op: "unmarshal claim", Err: fmt.Errorf("%w: the text does not begin with %q", ErrCorrupt, claimText)}
	}
	b, err := base64.RawURLEncoding.AppendDecode(nil, b)
	if err != nil {
		return &Error{Op: "unmarshal claim", Err: fmt.Errorf("%w: %w", ErrCorrupt, err)}
	}
	body := b[:max(0, len(b)-4)]
	if len(b) < 4 || crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(b[len(body):]) {
		return &Error{Op: "unmarshal claim", Err: fmt.Errorf("%w: the checksum does not match; the text was cut or changed", ErrCorrupt)}
	}
	r := textReader{b: body}
	flags := r.bytes(1)[0]
	fp := Fingerprint(r.bytes(len(Fingerprint{})))
	last := Record{
		Status:      InProgress,
		Fingerprint: fp,
		Attempt:     int(r.uvarint()),
		Fence:       r.varint(),
		Lease:       time.Duration(r.uvarint()),
		TTL:         time.Duration(r.uvarint()),
	}
	stored := string(r.bytes(int(r.uvarint())))
	last.Token = string(r.bytes(int(r.uvarint())))
	last.Checkpoint = cloneBytes(r.b)
	_, key := SplitKey(stored)
	if r.failed || checkText("key", key, MaxKey) != nil || last.attemptID() == "" {
		return &Error{Op: "unmarshal claim", Err: fmt.Errorf("%w: a field is missing", ErrCorrupt)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Key, c.stored, c.id = key, stored, last.attemptID()
	c.Attempt, c.Fence, c.Fingerprint = last.Attempt, last.Fence, fp
	c.Takeover, c.frees = flags&1 != 0, flags&2 != 0
	c.Checkpoint = cloneBytes(last.Checkpoint)
	c.last, c.over, c.leasedAt = last, false, time.Time{}
	return nil
}

// A textReader takes fields off the front of b. What is missing reads as zeros
// and is noted.
type textReader struct {
	b      []byte
	failed bool
}

func (r *textReader) bytes(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.failed = true
		return make([]byte, min(max(n, 1), 64))
	}
	field := r.b[:n]
	r.b = r.b[n:]
	return field
}

func (r *textReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	r.bytes(max(n, 0))
	r.failed = r.failed || n <= 0
	return v
}

func (r *textReader) varint() int64 {
	v, n := binary.Varint(r.b)
	r.bytes(max(n, 0))
	r.failed = r.failed || n <= 0
	return v
}
