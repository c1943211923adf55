package idem

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// A Fingerprint identifies the payload of an operation, so that a key that is
// used again for something else is noticed. It is a SHA-256 and compared whole:
// checksums of 32 bits collide on neighbouring payloads.
//
// Put in everything that makes the request what it is (the amount, the account,
// the method and the path) and nothing that differs between two attempts (a
// time, a trace id).
type Fingerprint [32]byte

// FingerprintOf returns the fingerprint of a list of byte strings. The parts are
// length-prefixed: ("ab", "c") differs from ("a", "bc").
func FingerprintOf(parts ...[]byte) Fingerprint {
	h := sha256.New()
	var length [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(length[:], uint64(len(p)))
		h.Write(length[:])
		h.Write(p)
	}
	var f Fingerprint
	h.Sum(f[:0])
	return f
}

// FingerprintJSON returns the fingerprint of a JSON document (RFC 8259). The
// order of members, white space and the way in which characters are escaped do
// not count. Everything else does: the order of arrays, null against an absent
// member, 1 against "1". Numbers count as they are written, whatever their
// size, so 1 differs from 1.0.
//
// It is an error if doc is not one valid document in UTF-8, if an object has
// the same name twice, or if a string has half of a surrogate pair: readers
// disagree about what such documents say.
func FingerprintJSON(doc []byte) (Fingerprint, error) {
	if !utf8.Valid(doc) {
		return Fingerprint{}, errors.New("idem: fingerprint: the document is not valid UTF-8")
	}
	if !json.Valid(doc) { // also bounds the nesting, at 10,000
		err := json.Unmarshal(doc, new(any))
		return Fingerprint{}, fmt.Errorf("idem: fingerprint: %w", err)
	}
	if err := checkSurrogates(doc); err != nil {
		return Fingerprint{}, err
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	f, err := fingerprintValue(dec)
	if err != nil {
		return Fingerprint{}, fmt.Errorf("idem: fingerprint: %w", err)
	}
	return f, nil
}

// fingerprintValue reads one value and returns its fingerprint: that of a letter
// for its kind and its text, of the fingerprints of its elements in order, or of
// its members' names and fingerprints, sorted by name. Hashing each value once,
// and not copying it level by level, keeps the cost to the size of the document.
func fingerprintValue(dec *json.Decoder) (Fingerprint, error) {
	t, err := dec.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Fingerprint{}, err
	}
	switch v := t.(type) {
	case nil:
		return FingerprintOf([]byte("null")), nil
	case bool:
		return FingerprintOf([]byte("bool"), strconv.AppendBool(nil, v)), nil
	case json.Number:
		return FingerprintOf([]byte("number"), []byte(v)), nil
	case string:
		return FingerprintOf([]byte("string"), []byte(v)), nil
	case json.Delim:
		if v == '[' {
			return fingerprintArray(dec)
		}
		return fingerprintObject(dec)
	}
	return Fingerprint{}, fmt.Errorf("unexpected token %v", t)
}

func fingerprintArray(dec *json.Decoder) (Fingerprint, error) {
	var elements []byte
	for dec.More() {
		f, err := fingerprintValue(dec)
		if err != nil {
			return Fingerprint{}, err
		}
		elements = append(elements, f[:]...)
	}
	_, err := dec.Token() // the closing bracket
	return FingerprintOf([]byte("array"), elements), err
}

func fingerprintObject(dec *json.Decoder) (Fingerprint, error) {
	type member struct {
		name  string
		value Fingerprint
	}
	var members []member
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return Fingerprint{}, err
		}
		value, err := fingerprintValue(dec)
		if err != nil {
			return Fingerprint{}, err
		}
		members = append(members, member{name.(string), value})
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return Fingerprint{}, err
	}
	slices.SortFunc(members, func(x, y member) int { return strings.Compare(x.name, y.name) })
	parts := [][]byte{[]byte("object")}
	for i, m := range members {
		if i > 0 && members[i-1].name == m.name {
			return Fingerprint{}, fmt.Errorf("the name %q stands twice in one object", m.name)
		}
		parts = append(parts, []byte(m.name), m.value[:])
	}
	return FingerprintOf(parts...), nil
}

// checkSurrogates refuses escapes that are half of a surrogate pair. The
// decoder would turn each of them into U+FFFD, and make different documents
// equal. doc is valid JSON: a backslash stands only in a string and begins an
// escape.
func checkSurrogates(doc []byte) error {
	for i := 0; i < len(doc); i++ {
		if doc[i] != '\\' {
			continue
		}
		unit := escapedUnit(doc[i:])
		switch {
		case unit < 0:
			i++ // a short escape such as \n
		case !utf16.IsSurrogate(unit):
			i += 5
		case utf16.DecodeRune(unit, escapedUnit(doc[i+6:])) != unicode.ReplacementChar:
			i += 11
		default:
			return fmt.Errorf("idem: fingerprint: the string at byte %d has half of a surrogate pair", i)
		}
	}
	return nil
}

// escapedUnit returns the UTF-16 unit that the escape \uhhhh (four digits) at the beginning
// of b stands for, or -1 if there is none.
func escapedUnit(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}
