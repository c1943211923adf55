package idemhttp_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemhttp"
)

// HT-3: each event reaches the client before the next one is made, with a key and
// without, and a retry does not make them again.
func TestHT3_Stream(t *testing.T) {
	next := make(chan struct{})
	f := newFixture(t, nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Location", "/jobs/1")
		w.WriteHeader(202)
		for i := range 10 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Errorf("flush: %v", err)
			}
			<-next
		}
	})
	for _, lines := range [][]string{nil, {`Idempotency-Key: "k"`}} {
		resp, err := f.client.Do(f.request("POST", "/", "", lines...))
		if err != nil {
			t.Fatal(err)
		}
		events := bufio.NewScanner(resp.Body)
		for i := range 10 {
			if !events.Scan() || events.Text() != fmt.Sprintf("data: %d", i) || !events.Scan() {
				t.Fatalf("event %d: %q, %v", i, events.Text(), events.Err())
			}
			next <- struct{}{} // only now the handler goes on
		}
		if resp.StatusCode != 202 || resp.Header.Get("Content-Type") != "text/event-stream" || events.Scan() {
			t.Errorf("%s %v, then %q", resp.Status, resp.Header, events.Text())
		}
		resp.Body.Close()
	}
	f.wantRuns(2)
	retry := f.post("/", "k", "")
	if retry.status != 202 || retry.body != "" || !retry.replayed() || retry.header.Get(idemhttp.OmittedHeader) != "true" ||
		retry.header.Get("Location") != "/jobs/1" || retry.header["Content-Type"] != nil {
		t.Errorf("retry: %v", retry)
	}
	f.wantRuns(2)
}

// HT-3: a stream that breaks off leaves the outcome unknown.
func TestHT3_BrokenStream(t *testing.T) {
	f := newFixture(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if c, _ := idemhttp.ClaimFrom(r.Context()); c.Takeover {
			io.WriteString(w, "the rest")
			return
		}
		io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	a, err := do(f.client, f.request("POST", "/", "", `Idempotency-Key: "k"`))
	if err == nil || a.body != "half" {
		t.Errorf("%v, %v", a, err)
	}
	if a := f.post("/", "k", ""); a.body != "the rest" {
		t.Errorf("retry: %v", a)
	}
	f.wantRuns(2)
}

// RS-2: what is too large to keep reaches the client whole, and is done.
func TestRS2_TooLarge(t *testing.T) {
	const limit = 1 << 10
	for _, size := range []int{limit - 1, limit, limit + 1, 2 * limit} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			f := newFixtureOn(t, &idem.Options{MaxResult: limit}, nil, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "/a")
				w.WriteHeader(201)
				for range size { // in small writes
					w.Write([]byte{'x'})
				}
			})
			first, second := f.post("/", "k", ""), f.post("/", "k", "")
			f.wantRuns(1)
			if first.status != 201 || len(first.body) != size || first.replayed() || first.header.Get(idemhttp.OmittedHeader) != "" {
				t.Errorf("first: %d bytes, %v", len(first.body), first)
			}
			kept := size <= limit
			if second.status != 201 || !second.replayed() || second.header.Get("Location") != "/a" || (second.body == first.body) != kept ||
				(second.header.Get(idemhttp.OmittedHeader) == "true") == kept {
				t.Errorf("second: %d bytes, %v", len(second.body), second)
			}
			if e := f.stored(); len(e) != 1 || e[0].Record.Status != idem.Completed || e[0].Record.Result.Omitted == kept {
				t.Errorf("stored: %+v", e)
			}
		})
	}
}

// HT-3: however much a handler writes, no more than MaxResult of it is held.
func TestHT3_Memory(t *testing.T) {
	const size, limit = 256 << 20, 1 << 20
	chunk := bytes.Repeat([]byte("x"), 64<<10)
	store := newFixtureOn(t, &idem.Options{MaxResult: limit}, nil, created()).store
	h := idemhttp.Middleware(store, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range size / len(chunk) {
			if _, err := w.Write(chunk); err != nil {
				t.Error(err)
			}
		}
	}))
	r := httptest.NewRequest("POST", "/", nil)
	r.Header.Set("Idempotency-Key", "k")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	h.ServeHTTP(&discarder{header: http.Header{}}, r)
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 16*limit {
		t.Errorf("%d bytes were allocated for an answer of %d", grown, size)
	}
}

type discarder struct{ header http.Header }

func (d *discarder) Header() http.Header         { return d.header }
func (d *discarder) Write(p []byte) (int, error) { return len(p), nil }
func (d *discarder) WriteHeader(int)             {}

// HT-3: a ResponseController can do what the connection can.
func TestHT3_ResponseController(t *testing.T) {
	f := newFixture(t, nil, func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		for name, err := range map[string]error{
			"SetReadDeadline":  c.SetReadDeadline(time.Now().Add(time.Minute)),
			"SetWriteDeadline": c.SetWriteDeadline(time.Now().Add(time.Minute)),
			"EnableFullDuplex": c.EnableFullDuplex(),
		} {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		io.WriteString(w, "x")
	})
	if a := f.post("/", "k", ""); a.body != "x" {
		t.Errorf("%v", a)
	}
	if a := f.post("/", "k", ""); a.body != "x" || !a.replayed() {
		t.Errorf("deadlines have spoilt the record: %v", a)
	}

	// Where the connection can do none of it, the answer is still recorded.
	h := idemhttp.Middleware(f.store, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		_, _, hijack := c.Hijack()
		for name, err := range map[string]error{"Flush": c.Flush(), "Hijack": hijack, "SetReadDeadline": c.SetReadDeadline(time.Time{}), "EnableFullDuplex": c.EnableFullDuplex()} {
			if !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("%s: %v, want ErrNotSupported", name, err)
			}
		}
		w.Header().Set("Location", "/b")
		io.WriteString(w, "y")
	}))
	for i := range 2 {
		under := struct{ http.ResponseWriter }{httptest.NewRecorder()}
		r := httptest.NewRequest("POST", "/", nil)
		r.Header.Set("Idempotency-Key", "k2")
		h.ServeHTTP(under, r)
		if got := under.ResponseWriter.(*httptest.ResponseRecorder); got.Body.String() != "y" || got.Header().Get("Location") != "/b" {
			t.Errorf("answer %d: %v", i, got)
		}
	}
}

// HT-3: a connection that is taken over is the handler's; that it was is recorded.
func TestHT3_Hijack(t *testing.T) {
	f := newFixture(t, nil, func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
		rw.Flush()
		line, _ := rw.ReadString('\n')
		rw.WriteString("echo " + line)
		rw.Flush()
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: \"k\"\r\nUpgrade: echo\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\nhello\n")
	said, err := io.ReadAll(conn)
	if err != nil || !strings.HasSuffix(string(said), "\r\n\r\necho hello\n") || !strings.HasPrefix(string(said), "HTTP/1.1 101") {
		t.Errorf("%q, %v", said, err)
	}
	f.waitFor("k", idem.Completed)
	if a := f.post("/", "k", ""); a.status != 200 || a.body != "" || !a.replayed() || a.header.Get(idemhttp.OmittedHeader) != "true" {
		t.Errorf("retry: %v", a)
	}
	f.wantRuns(1)
}
