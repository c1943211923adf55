package main

import (
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/idem-go/idem/internal/faultproxy"
	"github.com/idem-go/idem/internal/testpg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The load goes through a proxy that cuts its connections, and the service's own
// connections to the database are cut too.
func TestTheBooksBalance(t *testing.T) {
	ctx := context.Background()
	server := testpg.New(t)
	through, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	proxy := faultproxy.New(t, server.Addr())
	through.Host = proxy.Addr()
	pool, direct := connect(t, through.String()), connect(t, server.URL())
	handler, err := newService(ctx, pool, charge)
	if err != nil {
		t.Fatal(err)
	}
	service := httptest.NewServer(handler)
	t.Cleanup(service.Close)
	proxy.Judge(func([]byte) faultproxy.Fate {
		if rand.IntN(100) > 0 {
			return faultproxy.Pass
		}
		return faultproxy.Fate(1 + rand.IntN(3))
	})
	report, err := load(ctx, direct, service.Listener.Addr().String(), 500)
	proxy.Judge(nil)
	t.Log(report)
	if err != nil {
		t.Error(err)
	}
	if strings.Contains(report, " 0 connections were cut") {
		t.Error("nothing was cut")
	}
}

// An audit that is not in order is noticed.
func TestTheAuditNoticesADoubleCharge(t *testing.T) {
	ctx := context.Background()
	server := testpg.New(t)
	pool := connect(t, server.URL())
	if _, err := newService(ctx, pool, charge); err != nil {
		t.Fatal(err)
	}
	careless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := pool.Exec(r.Context(), `WITH a AS (UPDATE accounts SET cents = cents - 1 WHERE id = 1) INSERT INTO charges (account, cents) VALUES (1, 1)`)
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusCreated)
	}))
	t.Cleanup(careless.Close)
	if report, err := load(ctx, pool, careless.Listener.Addr().String(), 10); err == nil {
		t.Errorf("the audit finds nothing:\n%s", report)
	}
}

func TestAnswers(t *testing.T) {
	ctx := context.Background()
	server := testpg.New(t)
	pool := connect(t, server.URL())
	handler, err := newService(ctx, pool, charge)
	if err != nil {
		t.Fatal(err)
	}
	if err := openAccounts(ctx, pool); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		key, body string
		code      int
		replayed  string
	}{
		{"a", `{"account": 1, "cents": 30}`, 201, ""},
		{"a", `{"cents": 30, "account": 1}`, 201, "true"},
		{"a", `{"account": 1, "cents": 31}`, 422, ""},
		{"b", `{"account": 1, "cents": 1000000}`, 402, ""},
		{"b", `{"account": 1, "cents": 1000000}`, 402, "true"},
		{"", `{"account": 1, "cents": 30}`, 400, ""},
		{"c", `{"account": 1, "cents": -30}`, 400, ""},
		{"c", `account 1`, 400, ""},
	} {
		r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader(c.body))
		r.Header.Set("Idempotency-Key", c.key)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != c.code || w.Header().Get("Idempotency-Replayed") != c.replayed {
			t.Errorf("%q with %s: %d %s", c.key, c.body, w.Code, w.Body)
		}
	}
}

// The program as it is started.
func TestServeAndLoad(t *testing.T) {
	server := testpg.New(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	_ = listener.Close()
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- run(ctx, []string{"serve", "-addr", addr, "-database", server.URL()}, t.Output()) }()
	for deadline := time.Now().Add(20 * time.Second); ; {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if err := run(ctx, []string{"load", "-addr", addr, "-database", server.URL(), "-charges", "50"}, t.Output()); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func connect(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// OP-2: each attempt of a charge is sent with the key of the first one.
func TestOP2_RetriesHaveTheSameKey(t *testing.T) {
	var mu sync.Mutex
	attempts := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		mu.Lock()
		attempts[key]++
		n := attempts[key]
		mu.Unlock()
		if n < 2*duplicates { // each of those who send it has to come again
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	t.Cleanup(server.Close)
	client := &http.Client{}
	t.Cleanup(client.CloseIdleConnections)
	l := &loader{client: client, url: server.URL}
	for range 2 {
		l.charge(t.Context())
	}
	if len(attempts) != 2 || attempts[""] > 0 || l.failed.Load() == 0 || l.charged.Load() != 2 {
		t.Errorf("2 charges were sent with the keys and numbers of attempts %v; %d charged, %d failed", attempts, l.charged.Load(), l.failed.Load())
	}
}
