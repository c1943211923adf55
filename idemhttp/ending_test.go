package idemhttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemhttp"
)

// FL-2: what becomes of an operation by the status of its answer, and what the
// next request with the key gets. The documentation has the same table.
func TestFL2_Endings(t *testing.T) {
	const (
		kept  = "kept"
		free  = "free"
		again = "unknown"
	)
	tests := []struct {
		status int // 0 = a panic
		want   string
	}{
		{200, kept},
		{201, kept},
		{204, kept},
		{299, kept},
		{301, kept},
		{302, kept},
		{303, kept},
		{304, kept},
		{307, free},
		{308, free},
		{400, kept},
		{402, kept},
		{403, kept},
		{404, kept},
		{409, kept},
		{410, kept},
		{412, kept},
		{422, kept},
		{499, kept},
		{401, free},
		{408, free},
		{425, free},
		{429, free},
		{503, free},
		{500, again},
		{501, again},
		{502, again},
		{504, again},
		{599, again},
		{0, again},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.status), func(t *testing.T) {
			var takeover atomic.Bool
			f := newFixture(t, nil, func(w http.ResponseWriter, r *http.Request) {
				c, ok := idemhttp.ClaimFrom(r.Context())
				if !ok {
					t.Error("no claim")
				}
				takeover.Store(c.Takeover)
				if tt.status == 0 {
					panic(http.ErrAbortHandler)
				}
				w.WriteHeader(tt.status)
			})
			// On a connection that was in use before, the client itself sends a
			// request with a key again.
			f.client.Transport.(*http.Transport).DisableKeepAlives = true
			send := func() answer {
				a, err := do(f.client, f.request("POST", "/", "a", `Idempotency-Key: "k"`))
				if (err != nil) != (tt.status == 0) || a.status != tt.status {
					t.Fatalf("%v, %v", a, err)
				}
				return a
			}
			if a := send(); a.replayed() {
				t.Errorf("the first answer is marked: %v", a)
			}
			other := f.request("POST", "/", "other", `Idempotency-Key: "k"`)
			switch tt.want {
			case kept:
				if a := send(); !a.replayed() {
					t.Errorf("retry: %v", a)
				}
				f.wantRuns(1)
			case free:
				a := f.send(other) // a corrected request may use the key
				if a.status != tt.status || takeover.Load() {
					t.Errorf("corrected: %v, takeover %v", a, takeover.Load())
				}
				f.wantRuns(2)
			case again:
				if a := f.send(other); a.status != 422 {
					t.Errorf("another request: %v", a)
				}
				if a := send(); a.replayed() || !takeover.Load() {
					t.Errorf("retry: %v, takeover %v", a, takeover.Load())
				}
				f.wantRuns(2)
			}
		})
	}
}

// FL-2: the program decides otherwise, by request, status and header.
func TestFL2_OwnEndings(t *testing.T) {
	f := newFixture(t, &idemhttp.Options{
		Ending: func(r *http.Request, status int, h http.Header) idemhttp.Ending {
			switch {
			case h.Get("X-Final") == "yes":
				return idemhttp.Record
			case r.URL.Path == "/strict" && status == 404:
				return idemhttp.Release
			case status == 409:
				return idemhttp.Abandon
			}
			return 0
		},
	}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Final", r.URL.Query().Get("final"))
		var status int
		fmt.Sscan(r.URL.Query().Get("status"), &status)
		w.WriteHeader(status)
	})
	for _, tt := range []struct {
		path string
		kept bool
	}{
		{"/?status=500&final=yes", true},
		{"/?status=500", false},
		{"/?status=404", true},
		{"/strict?status=404", false},
		{"/?status=409", false},
	} {
		f.post(tt.path, tt.path, "")
		if a := f.post(tt.path, tt.path, ""); a.replayed() != tt.kept {
			t.Errorf("%s: %v", tt.path, a)
		}
	}
}

// Under Hold an unknown outcome is told as what it is, without a promise, until
// somebody has decided.
func TestHold(t *testing.T) {
	f := newFixtureOn(t, &idem.Options{OnLapse: idem.Hold}, nil, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) })
	f.post("/", "k", "")
	for range 2 {
		if a := f.post("/", "k", ""); a.status != 409 || a.reason() != "unresolved" || a.header["Retry-After"] != nil {
			t.Errorf("%v", a)
		}
	}
	f.wantRuns(1)
	if err := f.store.Resolve(t.Context(), "k", 1, idemhttp.NewResult(201, http.Header{"Location": {"/a"}}, nil)); err != nil {
		t.Fatal(err)
	}
	if a := f.post("/", "k", ""); a.status != 201 || a.header.Get("Location") != "/a" || !a.replayed() {
		t.Errorf("resolved: %v", a)
	}
}

// FL-4: with the storage down nothing runs, and the answer says to come back.
func TestFL4_StoreDown(t *testing.T) {
	for _, tt := range []struct {
		err    error
		status int
		reason string
	}{
		{errDown, 503, "unavailable"},
		{context.DeadlineExceeded, 503, "unavailable"},
		{idem.NoEffect(errors.New("READONLY You can't write against a read only replica")), 503, "unavailable"},
		{idem.ErrLocked, 503, "unavailable"},
		{idem.ErrRetryTx, 503, "unavailable"},
		{idem.ErrCorrupt, 500, "damaged"},
		{idem.ErrStoreLost, 500, "damaged"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var l log
			store := newStore(t, &faulty{memory.New(), func(string, idem.Record) error { return tt.err }}, nil)
			h := idemhttp.Middleware(store, &idemhttp.Options{Log: newLog(&l)})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				t.Error("it ran")
			}))
			w := call(t.Context(), h, "a")
			if w.Code != tt.status || reasonOf(w) != tt.reason || (w.Header().Get("Retry-After") == "1") != (tt.status == 503) {
				t.Errorf("%v: %v", tt.err, w)
			}
			if l.String() == "" {
				t.Errorf("%v: not logged", tt.err)
			}
		})
	}
}

// No client has an answer that a retry would not get: it leaves after it has been
// recorded.
func TestAnswerLeavesAfterItsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorded := make(chan struct{})
		store := newStore(t, &faulty{memory.New(), func(_ string, new idem.Record) error {
			if new.Status == idem.Completed {
				<-recorded
			}
			return nil
		}}, nil)
		h := idemhttp.Middleware(store, nil)(created())
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "/", nil)
		r.Header.Set("Idempotency-Key", "k")
		done := make(chan struct{})
		go func() {
			defer close(done)
			h.ServeHTTP(w, r)
		}()
		synctest.Wait()
		if w.Body.Len() != 0 || len(w.Header()) != 0 {
			t.Errorf("it has left: %v", w)
		}
		close(recorded)
		<-done
		if w.Code != 201 || w.Body.String() != "created 1" {
			t.Errorf("%v", w)
		}
	})
}

// An answer that cannot be recorded does not leave: the client is told to ask
// again, and what it gets then is what everybody gets.
func TestNotRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := true
		store := newStore(t, &faulty{memory.New(), func(_ string, new idem.Record) error {
			if down && (new.Status == idem.Completed || new.Attempt > 1) {
				return errDown
			}
			return nil
		}}, &idem.Options{Lease: 10 * time.Second})
		var l log
		h := idemhttp.Middleware(store, &idemhttp.Options{Log: newLog(&l)})(created())
		w := call(t.Context(), h, "a")
		if w.Code != 503 || reasonOf(w) != "not-recorded" || w.Header().Get("Retry-After") != "1" || l.String() == "" {
			t.Errorf("%v, log %q", w, l.String())
		}
		down = false
		time.Sleep(10 * time.Second)
		for i := range 2 {
			if w := call(t.Context(), h, "a"); w.Code != 201 || w.Body.String() != "created 2" {
				t.Errorf("retry %d: %v", i, w)
			}
		}
	})
}

// RS-4: a client that goes away after the effect does not lose the answer.
func TestRS4_ClientGone(t *testing.T) {
	effect := make(chan struct{})
	f := newFixture(t, nil, func(w http.ResponseWriter, r *http.Request) {
		close(effect)
		<-r.Context().Done() // the server has noticed
		w.WriteHeader(201)
		fmt.Fprint(w, "done")
	})
	ctx, hangUp := context.WithCancel(t.Context())
	go func() {
		<-effect
		hangUp()
	}()
	if a, err := do(f.client, f.request("POST", "/", "", `Idempotency-Key: "k"`).WithContext(ctx)); err == nil {
		t.Errorf("%v", a)
	}
	f.waitFor("k", idem.Completed)
	if a := f.post("/", "k", ""); a.status != 201 || a.body != "done" || !a.replayed() {
		t.Errorf("retry: %v", a)
	}
	f.wantRuns(1)
}

// RS-4: a handler that gives up with its client, after what may have been the
// effect, leaves the outcome unknown: the key is not freed silently.
func TestRS4_HandlerGivesUp(t *testing.T) {
	begun := make(chan struct{}, 1)
	takeovers := make(chan bool, 2)
	f := newFixture(t, nil, func(w http.ResponseWriter, r *http.Request) {
		c, _ := idemhttp.ClaimFrom(r.Context())
		takeovers <- c.Takeover
		if !c.Takeover {
			begun <- struct{}{}
			<-r.Context().Done()
			http.Error(w, r.Context().Err().Error(), 500)
		}
	})
	ctx, hangUp := context.WithCancel(t.Context())
	go func() {
		<-begun
		hangUp()
	}()
	if a, err := do(f.client, f.request("POST", "/", "", `Idempotency-Key: "k"`).WithContext(ctx)); err == nil {
		t.Errorf("%v", a)
	}
	lapsed := func() bool {
		r, err := f.store.Lookup(t.Context(), "k")
		return err == nil && r.Lapsed()
	}
	for !lapsed() {
		if err := f.store.Wait(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
	}
	if a := f.post("/", "k", ""); a.status != 200 || a.replayed() || <-takeovers || !<-takeovers {
		t.Errorf("retry: %v", a)
	}
}

// RS-4: the write that records an answer has a time limit of its own.
func TestRS4_RecordingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := &hanging{Backend: memory.New()}
		store := newStore(t, hang, &idem.Options{Lease: 10 * time.Second})
		ctx, hangUp := context.WithCancel(t.Context())
		h := idemhttp.Middleware(store, &idemhttp.Options{Log: discard})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { hangUp() }))
		start := time.Now()
		call(ctx, h, "a")
		if took := time.Since(start); took < time.Second || took > 11*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// A hanging Backend does not answer a completion before its caller gives up.
type hanging struct{ idem.Backend }

func (b *hanging) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	if new.Status == idem.Completed {
		<-ctx.Done()
		return idem.Record{}, ctx.Err()
	}
	return b.Backend.Swap(ctx, key, old, new)
}
