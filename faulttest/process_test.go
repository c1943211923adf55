package faulttest

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
	idemredis "github.com/idem-go/idem/backend/redis"
	"github.com/idem-go/idem/internal/testpg"
	"github.com/idem-go/idem/internal/testredis"
)

// processLease is the lease of claims that processes are stopped or killed with.
const processLease = 300 * time.Millisecond

// childEnv makes this binary a process that holds claims. It has the storage.
const childEnv = "IDEM_FAULTTEST_CHILD"

// openServer returns a Store on "postgres URL SCHEMA" or "redis ADDRESS PREFIX".
func openServer(ctx context.Context, storage string) (s *idem.Store, closeAll func(), err error) {
	kind, at, _ := strings.Cut(storage, " ")
	at, name, _ := strings.Cut(at, " ")
	var b idem.Backend
	if kind == "postgres" {
		pool, err := pgxpool.New(ctx, at)
		if err != nil {
			return nil, nil, err
		}
		closeAll = pool.Close
		b, err = postgres.New(pool, &postgres.Options{Schema: name})
		if err != nil {
			return nil, nil, err
		}
	} else {
		client := goredis.NewClient(&goredis.Options{Addr: at})
		closeAll = func() { _ = client.Close() }
		b, err = idemredis.New(client, &idemredis.Options{Prefix: name, Warn: func(string) {}})
		if err != nil {
			return nil, nil, err
		}
	}
	s, err = idem.New(b, &idem.Options{Lease: processLease})
	return s, closeAll, err
}

// child runs an operation for every line "key mode" of in, and writes a line when
// the operation runs and one when it has ended. In mode "wait" the operation goes
// on until it is told to stop, in mode "finish" until the next line of in.
func child(storage string, in io.Reader, out io.Writer) error {
	ctx := context.Background()
	s, closeAll, err := openServer(ctx, storage)
	if err != nil {
		return err
	}
	defer closeAll()
	if _, err := s.Lookup(ctx, "connects"); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		key, mode, _ := strings.Cut(lines.Text(), " ")
		cause := error(nil)
		_, err := s.Do(ctx, key, own, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
			fmt.Fprintf(out, "running %d\n", c.Attempt)
			if mode == "finish" {
				lines.Scan()
			} else {
				<-ctx.Done()
				cause = context.Cause(ctx)
			}
			return resultOf("child"), nil
		})
		fmt.Fprintf(out, "ended %v %v %v\n", errors.Is(err, idem.ErrLost), errors.Is(err, idem.ErrNotRecorded), errors.Is(cause, idem.ErrLost))
	}
	return lines.Err()
}

// A process is a child of this one.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

func startChild(t *testing.T, storage string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), childEnv+"="+storage)
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewScanner(out)
	t.Cleanup(p.kill)
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *process) tell(format string, args ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) want(line string) {
	p.t.Helper()
	if !p.lines.Scan() || p.lines.Text() != line {
		p.t.Fatalf("the process said %q (%v), want %q", p.lines.Text(), p.lines.Err(), line)
	}
}

// running waits until the operation runs, and returns the number of its attempt. It
// is not 1 where the storage took longer to answer than the lease lasts.
func (p *process) running() (attempt int) {
	p.t.Helper()
	p.lines.Scan()
	if _, err := fmt.Sscanf(p.lines.Text(), "running %d", &attempt); err != nil {
		p.t.Fatalf("the process said %q (%v), want that it is running", p.lines.Text(), p.lines.Err())
	}
	return attempt
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// servers calls test for each storage that several processes use.
func servers(t *testing.T, test func(t *testing.T, storage string, s *idem.Store)) {
	for _, kind := range []string{"postgres", "redis"} {
		t.Run(kind, func(t *testing.T) {
			storage := "redis " + testredis.Shared(t) + " p" + rand.Text()[:8] + ":"
			if kind == "postgres" {
				url, schema := testpg.Schema(t)
				storage = "postgres " + url + " " + schema
				migrate(t, url, schema)
			}
			s, closeAll, err := openServer(t.Context(), storage)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(closeAll)
			test(t, storage, s)
		})
	}
}

// reportProcesses notes down the figures of a test of servers.
func reportProcesses(t *testing.T, fault string, rounds int) {
	violations := 0
	if t.Failed() {
		violations = rounds // any of them may be wrong
	}
	_, storage, _ := strings.Cut(t.Name(), "/")
	reportRounds(fault, storage, rounds, violations)
}

func migrate(t *testing.T, url, schema string) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	b, err := postgres.New(pool, &postgres.Options{Schema: schema})
	if err == nil {
		err = b.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// takeOver does the operation in the place of a process that does not answer.
func takeOver(t *testing.T, s *idem.Store, key string, from int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := s.Do(ctx, key, own, func(_ context.Context, c *idem.Claim) (idem.Result, error) {
		if !c.Takeover || c.Attempt <= from {
			t.Errorf("the claim has Takeover %v and Attempt %d, want true and more than %d", c.Takeover, c.Attempt, from)
		}
		return resultOf("parent"), nil
	})
	if err != nil || out.Replayed {
		t.Fatalf("Do = %+v, %v", out, err)
	}
}

// wantResult checks that every caller gets the result of whoever took over.
func wantResult(t *testing.T, s *idem.Store, key string) {
	t.Helper()
	r, err := s.Lookup(t.Context(), key)
	if err != nil || r.Status != idem.Completed || !r.Result.Equal(resultOf("parent")) {
		t.Errorf("Lookup(%q) = %+v, %v", key, r, err)
	}
}

// Reliability row 24: a process is stopped for longer than its lease and wakes up.
// Its operation is told, or finds out when it is done; the result of whoever took
// over stands.
func TestRow24_StoppedProcess(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, storage string, s *idem.Store) {
		p := startChild(t, storage)
		rounds := max(4, times(20))
		for i := range rounds {
			key := fmt.Sprintf("stopped-%d", i)
			// In half of the rounds the operation is done before a heartbeat wakes.
			mode, ended := "wait", "ended true true true"
			if i%2 == 1 {
				mode, ended = "finish", "ended true true false"
			}
			p.tell("%s %s", key, mode)
			attempt := p.running()
			p.signal(syscall.SIGSTOP)
			takeOver(t, s, key, attempt)
			if mode == "finish" {
				p.tell("")
			}
			p.signal(syscall.SIGCONT)
			p.want(ended)
			wantResult(t, s, key)
		}
		reportProcesses(t, "a process stopped for longer than its lease", rounds)
	})
}

// Reliability row 12b: a process is killed with a claim. The key is free to be
// taken over when its lease is over.
func TestRow12b_KilledProcess(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, storage string, s *idem.Store) {
		rounds := max(4, times(20))
		for i := range rounds {
			key := fmt.Sprintf("killed-%d", i)
			p := startChild(t, storage)
			p.tell("%s wait", key)
			attempt := p.running()
			p.kill()
			takeOver(t, s, key, attempt)
			wantResult(t, s, key)
		}
		reportProcesses(t, "a process killed with a claim", rounds)
	})
}
