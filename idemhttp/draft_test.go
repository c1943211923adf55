package idemhttp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemhttp"
)

// A drafted is a server and a client at which the requirements of the draft are
// tried, in a bubble with a clock of its own and without a network.
type drafted struct {
	t       *testing.T
	store   *idem.Store
	handler http.Handler
	runs    atomic.Int64
	running chan struct{} // requests with the body "wait" wait for it
}

func newDrafted(t *testing.T) *drafted {
	d := &drafted{t: t, store: newStore(t, memory.New(), nil), running: make(chan struct{})}
	opts := &idemhttp.Options{Required: true, Policy: "https://developer.example.com/idempotency", Scope: func(r *http.Request) string { return r.Header.Get("X-Client") }}
	d.handler = idemhttp.Middleware(d.store, opts)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := d.runs.Add(1)
		if r.URL.Path == "/wait" {
			<-d.running
		}
		w.Header().Set("Location", fmt.Sprint("/things/", n))
		if r.URL.Path == "/fail" {
			w.WriteHeader(404)
		} else {
			w.WriteHeader(201)
		}
		fmt.Fprint(w, "thing ", n)
	}))
	return d
}

// send sends a request; keys are header lines as they are.
func (d *drafted) send(method, path, body string, keys ...string) answer {
	r := httptest.NewRequestWithContext(context.Background(), method, path, strings.NewReader(body))
	r.Header["Idempotency-Key"] = keys
	r.Header.Set("X-Client", "c1")
	return d.serve(r)
}

func (d *drafted) serve(r *http.Request) answer {
	w := httptest.NewRecorder()
	d.handler.ServeHTTP(w, r)
	return answer{w.Code, w.Header(), nil, w.Body.String()}
}

// wantProblem checks an answer of the middleware itself: what it is, and its links
// to the documentation.
func (d *drafted) wantProblem(a answer, status int, reason string) {
	d.t.Helper()
	var p struct {
		Type, Title, Detail string
		Status              int
	}
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		d.t.Fatalf("%v: %v", a, err)
	}
	if a.status != status || p.Status != status || a.reason() != reason || p.Title == "" || p.Detail == "" ||
		p.Type != "https://developer.example.com/idempotency#"+reason ||
		a.header.Get("Content-Language") != "en" ||
		a.header.Get("Link") != `<https://developer.example.com/idempotency>; rel="describedby"; type="text/html"` {
		d.t.Errorf("%v, want the problem %d %s", a, status, reason)
	}
}

func (d *drafted) wantRuns(n int64) {
	d.t.Helper()
	if got := d.runs.Load(); got != n {
		d.t.Errorf("the operation ran %d times, want %d", got, n)
	}
}

// The requirements of draft-ietf-httpapi-idempotency-key-header-07, one by one.
func TestDraft(t *testing.T) {
	const uuid = `"8e03978e-40d5-43e8-bc93-6894a57f9324"`
	tests := []struct {
		section, requirement string
		try                  func(d *drafted)
	}{
		{"2.1", "the value is a Structured Field Item, a String", func(d *drafted) {
			if a := d.send("POST", "/", "", uuid); a.status != 201 {
				d.t.Errorf("%v", a)
			}
			for _, bad := range []string{`"open`, `""`, ``, `"a" "b"`, `"ü"`, `"a";B`} {
				d.wantProblem(d.send("POST", "/", "", bad), 400, "malformed-key")
			}
			d.wantRuns(1)
		}},
		{"2.1", "beyond the draft: a value without quotes is the same key", func(d *drafted) {
			d.send("POST", "/", "", uuid)
			if a := d.send("POST", "/", "", strings.Trim(uuid, `"`)); !a.replayed() {
				d.t.Errorf("%v", a)
			}
		}},
		{"2.1", "a request has no more than one Idempotency-Key header field", func(d *drafted) {
			d.wantProblem(d.send("POST", "/", "", uuid, uuid), 400, "malformed-key")
			d.wantProblem(d.send("POST", "/", "", uuid+", "+uuid), 400, "malformed-key")
			d.wantRuns(0)
		}},
		{"2.2", "a key is not reused with another request payload", func(d *drafted) {
			d.send("POST", "/", "a", uuid)
			d.wantProblem(d.send("POST", "/", "b", uuid), 422, "key-reused")
			d.wantRuns(1)
		}},
		{"2.2", "different keys are different operations", func(d *drafted) {
			d.send("POST", "/", "a", `"k1"`)
			if a := d.send("POST", "/", "a", `"k2"`); a.replayed() || a.body != "thing 2" {
				d.t.Errorf("%v", a)
			}
		}},
		{"2.3", "keys may expire", func(d *drafted) {
			d.send("POST", "/", "", uuid)
			time.Sleep(idem.MinRetention - time.Second)
			if a := d.send("POST", "/", "", uuid); !a.replayed() {
				d.t.Errorf("before: %v", a)
			}
			time.Sleep(time.Second)
			if a := d.send("POST", "/", "", uuid); a.replayed() || a.body != "thing 2" {
				d.t.Errorf("after: %v", a)
			}
		}},
		{"2.3", "the expiration policy is published", func(d *drafted) {
			w := httptest.NewRecorder()
			idemhttp.PolicyHandler(d.store, nil).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			if !strings.Contains(w.Body.String(), "An answer is kept for 24 hours") {
				d.t.Errorf("%v", w.Body)
			}
		}},
		{"2.4", "a fingerprint of the payload goes with the key", func(d *drafted) {
			d.send("POST", "/", "a", uuid)
			r, err := d.store.Scoped("c1").Lookup(context.Background(), strings.Trim(uuid, `"`))
			if err != nil || r.Fingerprint == (idem.Fingerprint{}) {
				d.t.Errorf("%+v, %v", r, err)
			}
		}},
		{"2.5", "client: each request gets a unique key in the header field", func(d *drafted) {
			seen := map[string]bool{}
			tr := &idemhttp.Transport{Base: roundTrip(func(r *http.Request) (*http.Response, error) {
				key, err := idemhttp.ParseKey(r.Header.Get("Idempotency-Key"))
				if err != nil || seen[key] {
					d.t.Errorf("key %q, %v", key, err)
				}
				seen[key] = true
				return response(200), nil
			})}
			for range 100 {
				r, _ := http.NewRequest("POST", "http://example.com/", nil)
				if _, err := tr.RoundTrip(r); err != nil {
					d.t.Error(err)
				}
			}
			if len(seen) != 100 {
				d.t.Errorf("%d keys", len(seen))
			}
		}},
		{"2.6", "first request: it is processed and answered as usual", func(d *drafted) {
			if a := d.send("PATCH", "/", "a", uuid); a.status != 201 || a.body != "thing 1" || a.replayed() {
				d.t.Errorf("%v", a)
			}
		}},
		{"2.6", "retry: it gets the result of the completed operation, a success", func(d *drafted) {
			first, second := d.send("POST", "/", "a", uuid), d.send("POST", "/", "a", uuid)
			if first.status != second.status || first.body != second.body || first.header.Get("Location") != second.header.Get("Location") || !second.replayed() {
				d.t.Errorf("%v, then %v", first, second)
			}
			d.wantRuns(1)
		}},
		{"2.6", "retry: or an error", func(d *drafted) {
			first, second := d.send("POST", "/fail", "a", uuid), d.send("POST", "/fail", "a", uuid)
			if first.status != 404 || second.status != 404 || first.body != second.body || !second.replayed() {
				d.t.Errorf("%v, then %v", first, second)
			}
			d.wantRuns(1)
		}},
		{"2.6", "concurrent request: it gets a resource conflict error", func(d *drafted) {
			done := make(chan answer)
			go func() { done <- d.send("POST", "/wait", "a", uuid) }()
			synctest.Wait()
			d.wantProblem(d.send("POST", "/wait", "a", uuid), 409, "in-progress")
			close(d.running)
			if a := <-done; a.status != 201 {
				d.t.Errorf("%v", a)
			}
			d.wantRuns(1)
		}},
		{"2.7", "the key is missing where it is required: 400, with a link to the documentation", func(d *drafted) {
			d.wantProblem(d.send("POST", "/", "a"), 400, "missing-key")
			d.wantProblem(d.send("PATCH", "/", "a"), 400, "missing-key")
			d.wantRuns(0)
		}},
		{"2.7", "the key is reused with another payload: 422, with a link to the documentation", func(d *drafted) {
			d.send("POST", "/", "a", uuid)
			d.wantProblem(d.send("POST", "/?dry=1", "a", uuid), 422, "key-reused")
			d.wantProblem(d.send("PATCH", "/", "a", uuid), 422, "key-reused")
			d.wantRuns(1)
		}},
		{"2.7", "a request is outstanding: 409, and no correction is needed", func(d *drafted) {
			go d.send("POST", "/wait", "a", uuid)
			synctest.Wait()
			a := d.send("POST", "/wait", "a", uuid)
			d.wantProblem(a, 409, "in-progress")
			if a.header.Get("Retry-After") != "1" {
				d.t.Errorf("Retry-After %q", a.header["Retry-After"])
			}
			close(d.running)
			synctest.Wait()
			if a := d.send("POST", "/wait", "a", uuid); a.status != 201 || !a.replayed() {
				d.t.Errorf("the same request again: %v", a)
			}
		}},
		{"2.7", "a request that is not corrected fails again", func(d *drafted) {
			d.send("POST", "/", "a", uuid)
			for range 3 {
				d.wantProblem(d.send("POST", "/", "b", uuid), 422, "key-reused")
				d.wantProblem(d.send("POST", "/", "b"), 400, "missing-key")
			}
			if a := d.send("POST", "/", "b", `"another"`); a.status != 201 {
				d.t.Errorf("corrected: %v", a)
			}
		}},
		{"5", "injection: a key is validated, and reaches the storage as it is and nothing else", func(d *drafted) {
			for i, key := range []string{`"' OR 1=1 --"`, `"*"`, `"../../etc"`, `"{k}"`, `"\"; DROP TABLE x"`} {
				if a := d.send("POST", "/", "", key); a.status != 201 || a.body != fmt.Sprint("thing ", i+1) {
					d.t.Errorf("%s: %v", key, a)
				}
			}
			d.wantProblem(d.send("POST", "/", "", "\"a\x1fb\""), 400, "malformed-key")
			d.wantProblem(d.send("POST", "/", "", "\"a\x00\""), 400, "malformed-key")
		}},
		{"5", "data leaks: the look-up key is composed of the client and the key", func(d *drafted) {
			d.send("POST", "/", "", `"1"`)
			r := httptest.NewRequest("POST", "/", nil)
			r.Header.Set("Idempotency-Key", `"1"`)
			r.Header.Set("X-Client", "c2")
			if a := d.serve(r); a.replayed() || a.body != "thing 2" {
				d.t.Errorf("%v", a)
			}
		}},
		{"5", "a fixed format of the key is published", func(d *drafted) {
			w := httptest.NewRecorder()
			idemhttp.PolicyHandler(d.store, nil).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			if !strings.Contains(w.Body.String(), "1 to 255 visible ASCII characters") {
				d.t.Errorf("%v", w.Body)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.section+" "+tt.requirement, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { tt.try(newDrafted(t)) })
		})
	}
}
