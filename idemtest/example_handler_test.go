package idemtest_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/idem-go/idem/idemtest"
)

// An answers is somebody's own middleware, which is not built on idem: one request
// of a key at a time, and its answer is kept.
type answers struct {
	next http.Handler

	mu   sync.Mutex
	kept map[string]*kept
}

type kept struct {
	mu     sync.Mutex
	body   string
	answer *httptest.ResponseRecorder
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	key := r.Header.Get("Customer") + "\n" + r.Header.Get("Idempotency-Key")
	a.mu.Lock()
	k := a.kept[key]
	if k == nil {
		k = &kept{body: string(body)}
		a.kept[key] = k
	}
	a.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.body != string(body) {
		http.Error(w, "this key belongs to another request", http.StatusUnprocessableEntity)
		return
	}
	if k.answer == nil || k.answer.Code >= 500 {
		k.answer = httptest.NewRecorder()
		r.Body = io.NopCloser(bytes.NewReader(body))
		a.next.ServeHTTP(k.answer, r)
	}
	w.WriteHeader(k.answer.Code)
	_, _ = w.Write(k.answer.Body.Bytes())
}

// testOrders is the whole test of an http.Handler.
func testOrders(t *testing.T) {
	idemtest.Run(t, idemtest.Operation{
		Setup: func(t testing.TB, e *idemtest.Env) idemtest.Subject {
			orders := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := e.Effect(r.Context(), nil); err != nil { // here the parcel is sent
					http.Error(w, err.Error(), http.StatusBadGateway)
					return
				}
				w.WriteHeader(http.StatusCreated)
			})
			program := &answers{next: orders, kept: make(map[string]*kept)}
			return idemtest.Subject{Send: idemtest.HTTP(program, func(r idemtest.Request) *http.Request {
				request := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(string(r.Payload)))
				request.Header.Set("Idempotency-Key", r.Key)
				request.Header.Set("Customer", r.Tenant)
				return request
			})}
		},
		Payload: func(n int) []byte { return fmt.Appendf(nil, `{"article":"lamp","pieces":%d}`, 1+n) },
		Tenants: []string{"alice", "bob"},
	})
}

// An http.Handler behind a middleware of any origin. In the program's own tests,
// testOrders is called TestOrders.
func Example_handler() {
	_ = testOrders
	// Output:
}
