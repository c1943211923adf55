package main

import (
	"io"
	"net/http"
)

// withServeMux protects one route. The path value is set by the mux before the
// middleware runs, and is there in the handler.
func withServeMux(s *shop, protect middleware) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}/charges", protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, s.charge(r.PathValue("id")))
	})))
	return mux
}
