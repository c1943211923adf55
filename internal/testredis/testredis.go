// Package testredis starts throwaway Redis servers for tests, from the binary
// redis-server, with their data in memory.
package testredis

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/internal/testenv"
)

// Need is the name of Redis in IDEM_REQUIRE.
const Need = "redis"

// Wait is how long anything may take that is waited for.
const Wait = 20 * time.Second

// A Server is a running redis-server.
type Server struct {
	Addr string

	t    testing.TB
	args []string
	log  string

	mu   sync.Mutex
	cmd  *exec.Cmd
	gone <-chan struct{} // closed when the process has ended
}

// Start starts a server that keeps nothing over a restart, unless the arguments,
// which are those of redis-server, say otherwise. It stops after the test.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, freePort(t), args...)
}

func start(t testing.TB, port int, args ...string) *Server {
	t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		testenv.Skip(t, Need, "no redis-server: %v", err)
	}
	dir := testenv.Dir(t)
	s := &Server{
		Addr: fmt.Sprintf("127.0.0.1:%d", port),
		t:    t,
		log:  filepath.Join(dir, "log"),
		args: append([]string{
			binary, "--bind", "127.0.0.1", "--port", fmt.Sprint(port), "--dir", dir, "--logfile", "log",
			"--save", "", "--appendonly", "no", "--daemonize", "no", "--repl-diskless-sync-delay", "0",
		}, args...),
	}
	t.Cleanup(s.Kill)
	s.Restart()
	return s
}

// Restart starts a server that was killed, and waits until it answers.
func (s *Server) Restart() {
	s.t.Helper()
	s.mu.Lock()
	cmd := exec.Command(s.args[0], s.args[1:]...)
	gone, err := testenv.StartChild(cmd, syscall.SIGKILL)
	if err != nil {
		s.mu.Unlock()
		s.t.Fatal(err)
	}
	s.cmd, s.gone = cmd, gone
	s.mu.Unlock()
	c := goredis.NewClient(&goredis.Options{Addr: s.Addr, MaxRetries: -1})
	defer func() { _ = c.Close() }()
	Until(s.t, "the server answers", func() bool {
		select {
		case <-gone:
			log, _ := os.ReadFile(s.log)
			s.t.Fatalf("redis-server has ended: %s", log)
		default:
		}
		err := c.Ping(context.Background()).Err()
		return err == nil || goredis.IsAuthError(err)
	})
}

// Kill kills the server without warning. Killing it twice does no harm.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	<-s.gone
	s.cmd = nil
}

// Pause stops the process as a debugger does; Resume lets it go on.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume ends Pause.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(sig)
	}
}

// Client returns a client for the server, with the options of go-redis except for
// the address, and closes it after the test.
func (s *Server) Client(t testing.TB, opts *goredis.Options) *goredis.Client {
	return Client(t, s.Addr, opts)
}

// Client returns a client for an address.
func Client(t testing.TB, addr string, opts *goredis.Options) *goredis.Client {
	o := goredis.Options{}
	if opts != nil {
		o = *opts
	}
	o.Addr = addr
	c := goredis.NewClient(&o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Replica starts a replica of the server at addr and waits until it follows.
func Replica(t testing.TB, addr string, args ...string) *Server {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	r := Start(t, append([]string{"--replicaof", host + " " + port}, args...)...)
	c := r.Client(t, nil)
	Until(t, "the replica follows", func() bool {
		role, err := c.Do(t.Context(), "role").Slice()
		return err == nil && len(role) > 3 && role[3] == "connected"
	})
	return r
}

// A Cluster is a Redis Cluster of masters.
type Cluster struct{ Nodes []*Server }

// StartCluster starts a cluster of n masters and waits until all of them agree on
// it.
func StartCluster(t testing.TB, n int, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{}
	var clients []*goredis.Client
	ctx := context.Background()
	for range n {
		s := start(t, freePort(t), append([]string{
			"--cluster-enabled", "yes", "--cluster-port", fmt.Sprint(freePort(t)), "--cluster-node-timeout", "5000",
		}, args...)...)
		c.Nodes = append(c.Nodes, s)
		clients = append(clients, s.Client(t, nil))
	}
	const slots = 16384
	for i, client := range clients {
		if err := client.ClusterAddSlotsRange(ctx, i*slots/n, (i+1)*slots/n-1).Err(); err != nil {
			t.Fatal(err)
		}
		if err := client.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range c.Nodes[1:] {
		host, port, _ := net.SplitHostPort(s.Addr)
		bus := clients[0].Do(ctx, "cluster", "meet", host, port, c.busPort(s))
		if bus.Err() != nil {
			t.Fatal(bus.Err())
		}
	}
	Until(t, "the cluster is up", func() bool {
		for _, client := range clients {
			info, err := client.ClusterInfo(ctx).Result()
			if err != nil || !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", n)) {
				return false
			}
		}
		return true
	})
	return c
}

// busPort returns the port on which a node talks to the others.
func (c *Cluster) busPort(s *Server) string {
	for i, arg := range s.args {
		if arg == "--cluster-port" {
			return s.args[i+1]
		}
	}
	return ""
}

// Client returns a client for the cluster and closes it after the test.
func (c *Cluster) Client(t testing.TB, opts *goredis.ClusterOptions) *goredis.ClusterClient {
	o := goredis.ClusterOptions{}
	if opts != nil {
		o = *opts
	}
	o.Addrs = nil
	for _, s := range c.Nodes {
		o.Addrs = append(o.Addrs, s.Addr)
	}
	client := goredis.NewClusterClient(&o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Until asks until the answer is yes, for as long as Wait.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(Wait); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain until %s", Wait, what)
		}
	}
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

var shared struct {
	mu     sync.Mutex
	server *Server
}

// Shared returns the address of the server that all tests of a package share: the
// one of the environment variable IDEM_REDIS_URL (host and port), or one that is
// started with the first call. Tests keep to names of their own on it.
func Shared(t testing.TB) (addr string) {
	t.Helper()
	if addr := os.Getenv("IDEM_REDIS_URL"); addr != "" {
		return strings.TrimPrefix(addr, "redis://")
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
		shared.server = start(&untilStopped{TB: t}, freePort(t))
	}
	return shared.server.Addr
}

// StopShared stops the shared server, if there is one. TestMain calls it.
func StopShared() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server != nil {
		shared.server.Kill()
		_ = os.RemoveAll(filepath.Dir(shared.server.log))
	}
}

// untilStopped is a test whose clean-up is left to StopShared.
type untilStopped struct{ testing.TB }

func (*untilStopped) Cleanup(func()) {}
