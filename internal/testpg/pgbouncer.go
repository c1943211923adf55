package testpg

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem/internal/testenv"
)

// PgBouncer starts a connection pooler in front of the server at url, with two
// connections to it, and returns the connection string through the pooler. mode
// is "transaction" or "statement". Where PgBouncer is not installed the test is
// skipped, or fails if IDEM_REQUIRE has "pgbouncer".
func PgBouncer(t testing.TB, target, mode string) string {
	t.Helper()
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		if bin = "/usr/sbin/pgbouncer"; !exists(bin) {
			testenv.Skip(t, "pgbouncer", "%v", err)
		}
	}
	cred, err := credential()
	if err != nil {
		testenv.Skip(t, "pgbouncer", "%v", err)
	}
	dir := testenv.Dir(t)
	if cred != nil {
		if err := os.Chown(dir, int(cred.Uid), int(cred.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	server, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	config := fmt.Sprintf(`[databases]
* = host=%s port=%s user=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
auth_type = any
unix_socket_dir =
pool_mode = %s
default_pool_size = 2
max_client_conn = 300
ignore_startup_parameters = extra_float_digits,timezone,datestyle,intervalstyle,search_path
`, server.Hostname(), server.Port(), server.User.Username(), port, mode)
	ini := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(ini, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(bin, "-q", ini)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	exited, err := testenv.StartChild(cmd, syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
	})
	through := *server
	through.Host = fmt.Sprintf("127.0.0.1:%d", port)
	for deadline := time.Now().Add(20 * time.Second); ; {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		conn, err := pgx.Connect(ctx, through.String())
		if err == nil {
			_ = conn.Close(ctx)
			cancel()
			return through.String()
		}
		cancel()
		select {
		case <-exited:
			t.Fatalf("pgbouncer exited: %s", log.String())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("pgbouncer does not answer: %v\n%s", err, log.String())
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
