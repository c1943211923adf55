package idemhttp_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/internal/testenv"
)

// HT-1: a replay is the first answer, in its status, body and kept headers.
func TestHT1_Replay(t *testing.T) {
	binary := make([]byte, 300<<10)
	rnd := testenv.Rand(t)
	for i := range binary {
		binary[i] = byte(rnd.Uint32())
	}
	tests := []struct {
		name    string
		handler http.HandlerFunc
		status  int
		body    string
		kept    http.Header // of the first answer and the replay
	}{
		{"created", func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("Location", "/orders/17")
			h.Set("ETag", `"v1"`)
			h.Add("Set-Cookie", "session=SECRET; Expires=Wed, 21 Oct 2026 07:28:00 GMT")
			h.Add("Set-Cookie", "tracking=SECRET")
			h.Set("Content-Disposition", `attachment; filename="a, b.bin"`)
			h.Set("Connection", "X-Hop")
			h.Set("X-Hop", "SECRET")
			h.Set("WWW-Authenticate", `Bearer realm="SECRET"`)
			h.Add("Link", `</orders>; rel="collection", </orders/18>; rel="next"`)
			h.Add("Link", `</orders/16>; rel="prev"`)
			h.Set("Content-Type", "application/octet-stream")
			h.Set("X-Mine", "1")
			w.WriteHeader(201)
			w.Write(binary)
		}, 201, string(binary), http.Header{
			"Location":            {"/orders/17"},
			"Etag":                {`"v1"`},
			"Content-Disposition": {`attachment; filename="a, b.bin"`},
			"Link":                {`</orders>; rel="collection", </orders/18>; rel="next"`, `</orders/16>; rel="prev"`},
			"Content-Type":        {"application/octet-stream"},
			"Content-Length":      {strconv.Itoa(len(binary))},
			"X-Mine":              {"1"},
		}},
		{"an error", func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, strings.Repeat("e", 102), http.StatusNotAcceptable)
		}, 406, strings.Repeat("e", 102) + "\n", http.Header{
			"Content-Length": {"103"}, "Content-Type": {"text/plain; charset=utf-8"}, "X-Content-Type-Options": {"nosniff"},
		}},
		{"a declared body that never came", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "103")
			w.WriteHeader(406)
		}, 406, "", http.Header{"Content-Length": {"0"}}},
		{"no content", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "0")
			w.WriteHeader(204)
			if _, err := w.Write([]byte("x")); err != http.ErrBodyNotAllowed {
				t.Errorf("a body for 204: %v", err)
			}
		}, 204, "", http.Header{"Content-Length": nil}},
		{"not modified", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"v1"`)
			w.WriteHeader(304)
		}, 304, "", http.Header{"Etag": {`"v1"`}, "Content-Length": nil}},
		{"nothing written", func(http.ResponseWriter, *http.Request) {}, 200, "", http.Header{"Content-Length": {"0"}, "Content-Type": nil}},
		{"an empty body with a type", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
		}, 200, "", http.Header{"Content-Type": {"application/json"}}},
		{"body only", func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "<html>")
			io.WriteString(w, "</html>")
		}, 200, "<html></html>", http.Header{"Content-Type": {"text/html; charset=utf-8"}, "Content-Length": {"13"}}},
		{"body without a type", func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Content-Type"] = nil
			io.WriteString(w, "<html>")
		}, 200, "<html>", http.Header{"Content-Type": nil}},
		{"WriteHeader twice", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(202)
			w.Header().Set("Location", "/too/late")
			w.WriteHeader(500)
			io.WriteString(w, "x")
		}, 202, "x", http.Header{"Location": nil}},
		{"1xx, then 200", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(103)
			w.Header().Del("Link")
			w.Header().Set("Location", "/a")
			io.WriteString(w, "x")
		}, 200, "x", http.Header{"Location": {"/a"}, "Link": nil}},
		{"a header in lower case, with a line break", func(w http.ResponseWriter, r *http.Request) {
			w.Header()["location"] = []string{" /a\r\nSet-Cookie: b "}
		}, 200, "", http.Header{"Location": {"/a  Set-Cookie: b"}, "Set-Cookie": nil}},
		{"bytes that are no UTF-8", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Disposition", "attachment; filename=\xe4.txt")
			w.Write([]byte{0xff, 0})
		}, 200, "\xff\x00", http.Header{"Content-Disposition": {"attachment; filename=\xe4.txt"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, &idemhttp.Options{Headers: []string{"x-mine"}}, tt.handler)
			first, second := f.post("/", "k", ""), f.post("/", "k", "")
			f.wantRuns(1)
			if first.replayed() || !second.replayed() {
				t.Errorf("the marker is %v on the first answer and %v on the replay", first.replayed(), second.replayed())
			}
			for i, a := range []answer{first, second} {
				if a.status != tt.status || a.body != tt.body {
					t.Errorf("answer %d: %v, want %d with %d bytes", i, a, tt.status, len(tt.body))
				}
				for name, lines := range tt.kept {
					if !slices.Equal(a.header[name], lines) {
						t.Errorf("answer %d: %s is %q, want %q", i, name, a.header[name], lines)
					}
				}
			}
			for _, name := range []string{"Set-Cookie", "Www-Authenticate", "X-Hop"} {
				if second.header[name] != nil {
					t.Errorf("the replay has %s: %q", name, second.header[name])
				}
			}
			if dump := f.dump(); strings.Contains(dump, "SECRET") || strings.Contains(dump, "Date") {
				t.Errorf("stored: %.500s", dump)
			}
		})
	}
}

// HT-1: what is never kept cannot be asked for.
func TestHT1_NeverKept(t *testing.T) {
	store := newFixture(t, nil, created()).store
	for _, name := range []string{"Set-Cookie", "date", "Authorization", "Connection", "Transfer-Encoding", "Idempotent-Replayed"} {
		func() {
			defer func() {
				if r := fmt.Sprint(recover()); !strings.Contains(r, "is never kept") {
					t.Errorf("%s: %s", name, r)
				}
			}()
			idemhttp.Middleware(store, &idemhttp.Options{Headers: []string{name}})
		}()
	}
}

// HT-1: an answer with a secret in its body is given once, and not stored.
func TestHT1_OmittedBody(t *testing.T) {
	f := newFixture(t, &idemhttp.Options{
		Ending: func(r *http.Request, status int, h http.Header) idemhttp.Ending {
			if h.Get("X-Token") != "" {
				return idemhttp.Omit
			}
			return 0
		},
	}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Token", "yes")
		w.Header().Set("Location", "/tokens/1")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(201)
		io.WriteString(w, `{"token":"SECRET"}`)
	})
	first, second := f.post("/", "k", ""), f.post("/", "k", "")
	f.wantRuns(1)
	if first.body != `{"token":"SECRET"}` || first.header.Get(idemhttp.OmittedHeader) != "" {
		t.Errorf("first: %v", first)
	}
	if second.status != 201 || second.body != "" || second.header.Get("Location") != "/tokens/1" || !second.replayed() ||
		second.header.Get(idemhttp.OmittedHeader) != "true" || second.header["Content-Type"] != nil {
		t.Errorf("replay: %v", second)
	}
	if dump := f.dump(); strings.Contains(dump, "SECRET") {
		t.Errorf("stored: %s", dump)
	}
}

// HT-1: what is set around the Middleware belongs to the connection, not to the
// stored answer, except where the answer says otherwise.
func TestHT1_HeadersAroundIt(t *testing.T) {
	f := newFixture(t, nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Del("Cache-Control")
		w.Header().Set("Vary", "Accept")
		io.WriteString(w, "x")
	})
	n := 0
	inner := f.middleware(nil)(f.count(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Del("Cache-Control")
		w.Header().Set("Vary", "Accept")
		io.WriteString(w, "x")
	}))
	f.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n++
		w.Header().Set("X-Request-Id", strconv.Itoa(n))
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Vary", "Origin")
		inner.ServeHTTP(w, r)
	}))
	for i := range 2 {
		a := f.post("/", "k", "")
		if a.header.Get("X-Request-Id") != strconv.Itoa(i+1) || a.header["Cache-Control"] != nil || !slices.Equal(a.header["Vary"], []string{"Accept"}) {
			t.Errorf("answer %d: %v", i, a)
		}
	}
	f.wantRuns(1)
}

// HT-1: the replay is readable whatever encodings either client accepts, and
// compression around the Middleware goes on working.
func TestHT1_Encodings(t *testing.T) {
	f := newFixture(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "" {
			t.Error("the handler is told what this client accepts")
		}
		io.WriteString(w, strings.Repeat("plain ", 100))
	})
	for _, accept := range []string{"gzip", "identity", "br;q=1, *;q=0"} {
		if a := f.post("/", "k", "", "Accept-Encoding: "+accept); a.body != strings.Repeat("plain ", 100) || a.header.Get("Content-Encoding") != "" {
			t.Errorf("accepting %s: %v", accept, a)
		}
	}
	f.wantRuns(1)

	inner := f.middleware(nil)(f.count(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "plain") }))
	f.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "gzip" {
			inner.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Encoding", "gzip") // before anybody has answered, as some do
		z := &zipped{w, gzip.NewWriter(w)}
		inner.ServeHTTP(z, r)
		z.z.Close()
	}))
	for _, key := range []string{"a", ""} { // without a key in quotes it is refused, readably
		for _, accept := range []string{"gzip", "identity", "gzip"} {
			a := f.post("/", key, "", "Accept-Encoding: "+accept)
			if a.header.Get("Content-Encoding") != strings.TrimPrefix(accept, "identity") {
				t.Errorf("accepting %s: encoded in %q", accept, a.header.Get("Content-Encoding"))
			}
			if accept == "gzip" {
				z, err := gzip.NewReader(strings.NewReader(a.body))
				if err != nil {
					t.Fatal(err)
				}
				plain, _ := io.ReadAll(z)
				a.body = string(plain)
			}
			if key != "" && (a.body != "plain" || a.header.Get("Content-Type") != "text/plain; charset=utf-8") || key == "" && a.reason() != "malformed-key" {
				t.Errorf("key %q, accepting %s: %v", key, accept, a)
			}
		}
	}
	f.wantRuns(2)
}

type zipped struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (z *zipped) WriteHeader(status int) {
	z.Header().Del("Content-Length")
	z.ResponseWriter.WriteHeader(status)
}

func (z *zipped) Write(p []byte) (int, error) { return z.z.Write(p) }

// HT-1: an informational answer reaches the client at once, and only the first one.
func TestHT1_Informational(t *testing.T) {
	f := newFixture(t, nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		io.WriteString(w, "x")
	})
	for i := range 2 {
		var hints []string
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
				hints = append(hints, fmt.Sprint(code, header["Link"]))
				return nil
			},
		})
		a := f.send(f.request("POST", "/", "", "Idempotency-Key: k").WithContext(ctx))
		if want := []string{"103 [</style.css>; rel=preload]"}[:1-i]; !slices.Equal(hints, want) || a.body != "x" || a.header["Link"] != nil {
			t.Errorf("answer %d: hints %q, %v", i, hints, a)
		}
	}
}

// Trailers go with the first answer, and are not kept.
func TestTrailers(t *testing.T) {
	f := newFixture(t, nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum, X-Other")
		io.WriteString(w, "body")
		w.Header().Set("X-Sum", "17")
		w.Header().Set(http.TrailerPrefix+"X-Late", "18")
	})
	first, second := f.post("/", "k", ""), f.post("/", "k", "")
	if first.body != "body" || first.trailer.Get("X-Sum") != "17" || first.trailer.Get("X-Late") != "18" {
		t.Errorf("first: %v, trailers %v", first, first.trailer)
	}
	if second.body != "body" || len(second.trailer) != 0 || second.header.Get("Trailer") != "" || second.header.Get("X-Sum") != "" {
		t.Errorf("replay: %v, trailers %v", second, second.trailer)
	}
	f.wantRuns(1)
}

// RS-1: results that look empty are results.
func TestRS1_EmptyLooking(t *testing.T) {
	for _, body := range []string{"", "0", "false", "null", `""`, "\x00"} {
		f := newFixture(t, nil, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, body) })
		for i := range 2 {
			if a := f.post("/", "k", ""); a.status != 200 || a.body != body || a.replayed() != (i == 1) {
				t.Errorf("%q, answer %d: %v", body, i, a)
			}
		}
		f.wantRuns(1)
	}
}

// A record that something else has completed is replayed as far as it goes.
func TestForeignResult(t *testing.T) {
	f := newFixture(t, nil, created())
	req := f.request("POST", "/", "x", `Idempotency-Key: k`)
	server := req.Clone(t.Context())
	server.RequestURI = "/"
	claim, _, err := f.store.Begin(t.Context(), "k", idemhttp.Fingerprint(server, []byte("x")))
	if err != nil {
		t.Fatal(err)
	}
	r := idem.Result{Code: 0, Body: []byte("done"), Meta: map[string]string{"Set-Cookie": "SECRET", "Content-Type": "text/plain"}}
	if err := f.store.Complete(t.Context(), claim, r); err != nil {
		t.Fatal(err)
	}
	if a := f.send(req); a.status != 200 || a.body != "done" || a.header.Get("Content-Type") != "text/plain" || a.header["Set-Cookie"] != nil {
		t.Errorf("%v", a)
	}
	f.wantRuns(0)
}
