package idemhttp_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemhttp"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A body tells whether it was read to its end and closed.
type body struct {
	io.Reader
	closed bool
}

func (b *body) Close() error {
	b.closed = true
	return nil
}

func response(status int, lines ...string) *http.Response {
	h := http.Header{}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		h.Add(name, value)
	}
	return &http.Response{StatusCode: status, Status: fmt.Sprint(status), Header: h, Body: &body{Reader: strings.NewReader("answer")}}
}

// A script answers the attempts of one request in turn and notes what it gets.
type script struct {
	steps  []any // *http.Response or error
	keys   []string
	bodies []string
	at     []time.Duration
	start  time.Time
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	s.keys = append(s.keys, strings.Join(r.Header["Idempotency-Key"], "|"))
	s.at = append(s.at, time.Since(s.start))
	if r.Body != nil {
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		s.bodies = append(s.bodies, string(b))
	}
	step := s.steps[min(len(s.keys)-1, len(s.steps)-1)]
	if err, ok := step.(error); ok {
		return nil, err
	}
	return step.(*http.Response), nil
}

func post(ctx context.Context, body string) *http.Request {
	r, err := http.NewRequestWithContext(ctx, "POST", "http://example.com/", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	return r
}

// What is repeated, how long after, and always with the same key and body.
func TestTransport(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	ok := response(201)
	tests := []struct {
		name  string
		steps []any
		want  any
		after []time.Duration // at the earliest; the number of attempts
	}{
		{"success", []any{ok}, ok, []time.Duration{0}},
		{"a broken connection", []any{io.ErrUnexpectedEOF, errDown, ok}, ok, []time.Duration{0, 50 * ms, 100 * ms}},
		{"busy", []any{response(409, "Retry-After: 3"), response(409), ok}, ok, []time.Duration{0, 3 * s, 100 * ms}},
		{"too early, too many, unavailable", []any{response(425), response(429, "Retry-After: 2"), response(503, "Retry-After: 1"), ok}, ok, []time.Duration{0, 50 * ms, 2 * s, 1 * s}},
		{"gateways", []any{response(502), response(504), ok}, ok, []time.Duration{0, 50 * ms, 100 * ms}},
		{"a date", []any{response(503, "Retry-After: Mon, 30 Nov 2026 12:00:07 GMT", "Date: Mon, 30 Nov 2026 12:00:00 GMT"), ok}, ok, []time.Duration{0, 7 * s}},
		{"a date in the past", []any{response(503, "Retry-After: Mon, 30 Nov 2026 11:00:07 GMT", "Date: Mon, 30 Nov 2026 12:00:00 GMT"), ok}, ok, []time.Duration{0, 50 * ms}},
		{"nonsense", []any{response(503, "Retry-After: soon"), response(503, "Retry-After: -5"), ok}, ok, []time.Duration{0, 50 * ms, 100 * ms}},
		{"longer than there is time", []any{response(503, "Retry-After: 3600"), ok}, 503, []time.Duration{0}},
		{"for ever", []any{response(503, "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"), ok}, 503, []time.Duration{0}},
		{"mismatch", []any{response(422), ok}, 422, []time.Duration{0}},
		{"a bad request", []any{response(400), ok}, 400, []time.Duration{0}},
		{"a judgement", []any{response(500), ok}, 500, []time.Duration{0}},
		{"a stored conflict", []any{response(409, "Idempotent-Replayed: true"), ok}, 409, []time.Duration{0}},
		{"down all the time", []any{response(503)}, 503, []time.Duration{0, 50 * ms, 100 * ms, 200 * ms, 400 * ms}},
		{"broken all the time", []any{errDown}, errDown, []time.Duration{0, 50 * ms, 100 * ms, 200 * ms, 400 * ms}},
		{"not trusted", []any{&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, ok}, x509.UnknownAuthorityError{}, []time.Duration{0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				steps := &script{steps: tt.steps, start: time.Now()}
				resp, err := (&idemhttp.Transport{Base: steps}).RoundTrip(post(t.Context(), "the body"))
				switch want := tt.want.(type) {
				case *http.Response:
					if resp != want || err != nil || resp.Body.(*body).closed {
						t.Errorf("%v, %v", resp, err)
					}
				case int:
					if err != nil || resp.StatusCode != want {
						t.Errorf("%v, %v", resp, err)
					}
				case error:
					if !errors.Is(err, want) {
						t.Errorf("%v, %v", resp, err)
					}
				}
				if len(steps.at) != len(tt.after) {
					t.Fatalf("%d attempts, want %d", len(steps.at), len(tt.after))
				}
				for i := range steps.at {
					var waited time.Duration
					if i > 0 {
						waited = steps.at[i] - steps.at[i-1]
						if prev, ok := tt.steps[min(i-1, len(tt.steps)-1)].(*http.Response); ok && len(tt.steps) > 1 && !prev.Body.(*body).closed {
							t.Errorf("the answer of attempt %d was not closed", i)
						}
					}
					if waited < tt.after[i] || waited > tt.after[i]+tt.after[i]+s {
						t.Errorf("attempt %d came after %v, want at least %v", i+1, waited, tt.after[i])
					}
					if steps.keys[i] != steps.keys[0] || steps.bodies[i] != "the body" {
						t.Errorf("attempt %d has the key %s and the body %q", i+1, steps.keys[i], steps.bodies[i])
					}
				}
				if key, err := idemhttp.ParseKey(steps.keys[0]); err != nil || len(key) < 20 {
					t.Errorf("the key is %q, %v", key, err)
				}
			})
		})
	}
}

// Where the key comes from, and what is not a request of its own.
func TestTransportKeys(t *testing.T) {
	steps := &script{steps: []any{response(200)}}
	tr := &idemhttp.Transport{Base: steps}
	send := func(r *http.Request) string {
		t.Helper()
		before := r.Header.Clone()
		if _, err := tr.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(before) != fmt.Sprint(r.Header) {
			t.Errorf("the caller's request was changed: %v", r.Header)
		}
		return steps.keys[len(steps.keys)-1]
	}
	withHeader := func(ctx context.Context, method string) *http.Request {
		r := post(ctx, "")
		r.Method = method
		r.Header.Set("Idempotency-Key", "mine")
		return r
	}
	named := idemhttp.WithKey(t.Context(), `order "17"`)
	if key := send(post(named, "")); key != `"order \"17\""` {
		t.Errorf("from the context: %s", key)
	}
	if key := send(withHeader(named, "POST")); key != `"order \"17\""` {
		t.Errorf("the context goes first: %s", key)
	}
	if key := send(withHeader(t.Context(), "PATCH")); key != "mine" {
		t.Errorf("from the header, as it is: %s", key)
	}
	if a, b := send(post(t.Context(), "")), send(post(t.Context(), "")); a == b || a == "" {
		t.Errorf("made: %s and %s", a, b)
	}
	bare := &http.Request{Method: "POST"}
	if key := send(bare.WithContext(t.Context())); key == "" {
		t.Error("a request without a header gets no key")
	}
	for _, method := range []string{"GET", "HEAD", "PUT", "DELETE", "OPTIONS"} {
		if key := send(withHeader(named, method)); key != "mine" {
			t.Errorf("%s: %s", method, key)
		}
		r := post(t.Context(), "")
		r.Method = method
		if key := send(r); key != "" {
			t.Errorf("%s: %s", method, key)
		}
	}
}

// A key that cannot be sent is an error, before anything is sent; the body is
// closed, as a RoundTripper has to.
func TestTransportBadKeys(t *testing.T) {
	tr := &idemhttp.Transport{Base: roundTrip(func(*http.Request) (*http.Response, error) {
		t.Error("it was sent")
		return nil, errDown
	})}
	for name, r := range map[string]*http.Request{
		"empty":     post(idemhttp.WithKey(t.Context(), ""), ""),
		"not ASCII": post(idemhttp.WithKey(t.Context(), "schlüssel"), ""),
		"malformed": post(t.Context(), ""),
		"two":       post(t.Context(), ""),
	} {
		b := &body{Reader: strings.NewReader("x")}
		r.Body = b
		if name == "malformed" {
			r.Header.Set("Idempotency-Key", `"open`)
		}
		if name == "two" {
			r.Header["Idempotency-Key"] = []string{"a", "b"}
		}
		if _, err := tr.RoundTrip(r); !errors.Is(err, idem.ErrKey) || !b.closed {
			t.Errorf("%s: %v, body closed: %v", name, err, b.closed)
		}
	}
}

// What cannot be read a second time is not sent a second time.
func TestTransportBodies(t *testing.T) {
	for _, tt := range []struct {
		name     string
		body     io.ReadCloser
		getBody  func() (io.ReadCloser, error)
		attempts int
	}{
		{"none", nil, nil, 3},
		{"NoBody", http.NoBody, nil, 3},
		{"once", io.NopCloser(strings.NewReader("x")), nil, 1},
		{"again", io.NopCloser(strings.NewReader("x")), func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("x")), nil }, 3},
		{"broken", io.NopCloser(strings.NewReader("x")), func() (io.ReadCloser, error) { return nil, io.ErrClosedPipe }, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			steps := &script{steps: []any{response(503)}}
			r := post(t.Context(), "")
			r.Body, r.GetBody = tt.body, tt.getBody
			resp, err := (&idemhttp.Transport{Base: steps, MaxAttempts: 3}).RoundTrip(r)
			if len(steps.keys) != tt.attempts || steps.keys[0] == "" || (err != nil) != (tt.name == "broken") || err == nil && resp.StatusCode != 503 {
				t.Errorf("%s: %d attempts, %v, %v", tt.name, len(steps.keys), resp, err)
			}
			if len(steps.bodies) > 1 && slices.Contains(steps.bodies, "") && tt.name == "again" {
				t.Errorf("%s: bodies %q", tt.name, steps.bodies)
			}
		})
	}
}

// The caller's context ends the attempts, and the error says what they came to.
func TestTransportContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		steps := &script{steps: []any{response(503, "Retry-After: 30")}, start: time.Now()}
		_, err := (&idemhttp.Transport{Base: steps, MaxTime: time.Hour}).RoundTrip(post(ctx, "x"))
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "status 503") || time.Since(steps.start) != 5*time.Second || len(steps.keys) != 1 {
			t.Errorf("%v after %v and %d attempts", err, time.Since(steps.start), len(steps.keys))
		}
		steps = &script{steps: []any{errDown}}
		if _, err := (&idemhttp.Transport{Base: steps}).RoundTrip(post(ctx, "x")); err != errDown || len(steps.keys) != 1 {
			t.Errorf("%v after %d attempts", err, len(steps.keys))
		}
	})
}

// A client of this package and a server of this package: duplicates that run into
// each other all end with the one answer.
func TestTransportAndMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t, memory.New(), nil)
		runs := 0
		h := idemhttp.Middleware(store, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			runs++
			time.Sleep(1500 * time.Millisecond)
			w.WriteHeader(201)
			fmt.Fprint(w, "run ", runs)
		}))
		tr := &idemhttp.Transport{Base: roundTrip(func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Result(), nil
		})}
		ctx := idemhttp.WithKey(t.Context(), "order 17")
		bodies := make(chan string, 10)
		for range cap(bodies) {
			go func() {
				resp, err := tr.RoundTrip(post(ctx, "x"))
				if err != nil {
					t.Error(err)
					bodies <- ""
					return
				}
				var b bytes.Buffer
				b.ReadFrom(resp.Body)
				bodies <- fmt.Sprint(resp.StatusCode, " ", b.String())
			}()
		}
		for range cap(bodies) {
			if b := <-bodies; b != "201 run 1" {
				t.Errorf("%q", b)
			}
		}
		// An open outcome is not waited for, and its answer can be read.
		store = newStore(t, memory.New(), &idem.Options{OnLapse: idem.Hold})
		h = idemhttp.Middleware(store, &idemhttp.Options{Log: discard})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) }))
		if resp, err := tr.RoundTrip(post(ctx, "x")); err != nil || resp.StatusCode != 500 {
			t.Errorf("%v, %v", resp, err)
		}
		start := time.Now()
		resp, err := tr.RoundTrip(post(ctx, "x"))
		if err != nil || resp.StatusCode != 409 || time.Since(start) != 0 {
			t.Errorf("%v, %v after %v", resp, err, time.Since(start))
		}
		if b, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(b), `"reason":"unresolved"`) || !strings.HasSuffix(string(b), "}") {
			t.Errorf("%s, %v", b, err)
		}
	})
}
