package idemhttp_test

import (
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemhttp"
)

// The page says what is so with this store and these options, and explains every
// problem where its type points to.
func TestPolicy(t *testing.T) {
	store := newStore(t, memory.New(), &idem.Options{Retention: 7 * 24 * time.Hour, OnLapse: idem.Hold, MaxResult: 5000})
	page := func(opts *idemhttp.Options) string {
		w := httptest.NewRecorder()
		idemhttp.PolicyHandler(store, opts).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if w.Code != 200 || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
			t.Errorf("%d %v", w.Code, w.Header())
		}
		return w.Body.String()
	}
	for _, want := range []string{
		"1 to 255 visible", "kept for 7 days", "more than 5000 bytes", "at most 77 bytes", "POST and PUT, where it is required",
		"307, 308, 401, 408, 425, 429, 503", "is not repeated", "Single operations may differ", "X-Mine", `<dt id="in-progress">409`,
	} {
		text := page(&idemhttp.Options{
			MaxBody: 77, Methods: []string{"POST", "PUT"}, Required: true, Headers: []string{"x-mine"},
			Ending: func(*http.Request, int, http.Header) idemhttp.Ending { return 0 },
		})
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say %q:\n%s", want, text)
		}
	}
	plain := page(nil)
	for _, reason := range []string{"missing-key", "malformed-key", "unreadable-body", "body-too-large", "key-reused", "in-progress", "unresolved", "unavailable", "not-recorded", "taken-over", "damaged", "no-scope"} {
		if strings.Count(plain, `id="`+reason+`"`) != 1 {
			t.Errorf("the page does not explain %q", reason)
		}
	}
	if !strings.Contains(plain, "without it, a retry is another operation") || strings.Contains(plain, "Single operations") {
		t.Errorf("%s", plain)
	}
	d := xml.NewDecoder(strings.NewReader(plain)) // well-formed, but for the elements without an end
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		if _, err := d.Token(); err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
	}
}

func TestPolicyIsReadOnly(t *testing.T) {
	h := idemhttp.PolicyHandler(newStore(t, memory.New(), nil), nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("POST", "/", nil))
	if w.Code != 405 || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}
