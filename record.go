package idem

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of keys and scopes, in bytes. A scope's limit holds for all its levels
// joined.
const (
	MaxKey   = 255
	MaxScope = 255
)

// separator joins the levels of a scope and the key into the stored key. Neither
// may contain it, so that no two pairs are stored under the same key.
const separator = "\x1f"

// A Status says what has become of an operation. The zero Status is that of no
// record at all.
type Status uint8

const (
	InProgress Status = iota + 1 // claimed; running, lapsed or abandoned
	Completed                    // done, with a result to replay
	Released                     // given back: nothing happened and the key is free
)

// String returns "in-progress", "completed", "released", or "absent" for the
// zero Status.
func (s Status) String() string {
	switch s {
	case 0:
		return "absent"
	case InProgress:
		return "in-progress"
	case Completed:
		return "completed"
	case Released:
		return "released"
	}
	return fmt.Sprintf("status-%d", uint8(s))
}

// A Record is what is stored under a key. The zero Record stands for no record.
type Record struct {
	Token       string      // names this write: "<attempt id>.<random>"; backends compare it and never interpret it
	Status      Status      // InProgress, Completed or Released
	Attempt     int         // 1, 2, ...: how many claims this key has been granted
	Fence       int64       // larger for every claim of the key: max(previous+1, unix microseconds)
	Fingerprint Fingerprint // of the payload; zero after Release
	Result      Result      // set when Completed
	Checkpoint  []byte      // what the holder noted down for whoever takes over

	// Lease and TTL are counted from the write of this record. A Lease of 0 in
	// a record that is InProgress means that its attempt was abandoned.
	Lease, TTL time.Duration

	// Age is the time since the write of this record, by the backend's clock.
	// It is set on reading and ignored on writing.
	Age time.Duration
}

// LeaseLeft returns for how long the record's lease still runs: 0 for a lease
// that is over and for a record that is not InProgress, at most Lease.
func (r Record) LeaseLeft() time.Duration {
	if r.Status != InProgress {
		return 0
	}
	return max(0, r.Lease-max(0, r.Age))
}

// Lapsed reports whether the record is InProgress and its lease is over: the
// attempt crashed, hangs or was abandoned, and what it has done is unknown.
func (r Record) Lapsed() bool {
	return r.Status == InProgress && r.LeaseLeft() == 0
}

// Expired reports whether the record has outlived its TTL, which is the same as
// not being there.
func (r Record) Expired() bool {
	return r.Age >= r.TTL
}

// Clone returns a copy of r that shares no memory with it.
func (r Record) Clone() Record {
	r.Result = r.Result.Clone()
	r.Checkpoint = cloneBytes(r.Checkpoint)
	return r
}

// normal returns r with nil for what is empty, so that no caller sees a
// difference between two backends.
func (r Record) normal() Record {
	if len(r.Result.Body) == 0 {
		r.Result.Body = nil
	}
	if len(r.Result.Meta) == 0 {
		r.Result.Meta = nil
	}
	if len(r.Checkpoint) == 0 {
		r.Checkpoint = nil
	}
	return r
}

// attemptID returns the part of the token that all writes of one attempt share.
func (r Record) attemptID() string {
	id, _, _ := strings.Cut(r.Token, ".")
	return id
}

// A Result is the answer of an operation, to be given again to every
// duplicate. An empty Meta or Body is the same as nil, and comes back as nil.
type Result struct {
	Code int               // the transport's status: HTTP status, exit code, gRPC code
	Meta map[string]string // what a replay needs besides the body (content type, ...); any bytes
	Body []byte

	// Omitted tells that the body was larger than Options.MaxResult and is not
	// stored; the operation is done all the same. Meta is left out as well if
	// it is larger than that by itself. Store.Erase leaves both out.
	Omitted bool
}

// Equal reports whether the two results are the same answer. Of a body that was
// omitted only that fact is compared.
func (r Result) Equal(other Result) bool {
	return r.Code == other.Code && r.Omitted == other.Omitted &&
		bytes.Equal(r.Body, other.Body) && maps.Equal(r.Meta, other.Meta)
}

// Clone returns a copy of r that shares no memory with it.
func (r Result) Clone() Result {
	r.Body = cloneBytes(r.Body)
	if len(r.Meta) == 0 {
		r.Meta = nil
	}
	r.Meta = maps.Clone(r.Meta)
	return r
}

// limit returns r as it is stored where bodies are kept up to size bytes.
func (r Result) limit(size int) Result {
	meta := 0
	for k, v := range r.Meta {
		meta += len(k) + len(v)
	}
	if len(r.Body) > size {
		r.Body, r.Omitted = nil, true
	}
	if meta > size {
		r.Meta, r.Body, r.Omitted = nil, nil, true
	}
	return r
}

// cloneBytes copies b; an empty slice becomes nil, as everywhere in a record.
func cloneBytes(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return bytes.Clone(b)
}

// String returns the fingerprint in hexadecimal.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// SplitKey takes a stored key, as [Lister] returns it, apart: the levels of its
// scope, outermost first and none for a key without scope, and the key that
// was given to the Store.
func SplitKey(stored string) (scope []string, key string) {
	parts := strings.Split(stored, separator)
	return parts[:len(parts)-1], parts[len(parts)-1]
}

// ScopePrefix returns what the stored keys of a scope, given by its levels, and
// of all scopes below it begin with, for [Query]. Without levels it is "".
func ScopePrefix(scope ...string) string {
	if len(scope) == 0 {
		return ""
	}
	return strings.Join(scope, separator) + separator
}

// storedKey joins a scope, its levels joined already, and a key.
func storedKey(scope, key string) string {
	if scope == "" {
		// Without a separator it cannot be mistaken for a key in a scope. The
		// clone keeps a caller's large buffer from being held by its key.
		return strings.Clone(key)
	}
	return scope + separator + key
}

// isPlain reports whether s is of printable ASCII, as most keys are. It looks at
// eight bytes at a time: every call has a key to check, and a replay does little
// else.
func isPlain(s string) bool {
	for ; len(s) >= 8; s = s[8:] {
		w := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
		// Below 0x20 the subtraction borrows, above 0x7e the addition reaches the
		// top bit, or it is set already.
		if ((w-0x2020202020202020)|(w+0x0101010101010101)|w)&0x8080808080808080 != 0 {
			return false
		}
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// checkText reports what is wrong with a key or a level of a scope.
func checkText(what, s string, limit int) error {
	switch {
	case s == "":
		return fmt.Errorf("%w: the %s is empty; the caller has to name the operation, and name it the same in every retry", ErrKey, what)
	case len(s) > limit:
		return fmt.Errorf("%w: the %s has %d bytes, the limit is %d; hash long names", ErrKey, what, len(s), limit)
	case isPlain(s):
		return nil // nothing else can be wrong with it
	case !utf8.ValidString(s):
		return fmt.Errorf("%w: the %s is not valid UTF-8", ErrKey, what)
	}
	if i := strings.IndexFunc(s, unicode.IsControl); i >= 0 {
		r, _ := utf8.DecodeRuneInString(s[i:])
		return fmt.Errorf("%w: the %s contains the control character %U at byte %d", ErrKey, what, r, i)
	}
	return nil
}
