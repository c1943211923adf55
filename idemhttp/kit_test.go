package idemhttp_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemtest"
)

// What programs of others have to stand: a protected handler whose effect is in
// another system, under both policies for an outcome that is unknown.
func TestByIdemtest(t *testing.T) {
	for policy, after := range map[idem.LapsePolicy]idemtest.AfterCrash{idem.Takeover: idemtest.MayRepeat, idem.Hold: idemtest.Held} {
		t.Run(policy.String(), func(t *testing.T) {
			idemtest.Run(t, idemtest.Operation{
				Setup: func(t testing.TB, e *idemtest.Env) idemtest.Subject {
					store := newStore(t, e.Wrap(memory.New()), &idem.Options{OnLapse: policy})
					protect := idemhttp.Middleware(store, &idemhttp.Options{
						Scope: func(r *http.Request) string { return r.Header.Get("Customer") },
						Wait:  10 * time.Second,
						Log:   discard,
					})
					handler := protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if err := e.Effect(r.Context(), nil); err != nil {
							http.Error(w, err.Error(), http.StatusBadGateway)
							return
						}
						w.WriteHeader(http.StatusCreated)
					}))
					return idemtest.Subject{Send: idemtest.HTTP(handler, func(r idemtest.Request) *http.Request {
						request := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(string(r.Payload)))
						request.Header.Set("Content-Type", "application/json")
						request.Header.Set("Idempotency-Key", `"`+r.Key+`"`)
						request.Header.Set("Customer", r.Tenant)
						return request
					})}
				},
				Payload:    func(n int) []byte { return fmt.Appendf(nil, `{"pieces":%d}`, 1+n) },
				Tenants:    []string{"alice", "bob"},
				AfterCrash: after,
			})
		})
	}
}
