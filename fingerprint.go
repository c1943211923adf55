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
	canonical, err := appendCanonical(nil, dec)
	if err != nil {
		return Fingerprint{}, fmt.Errorf("idem: fingerprint: %w", err)
	}
	return FingerprintOf([]byte("json"), canonical), nil
}

// appendCanonical reads one value and appends it in a form of our own: a letter
// for the kind, then the length-prefixed content, members sorted by name.
func appendCanonical(b []byte, dec *json.Decoder) ([]byte, error) {
	t, err := dec.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	switch v := t.(type) {
	case nil:
		return append(b, 'z'), nil
	case bool:
		return strconv.AppendBool(append(b, 'b'), v), nil
	case json.Number:
		return appendText(append(b, 'n'), v.String()), nil
	case string:
		return appendText(append(b, 's'), v), nil
	case json.Delim:
		if v == '[' {
			return appendArray(append(b, '['), dec)
		}
		return appendObject(append(b, '{'), dec)
	}
	return nil, fmt.Errorf("unexpected token %v", t)
}

func appendArray(b []byte, dec *json.Decoder) (_ []byte, err error) {
	for dec.More() {
		if b, err = appendCanonical(b, dec); err != nil {
			return nil, err
		}
	}
	_, err = dec.Token() // the closing bracket
	return append(b, ']'), err
}

func appendObject(b []byte, dec *json.Decoder) ([]byte, error) {
	type member struct {
		name  string
		value []byte
	}
	var members []member
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		value, err := appendCanonical(nil, dec)
		if err != nil {
			return nil, err
		}
		members = append(members, member{name.(string), value})
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return nil, err
	}
	slices.SortFunc(members, func(x, y member) int { return strings.Compare(x.name, y.name) })
	for i, m := range members {
		if i > 0 && members[i-1].name == m.name {
			return nil, fmt.Errorf("the name %q stands twice in one object", m.name)
		}
		b = appendText(b, m.name)
		b = append(b, m.value...)
	}
	return append(b, '}'), nil
}

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
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

// escapedUnit returns the UTF-16 unit that the escape \uXXXX at the beginning
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
