package idemhttp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/bolt"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemhttp"
)

// show sends a request with a key and prints the answer.
func show(url, key, body string) {
	req, _ := http.NewRequest("POST", url, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-User", "ada")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	fmt.Println(resp.StatusCode, strings.TrimSpace(string(answer)), "replayed:", resp.Header.Get("Idempotent-Replayed") == "true")
}

// Protect a handler: the retry gets the answer of the first request.
func ExampleMiddleware() {
	store, err := idem.New(memory.New(), nil)
	if err != nil {
		panic(err)
	}
	protect := idemhttp.Middleware(store, &idemhttp.Options{
		Scope:    func(r *http.Request) string { return r.Header.Get("X-User") }, // whom your authentication has found
		Required: true,
	})
	mux := http.NewServeMux()
	mux.Handle("POST /charges", protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "charged %s", body)
	})))
	server := httptest.NewServer(mux)
	defer server.Close()

	show(server.URL+"/charges", `"order-4711"`, `{"cents":100,"currency":"EUR"}`)
	show(server.URL+"/charges", `"order-4711"`, `{"currency":"EUR","cents":100}`)
	show(server.URL+"/charges", `"order-4711"`, `{"cents":999}`)
	// Output:
	// 201 charged {"cents":100,"currency":"EUR"} replayed: false
	// 201 charged {"cents":100,"currency":"EUR"} replayed: true
	// 422 {"type":"https://pkg.go.dev/github.com/idem-go/idem/idemhttp#key-reused","title":"Idempotency-Key is already used","status":422,"detail":"The key was used with another request. Nothing was done. Use a new key for another operation, and for a retry send the same request.","reason":"key-reused"} replayed: false
}

// Commit the change and its answer in one transaction: whatever happens to the
// process, there is no charge without its record.
func ExampleComplete() {
	dir, err := os.MkdirTemp("", "idemhttp")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	db, err := bbolt.Open(filepath.Join(dir, "shop.db"), 0o600, nil)
	if err != nil {
		panic(err)
	}
	defer db.Close()
	backend, err := bolt.New(db, nil)
	if err != nil {
		panic(err)
	}
	store, err := idem.New(backend, nil)
	if err != nil {
		panic(err)
	}
	charge := func(w http.ResponseWriter, r *http.Request) {
		var answer idem.Result
		err := db.Update(func(tx *bbolt.Tx) error {
			charges, err := tx.CreateBucketIfNotExists([]byte("charges"))
			if err != nil {
				return err
			}
			n, err := charges.NextSequence()
			if err != nil {
				return err
			}
			answer = idemhttp.NewResult(http.StatusCreated, nil, fmt.Appendf(nil, "charge %d", n))
			return idemhttp.Complete(r.Context(), backend.WithTx(tx), answer)
		})
		if err != nil {
			http.Error(w, "try again", http.StatusInternalServerError)
			return
		}
		idemhttp.WriteResult(w, answer)
	}
	server := httptest.NewServer(idemhttp.Middleware(store, nil)(http.HandlerFunc(charge)))
	defer server.Close()
	show(server.URL, "order-1", "{}")
	show(server.URL, "order-1", "{}")
	show(server.URL, "order-2", "{}")
	// Output:
	// 201 charge 1 replayed: false
	// 201 charge 1 replayed: true
	// 201 charge 2 replayed: false
}

// Call another system under a key of its own, and find out first what an earlier
// attempt has done.
func ExampleClaimFrom() {
	store, _ := idem.New(memory.New(), nil)
	pay := func(w http.ResponseWriter, r *http.Request) {
		claim, ok := idemhttp.ClaimFrom(r.Context())
		if !ok {
			http.Error(w, "there is no key", http.StatusBadRequest)
			return
		}
		fmt.Println("attempt", claim.Attempt, "takeover", claim.Takeover, "asks the bank with key", claim.ChildKey("pay")[:8])
		if claim.Attempt == 1 {
			http.Error(w, "the bank did not answer", http.StatusBadGateway)
			return
		}
		fmt.Fprint(w, "paid")
	}
	server := httptest.NewServer(idemhttp.Middleware(store, nil)(http.HandlerFunc(pay)))
	defer server.Close()
	for range 3 {
		show(server.URL, "order-1", "{}")
	}
	// Output:
	// attempt 1 takeover false asks the bank with key om3ywfpw
	// 502 the bank did not answer replayed: false
	// attempt 2 takeover true asks the bank with key om3ywfpw
	// 200 paid replayed: false
	// 200 paid replayed: true
}

// A client whose requests are repeated with one key until there is an answer.
func ExampleTransport() {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		fmt.Println("request", requests, "with key", r.Header.Get("Idempotency-Key"))
		if requests < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()

	client := &http.Client{Transport: &idemhttp.Transport{}}
	// The key is made before the first attempt and kept with the order.
	ctx := idemhttp.WithKey(context.Background(), "order-4711")
	req, _ := http.NewRequestWithContext(ctx, "POST", server.URL, strings.NewReader("{}"))
	resp, err := client.Do(req)
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	// Output:
	// request 1 with key "order-4711"
	// request 2 with key "order-4711"
	// request 3 with key "order-4711"
	// 200 OK
}

// Publish what clients can rely on, at the URL that the problems link to.
func ExamplePolicyHandler() {
	store, _ := idem.New(memory.New(), nil)
	opts := &idemhttp.Options{Policy: "/idempotency"}
	mux := http.NewServeMux()
	mux.Handle("GET /idempotency", idemhttp.PolicyHandler(store, opts))
	mux.Handle("POST /charges", idemhttp.Middleware(store, opts)(http.NotFoundHandler()))
	server := httptest.NewServer(mux)
	defer server.Close()

	resp, err := http.Get(server.URL + "/idempotency")
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close()
	page, _ := io.ReadAll(resp.Body)
	for line := range strings.Lines(string(page)) {
		if strings.Contains(line, "is kept for") {
			fmt.Print(line)
		}
	}
	// Output:
	// <p>An answer is kept for 24 hours, counted from when it was given first. A request that comes later is a new operation.</p>
}
