package faulttest

import (
	"context"
	"crypto/rand"
	mathrand "math/rand/v2"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/bolt"
	"github.com/idem-go/idem/backend/postgres"
	idemredis "github.com/idem-go/idem/backend/redis"
	"github.com/idem-go/idem/internal/faultproxy"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testpg"
	"github.com/idem-go/idem/internal/testredis"
)

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// clocked is the plan for storages with clocks of their own. Their time is real, so
// leases are short; their answers come when they come.
var clocked = plan{workers: 50, keys: 200, rounds: 26, days: 1, lease: 150 * time.Millisecond, patience: 2 * time.Second, slack: 3 * time.Millisecond}

// over performs one history of a storage over a line with these faults.
func over(p plan, b idem.Backend, f faults, seed uint64) (*history, error) {
	p.scope = rand.Text() // histories share the storage, but no key
	l := newLine(b, f, mathrand.New(mathrand.NewPCG(seed, 1<<32)))
	h, err := perform(p, l, seed)
	if h != nil {
		h.Faults = l.wait()
	}
	return h, err
}

func TestBolt(t *testing.T) {
	t.Parallel()
	for _, f := range []struct {
		name string
		faults
	}{{"none", faults{}}, {"requests and replies lost, or late", faults{loseRequest: 10, loseReply: 15, delayRequest: 5, delay: 300 * time.Millisecond}}} {
		t.Run(f.name, func(t *testing.T) {
			campaign{
				storage: "bolt", faults: f.name, histories: times(20), disturbed: f.loseReply > 0,
				perform: func(t *testing.T, seed uint64) (*history, error) {
					b, err := bolt.Open(filepath.Join(testenv.Dir(t), "idem.db"), nil)
					if err != nil {
						return nil, err
					}
					defer func() { _ = b.Close() }()
					return over(clocked, b, f.faults, seed)
				},
			}.run(t)
		})
	}
}

// through performs one history of a storage behind a proxy that does something bad
// to so many requests of a thousand.
func through(p plan, proxy *faultproxy.Proxy, perThousand int, b idem.Backend, seed uint64) (*history, error) {
	fates := []faultproxy.Fate{
		faultproxy.LoseRequest, faultproxy.LoseReply, faultproxy.LoseReply, faultproxy.CutBoth,
		faultproxy.TruncateReply, faultproxy.Reset, faultproxy.Silence,
	}
	var mu sync.Mutex
	met := 0
	rnd := mathrand.New(mathrand.NewPCG(seed, 1<<33))
	proxy.Judge(func([]byte) faultproxy.Fate {
		mu.Lock()
		defer mu.Unlock()
		if rnd.IntN(1000) >= perThousand {
			return faultproxy.Pass
		}
		met++
		return fates[rnd.IntN(len(fates))]
	})
	h, err := over(p, b, faults{}, seed)
	proxy.Judge(nil)
	mu.Lock()
	defer mu.Unlock()
	if h != nil {
		h.Faults = met
	}
	return h, err
}

// The network's faults, in thousandths of the requests.
var network = []struct {
	name        string
	perThousand int
	histories   int
}{{"none", 0, 20}, {"network, 1 %", 10, 54}, {"network, 3 %", 30, 20}}

// openPostgres returns a backend on a pool with its table, and a proxy in front.
func openPostgres(t *testing.T) (*postgres.Backend, *faultproxy.Proxy) {
	t.Helper()
	base, schema := testpg.Schema(t)
	u, err := url.Parse(testpg.With(base, "default_query_exec_mode", "exec"))
	if err != nil {
		t.Fatal(err)
	}
	proxy := faultproxy.New(t, u.Host)
	u.Host = proxy.Addr()
	config, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b, err := postgres.New(pool, &postgres.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b, proxy
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	for _, f := range network {
		t.Run(f.name, func(t *testing.T) {
			b, proxy := openPostgres(t)
			campaign{
				storage: "postgres", faults: f.name, histories: times(f.histories), disturbed: f.perThousand > 0,
				perform: func(_ *testing.T, seed uint64) (*history, error) {
					p := clocked
					p.repeats = true // with another connection of the pool
					return through(p, proxy, f.perThousand, b, seed)
				},
			}.run(t)
		})
	}
}

// openRedis returns a backend on a client that repeats what it got no answer to so
// many times, and a proxy in front.
func openRedis(t *testing.T, retries int) (*idemredis.Backend, *faultproxy.Proxy) {
	t.Helper()
	proxy := faultproxy.New(t, testredis.Shared(t))
	client := testredis.Client(t, proxy.Addr(), &goredis.Options{MaxRetries: retries, ReadTimeout: time.Second})
	b, err := idemredis.New(client, &idemredis.Options{Prefix: "f" + rand.Text()[:8] + ":", Warn: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	return b, proxy
}

func TestRedis(t *testing.T) {
	t.Parallel()
	for _, f := range network {
		for _, retries := range []int{-1, 3} {
			if f.perThousand == 0 && retries > 0 {
				continue // there is nothing to repeat
			}
			name := f.name
			if retries > 0 {
				name += "; the client repeats"
			}
			t.Run(name, func(t *testing.T) {
				b, proxy := openRedis(t, retries)
				campaign{
					storage: "redis", faults: name, histories: times(f.histories), disturbed: f.perThousand > 0, silent: retries > 0,
					perform: func(_ *testing.T, seed uint64) (*history, error) {
						p := clocked
						p.repeats = retries > 0
						return through(p, proxy, f.perThousand, b, seed)
					},
				}.run(t)
			})
		}
	}
}

// A program that reads the record and then writes it is caught on real storages
// too.
func TestCheckThenAct(t *testing.T) {
	t.Parallel()
	storages := map[string]func(*testing.T) idem.Backend{
		"postgres": func(t *testing.T) idem.Backend { b, _ := openPostgres(t); return b },
		"redis":    func(t *testing.T) idem.Backend { b, _ := openRedis(t, -1); return b },
	}
	for name, open := range storages {
		t.Run(name, func(t *testing.T) {
			seed := testenv.Seed(t)
			b := open(t)
			histories, missed := times(10), 0
			for i := range uint64(histories) {
				rnd := mathrand.New(mathrand.NewPCG(seed+i, 0))
				h, err := over(clocked, newMutant(b, checkThenAct, 10*time.Millisecond, rnd), faults{}, seed+i)
				if h == nil {
					t.Fatal(err)
				}
				if verdict := h.check(); verdict != porcupine.Illegal && err == nil {
					missed++
					t.Errorf("history %d of a storage that %s is %v", i, checkThenAct, verdict)
				}
			}
			reportRounds("a program that looks first and writes later", name, histories, missed)
		})
	}
}
