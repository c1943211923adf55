package idemhttp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemhttp"
)

// call has h answer a request with the key "k", without a network.
func call(ctx context.Context, h http.Handler, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, "POST", "/", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", `"k"`)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func reasonOf(w *httptest.ResponseRecorder) string {
	return answer{w.Code, w.Header(), nil, w.Body.String()}.reason()
}

// HT-4: busy, wrong and down are told apart, and busy says when to come back.
func TestHT4_Busy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t, memory.New(), &idem.Options{Lease: 5 * time.Second})
		release := make(chan struct{})
		h := idemhttp.Middleware(store, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-release
			w.WriteHeader(201)
		}))
		var wg sync.WaitGroup
		wg.Go(func() { call(t.Context(), h, "a") })
		synctest.Wait()
		for range 3 {
			busy := call(t.Context(), h, "a")
			after, err := strconv.Atoi(busy.Header().Get("Retry-After"))
			if busy.Code != 409 || reasonOf(busy) != "in-progress" || err != nil || after < 1 || after > 5 {
				t.Errorf("busy: %v, Retry-After %q", busy, busy.Header()["Retry-After"])
			}
			time.Sleep(time.Duration(after) * time.Second)
		}
		if wrong := call(t.Context(), h, "b"); wrong.Code != 422 || reasonOf(wrong) != "key-reused" || wrong.Header()["Retry-After"] != nil {
			t.Errorf("wrong: %v", wrong)
		}
		close(release)
		wg.Wait()
		if done := call(t.Context(), h, "a"); done.Code != 201 || done.Header().Get(idemhttp.ReplayedHeader) != "true" {
			t.Errorf("who follows Retry-After ends with %v", done)
		}
	})
}

// HT-4: with a wait the duplicate is answered when the first one is, waits no
// longer than that, and leaves with its client; many of them ask the storage no
// more often than one.
func TestHT4_Wait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counting := &counted{Backend: memory.New()} // has no Watch: is polled
		store := newStore(t, counting, nil)
		var takes time.Duration
		var runs atomic.Int64
		h := idemhttp.Middleware(store, &idemhttp.Options{Wait: 2 * time.Second})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			runs.Add(1)
			time.Sleep(takes)
			w.WriteHeader(201)
		}))
		takes = 300 * time.Millisecond
		var wg sync.WaitGroup
		start := time.Now()
		wg.Go(func() { call(t.Context(), h, "a") })
		synctest.Wait()
		var answered atomic.Int64
		for range 100 {
			wg.Go(func() {
				w := call(t.Context(), h, "a")
				if took := time.Since(start); w.Code != 201 || took < takes || took > 500*time.Millisecond {
					t.Errorf("a duplicate got %d after %v", w.Code, took)
				}
				answered.Add(1)
			})
		}
		impatient, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if w := call(impatient, h, "a"); w.Code != 409 || time.Since(start) != 100*time.Millisecond {
			t.Errorf("whose client left after 100 ms got %d after %v", w.Code, time.Since(start))
		}
		wg.Wait()
		if answered.Load() != 100 || runs.Load() != 1 {
			t.Errorf("%d answers, %d runs", answered.Load(), runs.Load())
		}
		if gets := counting.gets.Load(); gets > 100+1+20 { // each looks once, and together they poll
			t.Errorf("the storage was read %d times", gets)
		}
	})
}

// HT-4: a wait ends.
func TestHT4_WaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t, memory.New(), nil)
		release := make(chan struct{})
		h := idemhttp.Middleware(store, &idemhttp.Options{Wait: 2 * time.Second})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
		var wg sync.WaitGroup
		wg.Go(func() { call(t.Context(), h, "a") })
		synctest.Wait()
		start := time.Now()
		if w := call(t.Context(), h, "a"); w.Code != 409 || time.Since(start) != 2*time.Second {
			t.Errorf("%d after %v", w.Code, time.Since(start))
		}
		close(release)
		wg.Wait()
	})
}

// A duplicate that waits for one that is released runs itself.
func TestHT4_WaitForReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t, memory.New(), nil)
		var runs atomic.Int64
		h := idemhttp.Middleware(store, &idemhttp.Options{Wait: time.Minute})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			if runs.Add(1) < 3 {
				w.WriteHeader(503)
			}
		}))
		codes := make(chan int, 5)
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { codes <- call(t.Context(), h, "a").Code })
		}
		wg.Wait()
		close(codes)
		got := map[int]int{}
		for code := range codes {
			got[code]++
		}
		if fmt.Sprint(got) != "map[200:3 503:2]" || runs.Load() != 3 {
			t.Errorf("%v after %d runs", got, runs.Load())
		}
	})
}

type counted struct {
	idem.Backend
	gets atomic.Int64
}

func (b *counted) Get(ctx context.Context, key string) (idem.Record, error) {
	b.gets.Add(1)
	return b.Backend.Get(ctx, key)
}

// A claim that is lost while its handler runs: the handler is told, its answer does
// not leave, and the client gets that of who took over.
func TestTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &faulty{Backend: memory.New(), fail: func(old string, new idem.Record) error {
			if isExtension(old, new) {
				return errDown
			}
			return nil
		}}
		store := newStore(t, backend, &idem.Options{Lease: 3 * time.Second})
		var runs atomic.Int64
		h := idemhttp.Middleware(store, &idemhttp.Options{Log: discard})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n := runs.Add(1)
			if n == 1 {
				<-r.Context().Done()
				time.Sleep(time.Minute) // it does not listen
			}
			fmt.Fprintf(w, "run %d", n)
		}))
		var first *httptest.ResponseRecorder
		var wg sync.WaitGroup
		wg.Go(func() { first = call(t.Context(), h, "a") })
		time.Sleep(10 * time.Second)
		second := call(t.Context(), h, "a")
		wg.Wait()
		if second.Body.String() != "run 2" || first.Code != 503 || reasonOf(first) != "taken-over" || first.Header().Get("Retry-After") != "1" {
			t.Errorf("first: %v, second: %v", first, second)
		}
		if retry := call(t.Context(), h, "a"); retry.Body.String() != "run 2" {
			t.Errorf("retry: %v", retry)
		}
	})
}

// A Middleware on a route, inside one on the whole server, leaves the operation to
// that one, instead of waiting for it.
func TestMiddlewareInsideMiddleware(t *testing.T) {
	store := newStore(t, memory.New(), nil)
	runs := 0
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs++
		w.WriteHeader(201)
	})
	protect := idemhttp.Middleware(store, &idemhttp.Options{Wait: time.Minute})
	h := protect(protect(handler))
	first, second := call(t.Context(), h, "a"), call(t.Context(), h, "a")
	if first.Code != 201 || second.Code != 201 || second.Header().Get(idemhttp.ReplayedHeader) != "true" || runs != 1 {
		t.Errorf("%v, then %v, after %d runs", first, second, runs)
	}
}
