package main

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemtest"
)

// A charge is repeated in every way that a shop with its records in memory
// survives, with each router: the account is charged once.
func TestChargingIsIdempotent(t *testing.T) {
	for _, router := range slices.Sorted(maps.Keys(routers)) {
		t.Run(router, func(t *testing.T) {
			idemtest.Run(t, idemtest.Operation{
				Setup: func(t testing.TB, e *idemtest.Env) idemtest.Subject {
					protect, err := protection(e.Wrap(memory.New()))
					if err != nil {
						t.Fatal(err)
					}
					s := &shop{}
					h := routers[router](s, func(next http.Handler) http.Handler { return protect(shown(e, next)) })
					return idemtest.Subject{
						Send: idemtest.HTTP(h, func(r idemtest.Request) *http.Request {
							req := httptest.NewRequest(http.MethodPost, "/accounts/7/charges", bytes.NewReader(r.Payload))
							req.Header.Set(idemhttp.KeyHeader, `"`+r.Key+`"`)
							return req
						}),
						Effects: func() int { return int(s.charges.Load()) },
					}
				},
				Payload:    func(n int) []byte { return fmt.Append(nil, 100+n) },
				AfterCrash: idemtest.Held,
			})
		})
	}
}

// shown shows the kit what is behind the middleware, which is where the account is
// charged. If that is made to fail, nothing was charged: 503.
func shown(e *idemtest.Env, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := e.Effect(r.Context(), func() error {
			next.ServeHTTP(w, r)
			return nil
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
}
