package idemhttp_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemhttp"
)

const benchBody = `{"order":4711,"cents":100,"currency":"EUR"}`

func benchHandler(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write([]byte(`{"id":17,"cents":100}`))
}

func benchmark(b *testing.B, h http.Handler, key func(i int) string) {
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		r := httptest.NewRequest("POST", "/charges", strings.NewReader(benchBody))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", key(i))
		w := &discarder{header: http.Header{}}
		h.ServeHTTP(w, r)
		i++
	}
}

func fresh(i int) string { return `"8e03978e-40d5-43e8-bc93-` + strconv.Itoa(i) + `"` }

func same(int) string { return `"8e03978e-40d5-43e8-bc93-6894a57f9324"` }

// What a request costs, its making included: without the middleware, with it for
// the first time, and with it again; on a store in memory.
func BenchmarkRequest(b *testing.B) {
	protected := func() http.Handler {
		return idemhttp.Middleware(newStore(b, memory.New(), nil), nil)(http.HandlerFunc(benchHandler))
	}
	b.Run("bare", func(b *testing.B) { benchmark(b, http.HandlerFunc(benchHandler), fresh) })
	b.Run("fresh", func(b *testing.B) { benchmark(b, protected(), fresh) })
	b.Run("replay", func(b *testing.B) { benchmark(b, protected(), same) })
}

// The same over a connection.
func BenchmarkOverHTTP(b *testing.B) {
	protected := func() http.Handler {
		return idemhttp.Middleware(newStore(b, memory.New(), nil), nil)(http.HandlerFunc(benchHandler))
	}
	run := func(b *testing.B, h http.Handler, key func(i int) string) {
		server := httptest.NewServer(h)
		defer server.Close()
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			r, err := http.NewRequest("POST", server.URL, strings.NewReader(benchBody))
			if err != nil {
				b.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Idempotency-Key", key(i))
			if _, err := do(server.Client(), r); err != nil {
				b.Fatal(err)
			}
			i++
		}
	}
	b.Run("bare", func(b *testing.B) { run(b, http.HandlerFunc(benchHandler), fresh) })
	b.Run("fresh", func(b *testing.B) { run(b, protected(), fresh) })
	b.Run("replay", func(b *testing.B) { run(b, protected(), same) })
}
