package main

import (
	"io"
	"net/http"

	"github.com/go-chi/chi/v5"
)

// withChi protects one route; chi's middleware is of the same type. Middleware
// that answers for the connection, such as chi's Compress, goes before it.
func withChi(s *shop, protect middleware) http.Handler {
	r := chi.NewRouter()
	r.With(protect).Post("/accounts/{id}/charges", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, s.charge(chi.URLParam(r, "id")))
	})
	return r
}
