package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testpg"
)

// Reliability rows 16 and 17: the server is killed under eight writers, three
// times. What was acknowledged is there afterwards, also where the default of the
// database would let a crash lose it.
func TestRow16And17_ServerCrash(t *testing.T) {
	for _, commit := range []string{"on", "off"} {
		t.Run("synchronous_commit="+commit, func(t *testing.T) {
			ctx := context.Background()
			srv := testpg.New(t, "synchronous_commit="+commit)
			testpg.Exec(t, srv.URL(), `CREATE SCHEMA app`)
			f := newFixtureAt(t, srv.URL(), "app", 8)
			s := newStore(t, f, nil)
			for crash := range 3 {
				var mu sync.Mutex
				acknowledged := map[string]*idem.Claim{}
				paid := map[string]bool{}
				var enough atomic.Bool
				var all sync.WaitGroup
				running, stop := context.WithCancel(ctx)
				for w := range 8 {
					all.Go(func() {
						for i := 0; running.Err() == nil; i++ {
							key := fmt.Sprintf("c%d-%d-%d", crash, w, i)
							short, cancel := context.WithTimeout(running, 2*time.Second)
							if w%4 == 0 {
								_, err := f.Do(short, s, key, payloadA, func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
									return idem.Result{}, f.pay(ctx, tx, key)
								})
								if err == nil {
									mu.Lock()
									paid[key] = true
									mu.Unlock()
								}
							} else if c, _, err := s.Begin(short, key, payloadA); err == nil {
								mu.Lock()
								acknowledged[key] = c
								enough.Store(len(acknowledged) >= 300)
								mu.Unlock()
							}
							cancel()
						}
					})
				}
				for !enough.Load() {
					time.Sleep(time.Millisecond) // between looks
				}
				srv.Kill()
				stop()
				all.Wait()
				if err := srv.Restart("synchronous_commit=" + commit); err != nil {
					t.Fatal(err)
				}
				f.pool.Reset()
				lost := 0
				for key, c := range acknowledged {
					if r, err := s.Lookup(ctx, key); err != nil || r.Attempt != c.Attempt || r.Fence != c.Fence {
						lost++
						t.Logf("%q: %+v, %v", key, r, err)
					}
				}
				times := f.payments(t)
				for key := range paid {
					if r, err := s.Lookup(ctx, key); err != nil || r.Status != idem.Completed || times[key] != 1 {
						lost++
						t.Logf("%q: %+v, %v, paid %d times", key, r, err, times[key])
					}
				}
				t.Logf("%d claims and %d transactions acknowledged, %d lost", len(acknowledged), len(paid), lost)
				if lost > 0 {
					t.Errorf("%d acknowledged writes were lost in a crash", lost)
				}
			}
		})
	}
}

// Reliability row 19: a standby answers nothing, rather than something old.
func TestRow19_Standby(t *testing.T) {
	ctx := context.Background()
	primary := testpg.New(t)
	testpg.Exec(t, primary.URL(), `CREATE SCHEMA app`)
	f := newFixtureAt(t, primary.URL(), "app", 4)
	s := newStore(t, f, nil)
	if c, _, err := s.Begin(ctx, "k", payloadA); c == nil {
		t.Fatal(err)
	}
	standby := primary.Standby(t)
	pool := open(t, standby.URL(), 4)
	for present := false; !present; { // until the standby has caught up
		if err := pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM app.idem_records)`).Scan(&present); err != nil {
			t.Fatal(err)
		}
	}
	b, err := postgres.New(pool, &postgres.Options{Schema: "app"})
	if err != nil {
		t.Fatal(err)
	}
	old := newStore(t, b, nil)
	calls := map[string]func(context.Context) error{
		"Lookup":              func(ctx context.Context) error { _, err := old.Lookup(ctx, "k"); return err },
		"Lookup of no record": func(ctx context.Context) error { _, err := old.Lookup(ctx, "absent"); return err },
		"Begin":               func(ctx context.Context) error { _, _, err := old.Begin(ctx, "k", payloadA); return err },
		"Begin of a new key":  func(ctx context.Context) error { _, _, err := old.Begin(ctx, "new", payloadA); return err },
		"Migrate":             b.Migrate,
		"Do": func(ctx context.Context) error {
			_, err := b.Do(ctx, old, "k2", payloadA, func(context.Context, pgx.Tx, *idem.Claim) (idem.Result, error) {
				t.Error("the function ran on a standby")
				return idem.Result{}, nil
			})
			return err
		},
	}
	for what, call := range calls {
		short, cancel := context.WithTimeout(ctx, 20*time.Second)
		err := call(short)
		cancel()
		if !errors.Is(err, idem.ErrUnavailable) || !strings.Contains(err.Error(), "connect to the primary") {
			t.Errorf("%s = %v, want ErrUnavailable with the reason", what, err)
		}
	}
	// And so do calls that share a round trip, with few others and with many.
	for callers := range 64 {
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				if _, err := old.Lookup(ctx, fmt.Sprintf("absent%d", i%40)); !errors.Is(err, idem.ErrUnavailable) {
					t.Errorf("Lookup = %v", err)
				}
			})
		}
		all.Wait()
	}
}

// Reliability row 15: the disk is full. The claim is definitely refused, reading
// goes on, and so does everything when there is room again.
func TestRow15_DiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Skip(t, "root", "a small file system has to be mounted")
	}
	ctx := context.Background()
	srv := testpg.New(t)
	small := filepath.Join(srv.Dir(), "small")
	if err := os.Mkdir(small, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=2m,mode=0777"); err != nil {
		testenv.Skip(t, "root", "mount: %v", err)
	}
	t.Cleanup(func() {
		srv.Stop()
		if err := syscall.Unmount(small, 0); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(srv.Dir())
	})
	space := filepath.Join(small, "space")
	if out, err := srv.Command("mkdir", space).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	testpg.Exec(t, srv.URL(), `CREATE SCHEMA app`, `CREATE TABLESPACE small LOCATION '`+space+`'`)
	f := newFixtureAt(t, srv.URL(), "app", 4)
	f.exec(t, `ALTER TABLE app.idem_records SET TABLESPACE small`)
	s := newStore(t, f, nil)
	first, _, err := s.Begin(ctx, "first", payloadA)
	if err != nil {
		t.Fatal(err)
	}
	full := error(nil)
	var last string
	for i := 0; full == nil && i < 100; i++ {
		last = fmt.Sprintf("k%d", i)
		c, _, err := s.Begin(ctx, last, payloadA)
		if err != nil {
			full = err
			break
		}
		body := make([]byte, 100<<10)
		rand.Read(body) // not to be compressed away
		full = s.Complete(ctx, c, idem.Result{Body: body})
	}
	if !errors.Is(full, idem.ErrUnavailable) || !strings.Contains(full.Error(), "53100") {
		t.Fatalf("on a full disk: %v", full)
	}
	if _, err := s.Lookup(ctx, "first"); err != nil {
		t.Errorf("reading on a full disk: %v", err)
	}
	if err := syscall.Mount("tmpfs", small, "tmpfs", syscall.MS_REMOUNT, "size=20m"); err != nil {
		t.Fatal(err)
	}
	if err := s.Complete(ctx, first, idem.Result{Body: make([]byte, 1000)}); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if c, _, err := s.Begin(ctx, "after", payloadA); c == nil {
		t.Errorf("with room again: %v", err)
	}
}

// Reliability row 12b: the program is killed with claims and a transaction in its
// hands. The transaction leaves nothing behind, the claim lasts for its lease.
func TestRow12b_ProgramIsKilled(t *testing.T) {
	ctx := context.Background()
	if schema := os.Getenv("IDEM_TEST_VICTIM"); schema != "" {
		f := &fixture{pool: open(t, testpg.URL(t), 4), schema: schema}
		b, err := postgres.New(f.pool, &postgres.Options{Schema: schema})
		if err != nil {
			t.Fatal(err)
		}
		s := newStore(t, b, &idem.Options{Lease: time.Minute})
		if _, _, err := s.Begin(ctx, "claim", payloadA); err != nil {
			t.Fatal(err)
		}
		_, err = b.Do(ctx, s, "tx", payloadA, func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
			if err := f.pay(ctx, tx, c.Key); err != nil {
				return idem.Result{}, err
			}
			fmt.Println("ready")
			select {}
		})
		t.Fatal(err)
	}
	f := newFixture(t, 4)
	s := newStore(t, f, &idem.Options{Lease: time.Minute})
	for range 20 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestRow12b_ProgramIsKilled$")
		cmd.Env = append(os.Environ(), "IDEM_TEST_VICTIM="+f.schema, "IDEM_POSTGRES_URL="+testpg.URL(t))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ready := make([]byte, 5)
		if n, err := out.Read(ready); err != nil || string(ready[:n]) != "ready" {
			t.Fatalf("the program says %q, %v", ready[:n], err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if _, _, err := s.Begin(ctx, "claim", payloadA); !errors.Is(err, idem.ErrInProgress) {
			t.Errorf("during the lease: %v", err)
		}
		f.age(t, time.Minute)
		c, _, err := s.Begin(ctx, "claim", payloadA)
		if c == nil || !c.Takeover {
			t.Fatalf("after the lease: %+v, %v", c, err)
		}
		out2, err := f.Do(ctx, s, "tx", payloadA, func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
			return idem.Result{}, f.pay(ctx, tx, c.Key)
		})
		if err != nil || out2.Attempt != 1 || f.payments(t)["tx"] != 1 {
			t.Errorf("the transaction left something: %+v, %v, paid %d times", out2, err, f.payments(t)["tx"])
		}
		f.exec(t, `TRUNCATE `+f.schema+`.idem_records, `+f.schema+`.payments`)
	}
}
