package idemhttp_test

import (
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemhttp"
)

// KF-4: method, path, query and body are what a request is; an answer belongs to
// it only.
func TestKF4_RequestIdentity(t *testing.T) {
	const asJSON = "Content-Type: application/json"
	type request struct{ method, path, body, line string }
	tests := []struct {
		name          string
		first, second request
		same          bool
	}{
		{"the same", request{"POST", "/x?dry=1", "b", ""}, request{"POST", "/x?dry=1", "b", ""}, true},
		{"without the query", request{"POST", "/x?dry=1", "b", ""}, request{"POST", "/x", "b", ""}, false},
		{"with another query", request{"POST", "/x?dry=1", "b", ""}, request{"POST", "/x?dry=2", "b", ""}, false},
		{"another path", request{"POST", "/x", "b", ""}, request{"POST", "/y", "b", ""}, false},
		{"a slash at the end", request{"POST", "/x", "b", ""}, request{"POST", "/x/", "b", ""}, false},
		{"an escaped slash", request{"POST", "/x/y", "b", ""}, request{"POST", "/x%2Fy", "b", ""}, false},
		{"another method", request{"POST", "/x", "b", ""}, request{"PATCH", "/x", "b", ""}, false},
		{"another body", request{"POST", "/x", "b", ""}, request{"POST", "/x", "c", ""}, false},
		{"no body", request{"POST", "/x", "b", ""}, request{"POST", "/x", "", ""}, false},
		{"parts moved between path and body", request{"POST", "/x", "yb", ""}, request{"POST", "/xy", "b", ""}, false},
		{"the query in another order", request{"POST", "/x?a=1&b=2", "", ""}, request{"POST", "/x?b=2&a=1", "", ""}, true},
		{"the query escaped otherwise", request{"POST", "/x?a=%41+b", "", ""}, request{"POST", "/x?a=A%20b", "", ""}, true},
		{"values in another order", request{"POST", "/x?a=1&a=2", "", ""}, request{"POST", "/x?a=2&a=1", "", ""}, false},
		{"queries that are none", request{"POST", "/x?a=%zz", "", ""}, request{"POST", "/x?a=%zy", "", ""}, false},
		{"JSON in another order", request{"POST", "/x", `{"a":1,"b":[2]}`, asJSON}, request{"POST", "/x", `{ "b": [2], "a": 1 }`, asJSON + "; charset=utf-8"}, true},
		{"JSON of another vendor", request{"POST", "/x", `{"a":1,"b":2}`, "Content-Type: application/vnd.shop+json"}, request{"POST", "/x", `{"b":2,"a":1}`, "Content-Type: application/vnd.shop+json"}, true},
		{"other JSON", request{"POST", "/x", `{"a":1}`, asJSON}, request{"POST", "/x", `{"a":"1"}`, asJSON}, false},
		{"big numbers", request{"POST", "/x", `9007199254740993`, asJSON}, request{"POST", "/x", `9007199254740992`, asJSON}, false},
		{"text in another order", request{"POST", "/x", `{"a":1,"b":2}`, "Content-Type: text/plain"}, request{"POST", "/x", `{"b":2,"a":1}`, "Content-Type: text/plain"}, false},
		{"broken JSON", request{"POST", "/x", `{"a":`, asJSON}, request{"POST", "/x", `{"b":`, asJSON}, false},
		{"broken JSON again", request{"POST", "/x", `{"a":`, asJSON}, request{"POST", "/x", `{"a":`, asJSON}, true},
		{"JSON with a name twice", request{"POST", "/x", `{"a":1,"a":2}`, asJSON}, request{"POST", "/x", `{"a":2,"a":1}`, asJSON}, false},
		{"bytes that collide in CRC-32", request{"POST", "/x", "plumless", ""}, request{"POST", "/x", "buckeroo", ""}, false},
	}
	for _, tt := range tests {
		f := newFixture(t, nil, created())
		send := func(r request) answer {
			lines := []string{`Idempotency-Key: "k"`}
			if r.line != "" {
				lines = append(lines, r.line)
			}
			return f.send(f.request(r.method, r.path, r.body, lines...))
		}
		if a := send(tt.first); a.status != 201 {
			t.Fatalf("%s: %v", tt.name, a)
		}
		a := send(tt.second)
		if tt.same != a.replayed() || !tt.same && (a.status != 422 || a.reason() != "key-reused") {
			t.Errorf("%s: %v", tt.name, a)
		}
		f.wantRuns(1)
	}
}

// KF-4: other methods are not protected, and get no answer of a protected one.
func TestKF4_OtherMethods(t *testing.T) {
	f := newFixture(t, nil, created())
	f.post("/x?dry=1", "k", "")
	for i, method := range []string{"PUT", "DELETE", "GET", "QUERY"} {
		if a := f.send(f.request(method, "/x?dry=1", "", `Idempotency-Key: "k"`)); a.replayed() || a.body != fmt.Sprint("created ", i+2) {
			t.Errorf("%s: %v", method, a)
		}
	}
	f = newFixture(t, &idemhttp.Options{Methods: []string{"PUT"}}, created())
	for range 2 {
		f.send(f.request("PUT", "/", "", `Idempotency-Key: "k"`))
	}
	f.wantRuns(1)
}

// KF-4: what a router cuts off the path counts as well.
func TestKF4_StrippedPrefix(t *testing.T) {
	f := newFixture(t, nil, created())
	h := f.middleware(nil)(f.count(created()))
	mux := http.NewServeMux()
	mux.Handle("/v1/", http.StripPrefix("/v1", h))
	mux.Handle("/v2/", http.StripPrefix("/v2", h))
	f.serve(mux)
	f.post("/v1/x", "k", "")
	if a := f.post("/v2/x", "k", ""); a.status != 422 {
		t.Errorf("%v", a)
	}
	f.wantRuns(1)
}

// KF-4: a route chooses what its requests are.
func TestKF4_OwnFingerprint(t *testing.T) {
	f := newFixture(t, &idemhttp.Options{
		Fingerprint: func(r *http.Request, body []byte) idem.Fingerprint {
			amount, _, _ := strings.Cut(string(body), ",") // what follows is a time
			return idem.FingerprintOf([]byte(amount))
		},
	}, created())
	f.post("/", "k", "100,12:00:00")
	if a := f.post("/", "k", "100,12:00:01"); !a.replayed() {
		t.Errorf("%v", a)
	}
	if a := f.post("/", "k", "101,12:00:00"); a.status != 422 {
		t.Errorf("%v", a)
	}
}

// KF-5: callers of different scopes never meet, however their names are composed.
func TestKF5_Scopes(t *testing.T) {
	f := newFixture(t, &idemhttp.Options{Scope: func(r *http.Request) string { return r.Header.Get("X-Tenant") }},
		func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/busy" {
				w.WriteHeader(503)
			}
			fmt.Fprint(w, r.Header.Get("X-Tenant"))
		})
	send := func(path, tenant, key string) answer {
		return f.post(path, key, "", "X-Tenant: "+tenant, "Authorization: Bearer of "+tenant)
	}
	for _, pair := range [][2]string{{"t1", "k"}, {"t2", "k"}, {"a:b", "c"}, {"a", "b:c"}, {"a", "b"}, {"T1", "k"}} {
		if a := send("/", pair[0], pair[1]); a.body != pair[0] || a.replayed() {
			t.Errorf("%q: %v", pair, a)
		}
		if a := send("/", pair[0], pair[1]); a.body != pair[0] || !a.replayed() {
			t.Errorf("%q again: %v", pair, a)
		}
	}
	f.wantRuns(6)
	for range 2 { // a failed one is free under the key that it was claimed under
		if a := send("/busy", "t1", "failed"); a.status != 503 || a.replayed() {
			t.Errorf("%v", a)
		}
	}
	f.wantRuns(8)
	for _, e := range f.stored() {
		if e.Record.Status == idem.InProgress {
			t.Errorf("left behind: %+v", e)
		}
	}
	for _, tenant := range []string{"", "a\tb", strings.Repeat("t", 256)} {
		if a := send("/", tenant, "k"); a.status != 500 || a.reason() != "no-scope" {
			t.Errorf("scope %.10q: %v", tenant, a)
		}
	}
	f.wantRuns(8)
	if !strings.Contains(f.log.String(), "the scope is empty") {
		t.Errorf("log: %s", f.log.String())
	}
}

// KF-5: without a scope, callers with credentials are refused rather than given
// each other's answers.
func TestKF5_CredentialsWithoutScope(t *testing.T) {
	f := newFixture(t, nil, created())
	for _, line := range []string{"Authorization: Bearer x", "Cookie: session=1", "X-Api-Key: x"} {
		if a := f.post("/", "k", "", line); a.status != 500 || a.reason() != "no-scope" {
			t.Errorf("%s: %v", line, a)
		}
		if a := f.send(f.request("POST", "/", "", line)); a.status != 201 {
			t.Errorf("%s without a key: %v", line, a)
		}
	}
	f.wantRuns(3)
	if !strings.Contains(f.log.String(), "neither Scope nor SharedKeys") {
		t.Errorf("log: %s", f.log.String())
	}
	if a := f.post("/", "k", ""); a.status != 201 {
		t.Errorf("without credentials: %v", a)
	}
	r := httptest.NewRequest("POST", "https://example.com/", nil)
	r.Header.Set("Idempotency-Key", "k")
	r.TLS.PeerCertificates = []*x509.Certificate{{}}
	w := httptest.NewRecorder()
	f.middleware(nil)(f.count(created())).ServeHTTP(w, r)
	if w.Code != 500 || reasonOf(w) != "no-scope" {
		t.Errorf("with a client certificate: %v", w)
	}
	f = newFixture(t, &idemhttp.Options{SharedKeys: true}, created())
	for i := range 2 {
		if a := f.post("/", "k", "", "Authorization: Bearer x"); a.status != 201 || a.replayed() != (i == 1) {
			t.Errorf("shared: %v", a)
		}
	}
}

// A mistake in the program shows when the program starts.
func TestBadOptions(t *testing.T) {
	store := newStore(t, memory.New(), nil)
	scope := func(*http.Request) string { return "s" }
	for want, make := range map[string]func(){
		"there is no store":                        func() { idemhttp.Middleware(nil, nil) },
		"there is no handler":                      func() { idemhttp.Middleware(store, nil)(nil) },
		"Scope and SharedKeys exclude each other":  func() { idemhttp.Middleware(store, &idemhttp.Options{Scope: scope, SharedKeys: true}) },
		"Wait -1ns is negative":                    func() { idemhttp.Middleware(store, &idemhttp.Options{Wait: -1}) },
		"MaxBody -1 is negative":                   func() { idemhttp.PolicyHandler(store, &idemhttp.Options{MaxBody: -1}) },
		"the header Set-Cookie is never kept":      func() { idemhttp.Middleware(store, &idemhttp.Options{Headers: []string{"set-cookie"}}) },
		"policy: bad options: there is no store":   func() { idemhttp.PolicyHandler(nil, nil) },
		"middleware: bad options: there is no sto": func() { idemhttp.Middleware(nil, &idemhttp.Options{}) },
	} {
		func() {
			defer func() {
				if r := fmt.Sprint(recover()); !strings.Contains(r, want) {
					t.Errorf("%q, want %q", r, want)
				}
			}()
			make()
		}()
	}
}

// The handler reads the body as if nobody had.
func TestRequestBody(t *testing.T) {
	f := newFixture(t, &idemhttp.Options{MaxBody: 10}, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %d %v", body, r.ContentLength, r.TransferEncoding)
	})
	for i, tt := range []struct {
		body    string
		chunked bool
		want    string // "" = too large
	}{
		{"0123456789", false, "0123456789 10 []"},
		{"0123456789", true, "0123456789 10 []"},
		{"", false, " 0 []"},
		{"0123456789a", false, ""},
		{"0123456789a", true, ""},
	} {
		req := f.request("POST", "/", tt.body, fmt.Sprintf("Idempotency-Key: %d", i))
		if tt.chunked {
			req.ContentLength, req.GetBody = -1, nil
		}
		a := f.send(req)
		if a.body != tt.want && (tt.want != "" || a.status != 413 || a.reason() != "body-too-large") {
			t.Errorf("%q, chunked %v: %v", tt.body, tt.chunked, a)
		}
	}
	f.wantRuns(3)
}

// A body that breaks off is no request.
func TestBrokenBody(t *testing.T) {
	f := newFixture(t, nil, created())
	r := httptest.NewRequest("POST", "/", &brokenReader{})
	r.Header.Set("Idempotency-Key", "k")
	w := httptest.NewRecorder()
	f.middleware(nil)(f.count(created())).ServeHTTP(w, r)
	if w.Code != 400 || reasonOf(w) != "unreadable-body" {
		t.Errorf("%v", w)
	}
	f.wantRuns(0)
	if n := len(f.stored()); n != 0 {
		t.Errorf("%d records", n)
	}
}

type brokenReader struct{ n int }

func (b *brokenReader) Read(p []byte) (int, error) {
	if b.n++; b.n == 1 {
		return copy(p, "half"), nil
	}
	return 0, errDown
}
