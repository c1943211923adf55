package idemhttp

import (
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/idem-go/idem"
)

// Fingerprint is what makes two requests with one key the same request, unless
// [Options] has another function: the method, the path, the query and the body.
//
//   - Of the query, the order of different names does not count, nor how
//     characters are escaped: ?a=1&b=2 is the same as ?b=2&a=1. The order of
//     several values of one name does count.
//   - Of a body that is JSON by its Content-Type (application/json or +json),
//     the order of members and white space do not count; see
//     [idem.FingerprintJSON]. A body that is not what its type says, and every
//     other body, counts byte by byte. That includes multipart/form-data, whose
//     boundary has to be the same in a retry.
//   - Headers do not count.
func Fingerprint(r *http.Request, body []byte) idem.Fingerprint {
	// A router may have cut off what stands before its own part of the path,
	// which tells two operations apart all the same.
	asked, _, _ := strings.Cut(r.RequestURI, "?")
	kind, content := []byte("raw"), body
	if isJSON(r.Header.Get("Content-Type")) {
		if f, err := idem.FingerprintJSON(body); err == nil {
			kind, content = []byte("json"), f[:]
		}
	}
	return idem.FingerprintOf([]byte("http"), []byte(r.Method), []byte(r.URL.EscapedPath()), []byte(asked), []byte(canonicalQuery(r.URL.RawQuery)), kind, content)
}

func isJSON(contentType string) bool {
	if contentType == "" {
		return false
	}
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}

// canonicalQuery sorts a query by its names. One that cannot be read as names and
// values stays as it is.
func canonicalQuery(raw string) string {
	if raw == "" {
		return ""
	}
	q, err := url.ParseQuery(raw)
	if err != nil {
		return "?" + raw // equal to no canonical one
	}
	return q.Encode()
}
