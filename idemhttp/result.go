package idemhttp

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/idem-go/idem"
)

// oneLine makes of a header line what net/http sends of it.
var oneLine = strings.NewReplacer("\n", " ", "\r", " ")

// NewResult returns an answer as it is stored: the status, the body, and in Meta
// each header by its name, its lines in order, separated by line feeds. Headers
// that are never kept are left out. It is for handlers that complete their claim
// themselves: see [Complete].
func NewResult(status int, header http.Header, body []byte) idem.Result {
	meta := make(map[string]string, len(header))
	for _, name := range slices.Sorted(maps.Keys(header)) {
		canonical := http.CanonicalHeaderKey(name)
		if isNeverKept(canonical) || len(header[name]) == 0 {
			continue
		}
		lines := make([]string, 0, len(header[name])+1)
		if before, ok := meta[canonical]; ok {
			lines = append(lines, before)
		}
		for _, line := range header[name] {
			lines = append(lines, oneLine.Replace(strings.Trim(line, " \t\r\n")))
		}
		meta[canonical] = strings.Join(lines, "\n")
	}
	return idem.Result{Code: status, Meta: meta, Body: body}
}

// omitted returns r without its body and the headers that describe it.
func omitted(r idem.Result) idem.Result {
	for _, name := range []string{"Content-Type", "Content-Encoding", "Content-Disposition", "Content-Language", "Content-Digest", "Repr-Digest"} {
		delete(r.Meta, name)
	}
	r.Body, r.Omitted = nil, true
	return r
}

// WriteResult writes a stored answer to w. What is set in the header of w already
// stays, unless the answer has it too. A Code that is no final status, as of a
// result that was not recorded by this package, is written as 200.
func WriteResult(w http.ResponseWriter, r idem.Result) {
	h := w.Header()
	for name, lines := range r.Meta {
		if !isNeverKept(http.CanonicalHeaderKey(name)) {
			h[http.CanonicalHeaderKey(name)] = strings.Split(lines, "\n")
		}
	}
	status := r.Code
	if status < 200 || status > 999 {
		status = http.StatusOK
	}
	h.Del("Content-Length")
	if hasBody(status) {
		h.Set("Content-Length", strconv.Itoa(len(r.Body)))
	}
	if _, stored := r.Meta["Content-Type"]; !stored {
		h["Content-Type"] = nil // net/http is not to make one up
	}
	w.WriteHeader(status)
	if hasBody(status) && len(r.Body) > 0 {
		_, _ = w.Write(r.Body) // a client that is gone asks again
	}
}

// replay writes an answer that was stored before.
func (m *middleware) replay(w http.ResponseWriter, r idem.Result) {
	h := w.Header()
	for _, name := range m.opts.Headers {
		_, stored := r.Meta[name]
		if !stored && name != "Content-Encoding" { // which is there for what compresses this replay
			h.Del(name)
		}
	}
	h.Set(ReplayedHeader, "true")
	if r.Omitted {
		h.Set(OmittedHeader, "true")
	}
	WriteResult(w, r)
}
