// Package testpg gives tests a PostgreSQL: one that the variable
// IDEM_POSTGRES_URL names, or a throwaway one from the binaries that are
// installed here. Where there is neither, tests are skipped, or fail if
// IDEM_REQUIRE has "postgres".
package testpg

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem/internal/testenv"
)

// shared is the server that all tests of a binary use.
var shared struct {
	sync.Mutex
	url    string
	server *Server
	err    error
}

// Stop stops the server that the tests have shared. TestMain calls it.
func Stop() {
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		shared.server.Stop()
		shared.server, shared.url = nil, ""
	}
}

// URL returns the connection string of the server that all tests of this binary
// share, and starts it for the first of them.
func URL(t testing.TB) string {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.url == "" && shared.err == nil {
		shared.url = os.Getenv("IDEM_POSTGRES_URL")
		if shared.url == "" {
			shared.server, shared.err = Start("")
			if shared.err == nil {
				shared.url = shared.server.URL()
			}
		}
	}
	if shared.err != nil {
		testenv.Skip(t, "postgres", "%v", shared.err)
	}
	return shared.url
}

// Schema creates a schema for a test in the shared server and drops it after the
// test.
func Schema(t testing.TB) (url, schema string) {
	t.Helper()
	url = URL(t)
	schema = "idem_" + strings.ToLower(rand.Text()[:12])
	Exec(t, url, `CREATE SCHEMA `+schema)
	t.Cleanup(func() { Exec(t, url, `DROP SCHEMA IF EXISTS `+schema+` CASCADE`) })
	return url, schema
}

// Exec runs statements on a connection of their own.
func Exec(t testing.TB, url string, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// With returns the connection string url with parameters set, given as names and
// values in turn.
func With(base string, params ...string) string {
	u, err := url.Parse(base)
	if err != nil {
		panic(err)
	}
	q := u.Query()
	for i := 0; i < len(params); i += 2 {
		q.Set(params[i], params[i+1])
	}
	// pgx takes a plus sign for what it is.
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	return u.String()
}

// A Server is a PostgreSQL of a test's own, which it may kill and configure.
type Server struct {
	dir    string
	bin    string
	port   int
	cred   *syscall.Credential
	pid    int
	stop   func(syscall.Signal)
	exited <-chan struct{}
}

// New starts a server for one test, with settings like "fsync=off".
func New(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := Start("", settings...)
	if err != nil {
		testenv.Skip(t, "postgres", "%v", err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Start initialises and starts a server with its data in a folder below root; ""
// is the memory, where that is possible. The caller stops it.
func Start(root string, settings ...string) (*Server, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin}
	if s.cred, err = credential(); err != nil {
		return nil, err
	}
	if root == "" {
		root = "/dev/shm"
		if info, err := os.Stat(root); err != nil || !info.IsDir() {
			root = os.TempDir()
		}
	}
	if s.dir, err = os.MkdirTemp(root, "idem-pg-"); err != nil {
		return nil, err
	}
	if s.cred != nil {
		if err := os.Chown(s.dir, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
			return nil, err
		}
	}
	if err := s.run("initdb", "-D", s.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"); err != nil {
		_ = os.RemoveAll(s.dir)
		return nil, err
	}
	if err := s.Restart(settings...); err != nil {
		_ = os.RemoveAll(s.dir)
		return nil, err
	}
	return s, nil
}

// binaries returns the folder of the newest PostgreSQL that is installed.
func binaries() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	best, dir := 0, ""
	for _, path := range found {
		version, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		if version > best {
			best, dir = version, filepath.Dir(path)
		}
	}
	if dir != "" {
		return dir, nil
	}
	path, err := exec.LookPath("postgres")
	if err != nil {
		return "", errors.New("IDEM_POSTGRES_URL is not set and no PostgreSQL server is installed")
	}
	return filepath.Dir(path), nil
}

// credential returns whom the server runs as: PostgreSQL refuses to run as root.
func credential() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("the server does not run as root: %w", err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// Bin returns the path of one of PostgreSQL's programs.
func (s *Server) Bin(name string) string { return filepath.Join(s.bin, name) }

// Command returns a command that runs as the server's user.
func (s *Server) Command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "TZ=UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Setpgid: true}
	return cmd
}

func (s *Server) run(name string, args ...string) error {
	if out, err := s.Command(s.Bin(name), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

// Restart starts the server, for the first time or after Kill, and waits until
// it answers.
func (s *Server) Restart(settings ...string) error {
	if s.port == 0 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		s.port = l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
	}
	args := []string{"-D", s.data(), "-p", strconv.Itoa(s.port), "-k", s.dir, "-h", "127.0.0.1", "-c", "max_connections=300", "-c", "log_min_messages=warning"}
	for _, set := range settings {
		args = append(args, "-c", set)
	}
	var log bytes.Buffer
	cmd := s.Command(s.Bin("postgres"), args...)
	cmd.Stdout, cmd.Stderr = &log, &log
	exited, err := testenv.StartChild(cmd, syscall.SIGQUIT)
	if err != nil {
		return err
	}
	s.exited, s.pid = exited, cmd.Process.Pid
	s.stop = func(sig syscall.Signal) {
		_ = syscall.Kill(-cmd.Process.Pid, sig)
		<-exited
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		conn, err := pgx.Connect(ctx, s.URL())
		if err == nil {
			_ = conn.Close(ctx)
			cancel()
			return nil
		}
		cancel()
		select {
		case <-exited:
			return fmt.Errorf("the server exited: %s", log.String())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.stop(syscall.SIGKILL)
			return fmt.Errorf("the server does not answer: %w\n%s", err, log.String())
		}
	}
}

// URL returns the connection string, by way of the loopback device.
func (s *Server) URL() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
}

// SocketURL returns the connection string by way of the Unix socket.
func (s *Server) SocketURL() string {
	return fmt.Sprintf("postgres:///postgres?user=postgres&sslmode=disable&host=%s&port=%d", url.QueryEscape(s.dir), s.port)
}

// Dir returns a folder that the server's user may write to.
func (s *Server) Dir() string { return s.dir }

// Addr returns where the server listens.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// Kill kills all processes of the server at once, as a crash would.
func (s *Server) Kill() {
	// The server's processes are sessions of their own, and go on for a moment
	// when only the first of them dies.
	_ = syscall.Kill(s.pid, syscall.SIGSTOP)
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", s.pid, s.pid))
	for _, child := range strings.Fields(string(children)) {
		if pid, err := strconv.Atoi(child); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	s.stop(syscall.SIGKILL)
}

// Stop stops the server and removes its data.
func (s *Server) Stop() {
	if s.stop != nil {
		select {
		case <-s.exited:
		default:
			s.stop(syscall.SIGQUIT)
		}
	}
	_ = os.RemoveAll(s.dir)
}

// Standby starts a standby of s and stops it after the test.
func (s *Server) Standby(t testing.TB) *Server {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(s.dir), "idem-pg-")
	if err != nil {
		t.Fatal(err)
	}
	if s.cred != nil {
		if err := os.Chown(dir, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	b := &Server{dir: dir, bin: s.bin, cred: s.cred}
	t.Cleanup(b.Stop)
	if err := b.run("pg_basebackup", "-d", s.URL(), "-D", b.data(), "-R", "-X", "stream", "-c", "fast"); err != nil {
		t.Fatal(err)
	}
	if err := b.Restart(); err != nil {
		t.Fatal(err)
	}
	return b
}
