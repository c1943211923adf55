package idemhttp

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/idem-go/idem"
)

// A recorder takes an answer from a handler and holds it back until it is
// recorded. What cannot be held back, because the handler flushes it, takes over
// the connection or writes more than is kept, passes through.
type recorder struct {
	under http.ResponseWriter
	limit int // bytes of the body that are kept

	// encoding is the Content-Encoding that has been set around this handler, by
	// what will compress what it gets. The answer here is plain.
	encoding string

	header  http.Header // what the handler sees and changes
	status  int         // 0 until the handler has called WriteHeader
	sent    http.Header // the header at that moment
	body    []byte
	through bool // the answer is on its way; the body is not kept
}

func newRecorder(w http.ResponseWriter, limit int) *recorder {
	header := w.Header().Clone() // what has been set around this handler counts
	if header == nil {
		header = make(http.Header)
	}
	return &recorder{under: w, limit: limit, encoding: header.Get("Content-Encoding"), header: header}
}

// Unwrap lets [http.ResponseController] find what the connection can do besides.
func (rec *recorder) Unwrap() http.ResponseWriter { return rec.under }

func (rec *recorder) Header() http.Header { return rec.header }

func (rec *recorder) WriteHeader(status int) {
	switch {
	case rec.status != 0:
		return // as net/http does: the first one counts
	case status < 100 || status > 999:
		panic(fmt.Sprintf("idemhttp: invalid WriteHeader code %d", status))
	case status < 200 && status != http.StatusSwitchingProtocols:
		// An informational answer says nothing of the outcome.
		setHeader(rec.under.Header(), rec.header)
		rec.under.WriteHeader(status)
		return
	}
	rec.status = status
	rec.sent = rec.header.Clone()
	if status == http.StatusSwitchingProtocols {
		_ = rec.pass()
	}
}

func (rec *recorder) Write(p []byte) (int, error) {
	if rec.status == 0 {
		rec.WriteHeader(http.StatusOK)
	}
	if !hasBody(rec.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if !rec.through && len(p) > rec.limit-len(rec.body) {
		if err := rec.pass(); err != nil {
			return 0, err
		}
	}
	if rec.through {
		return rec.under.Write(p)
	}
	rec.body = append(rec.body, p...)
	return len(p), nil
}

// Flush implements [http.Flusher].
func (rec *recorder) Flush() { _ = rec.FlushError() }

// FlushError sends what there is, as [http.ResponseController] asks for.
func (rec *recorder) FlushError() error {
	if !canFlush(rec.under) {
		return fmt.Errorf("idemhttp: flush: %w", http.ErrNotSupported)
	}
	if rec.status == 0 {
		rec.WriteHeader(http.StatusOK)
	}
	if !rec.through {
		if err := rec.pass(); err != nil {
			return err
		}
	}
	return http.NewResponseController(rec.under).Flush()
}

// canFlush reports whether w, or what it wraps, can send early. Trying would send
// a header.
func canFlush(w http.ResponseWriter) bool {
	for {
		switch t := w.(type) {
		case interface{ FlushError() error }, http.Flusher:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return false
		}
	}
}

// Hijack implements [http.Hijacker]. What is said over the connection is not
// recorded, only that it was handed over.
func (rec *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(rec.under).Hijack()
	if err == nil {
		rec.through, rec.body = true, nil
		if rec.status == 0 {
			rec.status, rec.sent = http.StatusSwitchingProtocols, rec.header.Clone()
		}
	}
	return conn, rw, err
}

// pass lets the answer go, as far as there is one, and what follows it.
func (rec *recorder) pass() error {
	rec.through = true
	setHeader(rec.under.Header(), rec.sent)
	rec.under.WriteHeader(rec.status)
	body := rec.body
	rec.body = nil
	if len(body) == 0 {
		return nil
	}
	_, err := rec.under.Write(body)
	return err
}

// end is called when the handler has returned. It makes explicit what net/http
// would make up, so that a replay says the same.
func (rec *recorder) end() {
	if rec.status == 0 {
		rec.WriteHeader(http.StatusOK)
	}
	if rec.through {
		return
	}
	h := rec.sent
	if _, set := h["Content-Type"]; !set && len(rec.body) > 0 && h.Get("Content-Encoding") == rec.encoding {
		h.Set("Content-Type", http.DetectContentType(rec.body))
	}
	h.Del("Transfer-Encoding")
	h.Del("Content-Length")
	if hasBody(rec.status) && !rec.hasTrailers() {
		h.Set("Content-Length", strconv.Itoa(len(rec.body)))
	}
}

// result is what is stored of the answer: of the header, what is in kept.
func (rec *recorder) result(kept []string) idem.Result {
	header := make(http.Header)
	for name, lines := range rec.sent {
		if canonical := http.CanonicalHeaderKey(name); slices.Contains(kept, canonical) {
			header[canonical] = append(header[canonical], lines...)
		}
	}
	if rec.encoding != "" && header.Get("Content-Encoding") == rec.encoding {
		header.Del("Content-Encoding")
	}
	if rec.through {
		return omitted(NewResult(rec.status, header, nil))
	}
	return NewResult(rec.status, header, rec.body)
}

// send lets the answer of a handler that has returned go, if it has not gone yet.
func (rec *recorder) send() {
	if !rec.through {
		_ = rec.pass() // a client that is gone retries, and gets the replay
	}
	for name, lines := range rec.header {
		if rec.isTrailer(name) {
			rec.under.Header()[name] = lines
		}
	}
}

// Trailers follow the body, in the header that the handler has changed after
// WriteHeader.
func (rec *recorder) isTrailer(name string) bool {
	if strings.HasPrefix(name, http.TrailerPrefix) {
		return true
	}
	for _, line := range rec.sent["Trailer"] {
		for declared := range strings.SplitSeq(line, ",") {
			if http.CanonicalHeaderKey(strings.TrimSpace(declared)) == name {
				return true
			}
		}
	}
	return false
}

func (rec *recorder) hasTrailers() bool {
	for name := range rec.header {
		if name == "Trailer" || strings.HasPrefix(name, http.TrailerPrefix) {
			return true
		}
	}
	return false
}

// answers reports whether the handler has written what r says.
func (rec *recorder) answers(r idem.Result) bool {
	return !rec.through && rec.status == r.Code && bytes.Equal(rec.body, r.Body)
}

// setHeader makes dst a copy of src.
func setHeader(dst, src http.Header) {
	clear(dst)
	maps.Copy(dst, src)
}

// hasBody reports whether an answer with this status may have a body.
func hasBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
