package idemhttp_test

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testpg"
	"github.com/idem-go/idem/internal/testredis"
)

// Requests that are sent three times at once by clients who hang up at random, at a
// server that is killed and started again: each operation happens once, and all who
// get an answer get the same.
func TestStorm(t *testing.T) {
	t.Run("bolt", func(t *testing.T) { storm(t, "bolt", filepath.Join(testenv.Dir(t), "shop.db"), "-") })
	t.Run("postgres", func(t *testing.T) {
		url, schema := testpg.Schema(t)
		storm(t, "postgres", url, schema)
	})
	t.Run("redis", func(t *testing.T) { storm(t, "redis", testredis.Shared(t), "storm-"+rand.Text()) })
}

const stormKills = 5

func storm(t *testing.T, kind, where, name string) {
	requests := 2000
	switch {
	case testing.Short():
		requests = 300
	case testenv.Race:
		requests = 600 // all of them without the race detector: see the Makefile
	}
	rnd := testenv.Rand(t)
	server := startShop(t, kind, where, name)
	s := &stormClients{
		url:  server.url,
		http: &http.Client{Transport: &idemhttp.Transport{Base: &http.Transport{MaxIdleConnsPerHost: 64}, MaxAttempts: 1000}},
	}
	defer s.http.CloseIdleConnections()
	keys := make(chan stormKey)
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for k := range keys {
				s.request(t, k)
			}
		})
	}
	for i := range requests {
		keys <- stormKey{fmt.Sprintf("order %d", i), rand3(rnd)}
		if i%(requests/stormKills) == requests/stormKills/2 {
			server.kill(t)
			server.start(t)
		}
	}
	close(keys)
	wg.Wait()
	server.kill(t)

	shop, err := openShop(t.Context(), kind, where, name)
	if err != nil {
		t.Fatal(err)
	}
	defer shop.close()
	charges, err := shop.charges(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range requests {
		if key := fmt.Sprintf("order %d", i); charges[key] != 1 {
			t.Errorf("%s was charged %d times", key, charges[key])
		}
	}
	t.Logf("%d requests, %d answers, %d replays, %d clients hung up, %d kills, %d answers of a later attempt",
		requests, s.answers.Load(), s.replays.Load(), s.hungUp.Load(), server.kills, s.takeovers.Load())
	if len(charges) != requests || server.kills != stormKills+1 || s.hungUp.Load() < int64(requests/20) || s.replays.Load() < int64(requests/2) {
		t.Error("that was no storm")
	}
}

// A stormKey is a request and after how long its copies hang up; 0 = never.
type stormKey struct {
	key    string
	hangUp [3]time.Duration
}

func rand3(rnd *mathrand.Rand) (after [3]time.Duration) {
	for i := range after {
		if rnd.IntN(3) == 0 {
			after[i] = time.Duration(1 + rnd.IntN(int(20*time.Millisecond)))
		}
	}
	return after
}

type stormClients struct {
	url  string
	http *http.Client

	answers, replays, hungUp, takeovers atomic.Int64
}

// request sends the copies of a request, and once more at the end for those of
// which all have hung up.
func (s *stormClients) request(t *testing.T, k stormKey) {
	bodies := make([]string, len(k.hangUp)+1)
	var wg sync.WaitGroup
	for i, after := range k.hangUp {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if after > 0 {
				defer time.AfterFunc(after, cancel).Stop()
			}
			bodies[i] = s.send(ctx, t, k.key)
		})
	}
	wg.Wait()
	last := s.send(t.Context(), t, k.key)
	for _, b := range bodies[:len(k.hangUp)] {
		if b != "" && b != last {
			t.Errorf("%s: one client was answered %q, another %q", k.key, b, last)
		}
	}
}

// send returns the body of the answer, or "" if ctx is done before.
func (s *stormClients) send(ctx context.Context, t *testing.T, key string) string {
	for {
		req, err := http.NewRequestWithContext(idemhttp.WithKey(ctx, key), "POST", s.url, strings.NewReader(key))
		if err != nil {
			t.Error(err)
			return ""
		}
		a, err := do(s.http, req)
		switch {
		case ctx.Err() != nil:
			s.hungUp.Add(1)
			return ""
		case err != nil, a.status == http.StatusInternalServerError:
			// The body broke off, or the server does not know what happened: what
			// the Transport leaves to its caller.
			continue
		case a.status != http.StatusCreated || a.header.Get("Location") != "/charges/"+key || !strings.HasPrefix(a.body, "charged "+key+" in attempt "):
			t.Errorf("%s: %v", key, a)
			return ""
		}
		s.answers.Add(1)
		if !strings.HasSuffix(a.body, " attempt 1") {
			s.takeovers.Add(1)
		}
		if a.replayed() {
			s.replays.Add(1)
		}
		return a.body
	}
}

// A shopServer is a shop in a process of its own. Its listener is the test's, so
// that its address is the same after a restart.
type shopServer struct {
	url      string
	args     string
	listener *os.File
	cmd      *exec.Cmd
	ended    <-chan struct{}
	kills    int
}

func startShop(t *testing.T, args ...string) *shopServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	s := &shopServer{url: "http://" + l.Addr().String(), args: strings.Join(args, " "), listener: file}
	t.Cleanup(func() {
		if s.cmd != nil {
			s.kill(t)
		}
		_ = file.Close()
	})
	s.start(t)
	return s
}

func (s *shopServer) start(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd = exec.Command(self)
	s.cmd.Env = append(os.Environ(), shopEnv+"="+s.args, "GORACE=atexit_sleep_ms=0")
	s.cmd.Stderr = os.Stderr
	s.cmd.ExtraFiles = []*os.File{s.listener}
	if s.ended, err = testenv.StartChild(s.cmd, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// kill kills the server where it stands.
func (s *shopServer) kill(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Errorf("the server had ended by itself: %v", err)
	}
	<-s.ended
	s.cmd = nil
	s.kills++
}
