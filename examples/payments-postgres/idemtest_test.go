package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemtest"
	"github.com/idem-go/idem/internal/testpg"
)

// A charge is repeated in every way, and the service killed in the middle of it:
// the money is taken once. The processes that are killed find the database in
// their environment.
func TestChargingIsIdempotent(t *testing.T) {
	if os.Getenv("PAYMENTS_TEST_URL") == "" {
		t.Setenv("PAYMENTS_TEST_URL", testpg.New(t).URL())
		pool := connect(t, os.Getenv("PAYMENTS_TEST_URL"))
		if _, err := newService(t.Context(), pool, charge); err != nil {
			t.Fatal(err)
		}
		if err := openAccounts(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
	}
	idemtest.Run(t, idemtest.Operation{
		Setup: func(t testing.TB, e *idemtest.Env) idemtest.Subject {
			e.Dir() // the database outlives the process
			pool := connect(t, os.Getenv("PAYMENTS_TEST_URL"))
			service, err := newService(context.Background(), pool, func(ctx context.Context, tx pgx.Tx, request chargeRequest) (r idem.Result, err error) {
				err = e.Effect(ctx, func() error { r, err = charge(ctx, tx, request); return err })
				return r, err
			})
			if err != nil {
				t.Fatal(err)
			}
			return idemtest.Subject{
				Send: idemtest.HTTP(service, func(r idemtest.Request) *http.Request {
					request := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader(string(r.Payload)))
					request.Header.Set("Idempotency-Key", r.Key)
					return request
				}),
				Effects: func() (n int) {
					if err := pool.QueryRow(context.Background(), `SELECT count(*) FROM charges`).Scan(&n); err != nil {
						t.Error(err)
					}
					return n
				},
			}
		},
		Payload: func(n int) []byte { return fmt.Appendf(nil, `{"account": 1, "cents": %d}`, 1+n) },
	})
}
