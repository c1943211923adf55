package main

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// With each router the operation happens once per key, the router's parameter
// reaches the handler, and the answers are the same.
func TestRouters(t *testing.T) {
	for _, router := range slices.Sorted(maps.Keys(routers)) {
		t.Run(router, func(t *testing.T) {
			s := &shop{}
			h, err := newHandler(router, s)
			if err != nil {
				t.Fatal(err)
			}
			server := httptest.NewServer(h)
			defer server.Close()
			for _, step := range []struct {
				name, path, key, body string
				status                int
				answer                string
				replayed              string
			}{
				{"first", "/accounts/7/charges", `"a"`, "100", 201, "charge 1: account 7\n", ""},
				{"retry", "/accounts/7/charges", `"a"`, "100", 201, "charge 1: account 7\n", "true"},
				{"another payload", "/accounts/7/charges", `"a"`, "101", 422, "", ""},
				{"another account", "/accounts/8/charges", `"a"`, "100", 422, "", ""},
				{"another key", "/accounts/8/charges", `"b"`, "100", 201, "charge 2: account 8\n", ""},
				{"no key", "/accounts/8/charges", "", "100", 400, "", ""},
			} {
				req, err := http.NewRequest("POST", server.URL+step.path, strings.NewReader(step.body))
				if err != nil {
					t.Fatal(err)
				}
				if step.key != "" {
					req.Header.Set("Idempotency-Key", step.key)
				}
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != step.status || step.answer != "" && string(body) != step.answer ||
					resp.Header.Get("Idempotent-Replayed") != step.replayed {
					t.Errorf("%s: %s %v %q, %v", step.name, resp.Status, resp.Header, body, err)
				}
			}
			if n := s.charges.Load(); n != 2 {
				t.Errorf("%d charges", n)
			}
		})
	}
}

// The program serves until it is stopped.
func TestRun(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := run(ctx, "chi", "127.0.0.1:0"); err != nil {
		t.Error(err)
	}
	if err := run(ctx, "none", "127.0.0.1:0"); err == nil || !strings.Contains(err.Error(), `no router "none"`) {
		t.Errorf("%v", err)
	}
}
