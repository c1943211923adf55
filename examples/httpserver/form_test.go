package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

// newHandler returns a shop within the test, on books that a test can spoil.
func newHandler(t *testing.T, spoil func(books) books) (http.Handler, books) {
	t.Helper()
	b, err := openBooks(t.Context(), "bolt://"+filepath.Join(testenv.Dir(t), "shop.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.close() })
	used := b
	if spoil != nil {
		used = spoil(b)
	}
	h, err := newShop(used, 0, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return h, b
}

func send(h http.Handler, method, path, contentType, body string, lines ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func sendForm(h http.Handler, key, item, amount string, lines ...string) *httptest.ResponseRecorder {
	form := url.Values{keyField: {key}, "item": {item}, "amount": {amount}}
	return send(h, "POST", "/orders", "application/x-www-form-urlencoded", form.Encode(), lines...)
}

func sendJSON(h http.Handler, key, body string) *httptest.ResponseRecorder {
	return send(h, "POST", "/api/orders", "application/json", body, `Idempotency-Key: "`+key+`"`)
}

func wantBooked(t *testing.T, b books, customer string, n int64) {
	t.Helper()
	sum, err := b.summary(t.Context(), customer)
	if err != nil || sum.Orders != n {
		t.Errorf("%s has %d orders (%v), want %d", customer, sum.Orders, err, n)
	}
}

func TestForm(t *testing.T) {
	h, b := newHandler(t, nil)
	long := strings.Repeat("x", 256)
	for _, c := range []struct {
		key, item, amount string
		status            int
		says              string // the place it sends to, or a part of the page
		orders            int64  // after it
	}{
		{"a", "mug", "2", 303, "/?ordered=1", 1},
		{"a", "mug", "2", 303, "/?ordered=1", 1},
		{"a", "mug", "3", 422, "This form was sent before", 1},
		{"b", "mug", "0", 400, "the amount is 0", 1},
		{"b", "mug", "many", 400, "not a number", 1},
		{"b", "<b>", "1", 400, "&lt;b&gt;", 1},
		{"b", "mug", "1", 303, "/?ordered=2", 2}, // corrected, with the same key
		{"", "mug", "1", 400, "not complete", 2},
		{long, "mug", "1", 400, "not complete", 2},
		{`quoted "key", and more`, "beans", "1", 303, "/?ordered=3", 3},
	} {
		w := sendForm(h, c.key, c.item, c.amount)
		said := w.Header().Get("Location")
		if c.status != 303 {
			said = w.Body.String()
			if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got, "text/html") {
				t.Errorf("%q %s %s: a person gets %s", c.key, c.amount, c.item, got)
			}
		}
		if w.Code != c.status || !strings.Contains(said, c.says) {
			t.Errorf("%q, %s of %s: %d %s", c.key, c.amount, c.item, w.Code, said)
		}
		wantBooked(t, b, "ada", c.orders)
	}
	if w := sendForm(h, "c", "mug", strings.Repeat("1", maxForm)); w.Code != 400 {
		t.Errorf("a large form: %d", w.Code)
	}
	// A form has its key in the field, whatever a header says.
	if w := sendForm(h, "a", "mug", "2", `Idempotency-Key: "other"`); w.Header().Get("Location") != "/?ordered=1" || w.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("with another key in a header: %d %v", w.Code, w.Header())
	}
	wantBooked(t, b, "ada", 3)
}

func TestRefused(t *testing.T) {
	h, b := newHandler(t, nil)
	for name, w := range map[string]*httptest.ResponseRecorder{
		"another site's form":   sendForm(h, "k", "mug", "1", "Sec-Fetch-Site: cross-site"),
		"another site's origin": sendForm(h, "k", "mug", "1", "Origin: https://elsewhere.example"),
	} {
		if w.Code != http.StatusForbidden {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
	for name, w := range map[string]*httptest.ResponseRecorder{
		"nobody":       send(h, "POST", "/api/orders", "application/json", `{"item":"mug","amount":1}`, "X-Shop-User: No Body", "Idempotency-Key: k"),
		"a bad cookie": send(h, "GET", "/", "", "", "Cookie: shop_user=No"),
		"no key":       send(h, "POST", "/api/orders", "application/json", `{"item":"mug","amount":1}`),
		"no JSON":      sendJSON(h, "k", "mug"),
		"no such user": send(h, "POST", "/user", "application/x-www-form-urlencoded", "user=No"),
	} {
		if w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
	wantBooked(t, b, "ada", 0)
}

// What a customer has sent is shown as text.
func TestPageEscapes(t *testing.T) {
	h, _ := newHandler(t, nil)
	sendJSON(h, "<script>alert(1)</script>", `{"item":"mug","amount":1}`)
	page := send(h, "GET", "/", "", "").Body.String()
	if strings.Contains(page, "<script>alert") || !strings.Contains(page, "&lt;script&gt;alert") {
		t.Errorf("the key is not escaped, or not there: %s", page)
	}
}

// Keys made one after the other look different on the page.
func TestPageTellsKeysApart(t *testing.T) {
	h, _ := newHandler(t, nil)
	seen := make(map[string]bool)
	sendForm(h, idem.NewKey(), "mug", "1")
	sendForm(h, idem.NewKey(), "beans", "1")
	page := send(h, "GET", "/", "", "").Body.String()
	for _, cell := range regexp.MustCompile(`<td class="key"><code title="[^"]*">(.*?)</code>`).FindAllStringSubmatch(page, -1) {
		seen[cell[1]] = true
	}
	if len(seen) != 2 {
		t.Errorf("two orders are shown with the keys %v", slices.Collect(maps.Keys(seen)))
	}
	for key, want := range map[string]string{"": "", "o-1": "o-1", "a key of Zürich": "f Zürich"} {
		if got := short(key); got != want {
			t.Errorf("%q is shown as %q, want %q", key, got, want)
		}
	}
}

// Spoiled books fail once.
type spoiled struct {
	books
	before, after error // the commit
}

func (s *spoiled) book(ctx context.Context, o order, complete completion) error {
	if err := s.before; err != nil {
		s.before = nil
		return notBooked(err)
	}
	if err := s.books.book(ctx, o, complete); err != nil {
		return err
	}
	err := s.after
	s.after = nil
	return err
}

// However the books fail, a retry books once.
func TestBooksFail(t *testing.T) {
	down := errors.New("the disk is full")
	for name, c := range map[string]struct {
		spoiled  spoiled
		status   int
		replayed string // of the retry
	}{
		"before the commit": {spoiled{before: down}, 503, ""},
		"after it":          {spoiled{after: down}, 500, "true"},
	} {
		t.Run(name, func(t *testing.T) {
			h, b := newHandler(t, func(b books) books {
				c.spoiled.books = b
				return &c.spoiled
			})
			if w := sendJSON(h, "k", `{"item":"mug","amount":1}`); w.Code != c.status {
				t.Errorf("the order: %d %s", w.Code, w.Body)
			}
			w := sendJSON(h, "k", `{"item":"mug","amount":1}`)
			if w.Code != 201 || w.Header().Get("Idempotent-Replayed") != c.replayed {
				t.Errorf("the retry: %d %s", w.Code, w.Body)
			}
			wantBooked(t, b, "ada", 1)
		})
	}
}

// An attempt that has lost its claim books nothing.
func TestLostClaim(t *testing.T) {
	var store *idem.Store
	h, b := newHandler(t, func(b books) books {
		var err error
		if store, err = idem.New(b.backend(), &idem.Options{Scope: scope}); err != nil {
			t.Fatal(err)
		}
		return &robbed{b, store.Scoped("ada")}
	})
	w := sendJSON(h, "k", `{"item":"mug","amount":1}`)
	if w.Code != 503 {
		t.Errorf("who has lost the claim is told %d %s", w.Code, w.Body)
	}
	wantBooked(t, b, "ada", 0)
}

// Robbed books lose the claim to somebody else just before they commit.
type robbed struct {
	books
	store *idem.Store
}

func (s *robbed) book(ctx context.Context, o order, complete completion) error {
	r, err := s.store.Lookup(ctx, o.Key)
	if err != nil {
		return err
	}
	other := r
	other.Token, other.Attempt = "somebody.else", r.Attempt+1
	if _, err := s.backend().Swap(ctx, idem.ScopePrefix(scope, o.Customer)+o.Key, r.Token, other); err != nil {
		return err
	}
	return s.books.book(ctx, o, complete)
}
