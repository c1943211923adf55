package idemhttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/internal/testenv"
)

// A till is a fixture whose records are in a bolt file, next to what is booked.
type till struct {
	*fixture
	*boltShop

	mu     sync.Mutex
	failed []idem.Event
}

func newTill(t *testing.T, opts *idemhttp.Options, handler func(*till, http.ResponseWriter, *http.Request)) *till {
	t.Helper()
	shop, err := openBoltShop(filepath.Join(testenv.Dir(t), "till.db"))
	if err != nil {
		t.Fatal(err)
	}
	s := &till{boltShop: shop, fixture: &fixture{t: t}}
	s.store = newStore(t, shop.records, &idem.Options{Observe: s.observe})
	t.Cleanup(shop.close)
	s.serve(s.middleware(opts)(s.count(func(w http.ResponseWriter, r *http.Request) { handler(s, w, r) })))
	return s
}

func (s *till) observe(_ context.Context, e idem.Event) {
	if e.Err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed = append(s.failed, e)
	}
}

// wantBooked fails the test if the key was not charged n times.
func (s *till) wantBooked(key string, n int) {
	s.t.Helper()
	all, err := s.charges(s.t.Context())
	if err != nil || all[key] != n {
		s.t.Errorf("%s was charged %d times, want %d (%v)", key, all[key], n, err)
	}
}

func receipt(body string) idem.Result {
	return idemhttp.NewResult(201, http.Header{"Location": {"/r/1"}, "X-Extra": {"kept, as the handler has chosen it"}, "Set-Cookie": {"never"}}, []byte(body))
}

// A handler that completes in its own transaction: change and answer commit
// together, and the replay is the same.
func TestComplete(t *testing.T) {
	s := newTill(t, nil, func(s *till, w http.ResponseWriter, r *http.Request) {
		answer := receipt("receipt 1")
		if err := s.charge(r.Context(), "k", answer); err != nil {
			t.Error(err)
		}
		idemhttp.WriteResult(w, answer)
	})
	first, second := s.post("/", "k", ""), s.post("/", "k", "")
	for _, a := range []answer{first, second} {
		if a.status != 201 || a.body != "receipt 1" || a.header.Get("Location") != "/r/1" || a.header.Get("X-Extra") == "" || a.header["Content-Type"] != nil || a.header["Set-Cookie"] != nil {
			t.Errorf("%v", a)
		}
	}
	if first.replayed() || !second.replayed() {
		t.Errorf("replayed: %v, %v", first.replayed(), second.replayed())
	}
	s.wantRuns(1)
	s.wantBooked("k", 1)
	if len(s.failed) != 0 {
		t.Errorf("events with errors: %+v", s.failed)
	}
	// Without a key there is nothing to complete, and the change is made.
	if a := s.send(s.request("POST", "/", "")); a.status != 201 {
		t.Errorf("%v", a)
	}
	s.wantBooked("k", 2)
}

// What was committed is what everybody gets, the first client too.
func TestComplete_AnotherAnswer(t *testing.T) {
	s := newTill(t, nil, func(s *till, w http.ResponseWriter, r *http.Request) {
		if err := s.charge(r.Context(), "k", receipt("receipt 1")); err != nil {
			t.Error(err)
		}
		w.WriteHeader(202)
		io.WriteString(w, "something else")
	})
	for range 2 {
		if a := s.post("/", "k", ""); a.status != 201 || a.body != "receipt 1" || a.header.Get("Location") != "/r/1" {
			t.Errorf("%v", a)
		}
	}
	s.wantRuns(1)
}

// A change that was rolled back took its answer with it; what the handler says then
// counts.
func TestComplete_RolledBack(t *testing.T) {
	for _, tt := range []struct {
		status int
		runs   int64
	}{{409, 1}, {503, 2}, {500, 2}, {201, 1}} {
		s := newTill(t, nil, func(s *till, w http.ResponseWriter, r *http.Request) {
			err := s.db.Update(func(tx *bbolt.Tx) error {
				if err := idemhttp.Complete(r.Context(), s.records.WithTx(tx), receipt("receipt 1")); err != nil {
					t.Error(err)
				}
				return errDown
			})
			http.Error(w, err.Error(), tt.status)
		})
		for range 2 {
			if a := s.post("/", "k", ""); a.status != tt.status || a.body != errDown.Error()+"\n" {
				t.Errorf("%d: %v", tt.status, a)
			}
		}
		s.wantRuns(tt.runs)
	}
}

// A handler that fails after its commit has still done it.
func TestComplete_ThenFailed(t *testing.T) {
	for _, status := range []int{0, 500, 503} {
		s := newTill(t, nil, func(s *till, w http.ResponseWriter, r *http.Request) {
			if err := s.charge(r.Context(), "k", receipt("receipt 1")); err != nil {
				t.Error(err)
			}
			if status == 0 {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(status)
		})
		s.client.Transport.(*http.Transport).DisableKeepAlives = true
		if a, err := do(s.client, s.request("POST", "/", "", "Idempotency-Key: k")); (err != nil) != (status == 0) || a.status != status {
			t.Errorf("%v, %v", a, err)
		}
		if a := s.post("/", "k", ""); a.status != 201 || a.body != "receipt 1" || !a.replayed() {
			t.Errorf("after %d: %v", status, a)
		}
		s.wantRuns(1)
		s.wantBooked("k", 1)
	}
}

// A streamed answer after a commit stays what the client saw; the record is that of
// the commit.
func TestComplete_ThenStreamed(t *testing.T) {
	s := newTill(t, nil, func(s *till, w http.ResponseWriter, r *http.Request) {
		if err := s.charge(r.Context(), "k", receipt("receipt 1")); err != nil {
			t.Error(err)
		}
		w.WriteHeader(201)
		w.(http.Flusher).Flush()
		io.WriteString(w, "stream")
	})
	if a := s.post("/", "k", ""); a.body != "stream" {
		t.Errorf("%v", a)
	}
	if a := s.post("/", "k", ""); a.body != "receipt 1" {
		t.Errorf("%v", a)
	}
}

// A claim that was lost cannot complete: the change rolls back.
func TestComplete_Lost(t *testing.T) {
	s := newTill(t, &idemhttp.Options{Scope: func(*http.Request) string { return "tenant" }}, func(s *till, w http.ResponseWriter, r *http.Request) {
		claim, _ := idemhttp.ClaimFrom(r.Context())
		if claim.Attempt == 1 { // its lease ends, and somebody else is faster
			tenant := s.store.Scoped("tenant")
			if err := tenant.Abandon(r.Context(), claim); err != nil {
				t.Error(err)
			}
			other, err := tenant.Reclaim(r.Context(), claim.Key, 1)
			if err != nil {
				t.Error(err)
			}
			if err := tenant.Complete(r.Context(), other, receipt("by another")); err != nil {
				t.Error(err)
			}
		}
		err := s.charge(r.Context(), "k", receipt("too late"))
		if !errors.Is(err, idem.ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
		http.Error(w, fmt.Sprint(err), http.StatusServiceUnavailable)
	})
	if a := s.post("/", "k", ""); a.status != 503 || a.replayed() {
		t.Errorf("%v", a)
	}
	if a := s.post("/", "k", ""); a.body != "by another" || !a.replayed() {
		t.Errorf("%v", a)
	}
	s.wantBooked("k", 0)
}
