package idemhttp

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/idem-go/idem"
)

// Names of headers.
const (
	// KeyHeader is the request header that names the operation.
	KeyHeader = "Idempotency-Key"

	// ReplayedHeader is "true" in an answer that was stored before, and absent
	// from the first one.
	ReplayedHeader = "Idempotent-Replayed"

	// OmittedHeader is "true" in a replay whose body was not kept: the
	// operation is done, with the status that the replay has.
	OmittedHeader = "Idempotent-Body-Omitted"
)

var (
	errNoKey    = errors.New("there is no " + KeyHeader + " header")
	errManyKeys = errors.New("there is more than one " + KeyHeader + " header line; send one")
)

// requestKey returns the key of a request; errNoKey if it has none.
func requestKey(h http.Header) (string, error) {
	switch lines := h[KeyHeader]; len(lines) {
	case 0:
		return "", errNoKey
	case 1:
		return ParseKey(lines[0])
	}
	return "", errManyKeys
}

// parameters matches the parameters of an item (RFC 8941, section 3.1.2).
var parameters = regexp.MustCompile(`^(?:; *[a-z*][a-z0-9_.*-]*(?:=(?:` +
	`-?[0-9]{1,12}\.[0-9]{1,3}|-?[0-9]{1,15}|` + // decimal, integer
	`"(?:[ !#-\[\]-~]|\\["\\])*"|` + // string
	"[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*|" + // token
	`:[A-Za-z0-9+/=]*:|\?[01]))?)*$`) // byte sequence, boolean

// ParseKey returns the key that a header value stands for. The value is a string
// in double quotes (RFC 8941, section 3.3.3), as in
//
//	Idempotency-Key: "8e03978e-40d5-43e8-bc93-6894a57f9324"
//
// Many clients leave the quotes out: a value of visible ASCII without quotation
// marks, backslashes, commas and semicolons is the same key as its quoted form.
// No parameter is defined, so well-formed ones after a quoted key are ignored. A
// key has 1 to [idem.MaxKey] characters.
func ParseKey(value string) (string, error) {
	s := strings.Trim(value, " \t")
	if s == "" {
		return "", errors.New("the key is empty")
	}
	key := s
	if s[0] == '"' {
		var rest string
		var ok bool
		if key, rest, ok = quoted(s[1:]); !ok {
			return "", errors.New("the key is not a string in double quotes: visible ASCII characters and spaces, with backslashes before quotation marks and backslashes only")
		}
		if rest != "" && !parameters.MatchString(rest) {
			return "", errors.New("after the closing quotation mark there is something that is not a parameter; one request has one key")
		}
	} else if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"\,;`, r) }) {
		return "", errors.New(`the key has characters that need it to be in double quotes, such as "8e03978e-40d5"`)
	}
	switch {
	case key == "":
		return "", errors.New("the key is empty")
	case len(key) > idem.MaxKey:
		return "", fmt.Errorf("the key has %d characters, the limit is %d", len(key), idem.MaxKey)
	}
	return key, nil
}

// quoted reads a string up to its closing quotation mark and returns what
// follows.
func quoted(s string) (text, rest string, ok bool) {
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '"':
			return b.String(), s[i+1:], true
		case c < ' ' || c > '~':
			return "", "", false
		case c == '\\':
			if i++; i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", "", false
			}
			c = s[i]
		}
		b.WriteByte(c)
	}
	return "", "", false
}

// FormatKey returns the header value that stands for key. It is an error if key
// cannot be sent: the header carries 1 to [idem.MaxKey] visible ASCII characters
// and spaces.
func FormatKey(key string) (string, error) {
	switch {
	case key == "":
		return "", fmt.Errorf("idemhttp: %w: the key is empty", idem.ErrKey)
	case len(key) > idem.MaxKey:
		return "", fmt.Errorf("idemhttp: %w: the key has %d bytes, the limit is %d", idem.ErrKey, len(key), idem.MaxKey)
	}
	b := make([]byte, 0, len(key)+2)
	b = append(b, '"')
	for i := range len(key) {
		switch c := key[i]; {
		case c < ' ' || c > '~':
			return "", fmt.Errorf("idemhttp: %w: the key has the byte %#02x at %d; the header carries ASCII only", idem.ErrKey, c, i)
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"')), nil
}
