package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemtest"
	"github.com/idem-go/idem/internal/testredis"
)

// An order is repeated in every way, and the shop killed in the middle of it: it is
// booked once, from a program and from a form, on each storage. The processes that
// are killed find a server in their environment.
func TestOrderingIsIdempotent(t *testing.T) {
	for _, storage := range []struct {
		name   string
		server func(t *testing.T) string // URL; nil if there is a file instead
	}{
		{"bolt", nil},
		{"postgres", newDatabase},
		{"redis", func(t *testing.T) string { return "redis://" + testredis.Start(t).Addr + "/0" }},
	} {
		t.Run(storage.name, func(t *testing.T) {
			const envServer = "SHOP_TEST_SERVER"
			if storage.server != nil && os.Getenv(envServer) == "" {
				t.Setenv(envServer, storage.server(t))
			}
			for _, way := range []struct {
				name    string
				request func(idemtest.Request) *http.Request
			}{{"api", orderByAPI}, {"form", orderByForm}} {
				t.Run(way.name, func(t *testing.T) {
					idemtest.Run(t, idemtest.Operation{
						Setup: func(t testing.TB, e *idemtest.Env) idemtest.Subject {
							store := "bolt://" + filepath.Join(e.Dir(), "shop.db")
							if storage.server != nil {
								store = os.Getenv(envServer)
							}
							return shopUnderTest(t, e, store, way.request)
						},
						// An order has 99 amounts. The shop does not read the note, but a
						// request with another one is another.
						Payload: func(n int) []byte { return fmt.Appendf(nil, "%d %d", 1+n%maxAmount, n/maxAmount) },
						Tenants: customers[:2],
					})
				})
			}
		})
	}
}

func shopUnderTest(t testing.TB, e *idemtest.Env, store string, request func(idemtest.Request) *http.Request) idemtest.Subject {
	ctx := context.Background()
	opened, err := openBooks(ctx, store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := opened.close(); err != nil {
			t.Error(err)
		}
	})
	handler, err := newShop(&shownBooks{opened, e, e.Wrap(opened.backend()).(storage)}, 0, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return idemtest.Subject{
		Send: idemtest.HTTP(handler, request),
		Effects: func() (n int) {
			for _, name := range customers {
				sum, err := opened.summary(ctx, name)
				if err != nil {
					t.Error(err)
				}
				n += int(sum.Orders)
			}
			return n
		},
	}
}

// shownBooks show the kit the moment in a transaction at which the order is
// written and its answer is recorded.
type shownBooks struct {
	books
	e       *idemtest.Env
	records storage
}

func (s *shownBooks) backend() storage { return s.records }

func (s *shownBooks) book(ctx context.Context, o order, complete completion) error {
	return s.books.book(ctx, o, func(tx idem.Backend, o order) error {
		return s.e.Effect(ctx, func() error { return complete(tx, o) })
	})
}

func orderByAPI(r idemtest.Request) *http.Request {
	amount, note, _ := strings.Cut(string(r.Payload), " ")
	req := httptest.NewRequest(http.MethodPost, "/api/orders", strings.NewReader(fmt.Sprintf(`{"item":"mug","amount":%s,"note":%q}`, amount, note)))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(idemhttp.KeyHeader, `"`+r.Key+`"`)
	req.Header.Set(customerHeader, r.Tenant)
	return req
}

func orderByForm(r idemtest.Request) *http.Request {
	amount, note, _ := strings.Cut(string(r.Payload), " ")
	form := url.Values{"item": {"mug"}, "amount": {amount}, "note": {note}, keyField: {r.Key}}
	req := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(form.Encode()))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.AddCookie(&http.Cookie{Name: customerCookie, Value: r.Tenant})
	return req
}
