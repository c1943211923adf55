package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemtest"
)

// An order is charged once, whatever dies: a request that finds an open attempt has
// the recovery run first. The provider is in this process, and outlives those that
// are killed, which find it in their environment.
func TestChargingIsIdempotent(t *testing.T) {
	const envProvider = "RECOVERY_TEST_PROVIDER"
	if os.Getenv(envProvider) == "" {
		provider := httptest.NewServer(newProvider())
		t.Cleanup(provider.Close)
		t.Setenv(envProvider, strings.TrimPrefix(provider.URL, "http://"))
	}
	idemtest.Run(t, idemtest.Operation{
		Setup: func(t testing.TB, e *idemtest.Env) idemtest.Subject {
			s, err := openShop(filepath.Join(e.Dir(), "orders.db"), options{
				provider: os.Getenv(envProvider), lease: 300 * time.Millisecond, timeout: 10 * time.Second,
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.close() })
			if s.store, err = idem.New(e.Wrap(s.backend), &s.rules); err != nil {
				t.Fatal(err)
			}
			s.provider.http.Transport = charging{e, s.provider.http.Transport}
			return idemtest.Subject{
				Send: func(ctx context.Context, r idemtest.Request) (string, error) {
					cents, err := strconv.ParseInt(string(r.Payload), 10, 64)
					if err != nil {
						return "", err
					}
					receipt, _, err := s.charge(ctx, r.Key, cents)
					if errors.Is(err, idem.ErrUnresolved) {
						if err := s.recoverAll(ctx, io.Discard); err != nil {
							return "", err
						}
						receipt, _, err = s.charge(ctx, r.Key, cents)
					}
					return receipt, err
				},
				Effects: func() int {
					charges, err := s.provider.all(context.Background())
					if err != nil {
						t.Error(err)
					}
					return len(charges)
				},
			}
		},
		Payload: func(n int) []byte { return fmt.Append(nil, 100+n) },
	})
}

// charging shows the kit the requests that charge.
type charging struct {
	e    *idemtest.Env
	next http.RoundTripper
}

func (c charging) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	if r.Method != http.MethodPost {
		return c.next.RoundTrip(r)
	}
	failed := c.e.Effect(r.Context(), func() error {
		resp, err = c.next.RoundTrip(r)
		return err
	})
	return resp, failed
}
