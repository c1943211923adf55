package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/conformancetest"
	"github.com/idem-go/idem/internal/faultproxy"
	"github.com/idem-go/idem/internal/testredis"
)

// A place is where the conformance suite runs: a kind of server and of client.
type place struct {
	options func() *Options
	connect func(t testing.TB) goredis.UniversalClient // over a proxy
	admin   goredis.UniversalClient                    // with all rights
	down    func(bool)                                 // cut the connections and refuse new ones, or end that
}

func (p place) harness() conformancetest.Harness {
	var mu sync.Mutex
	options := make(map[idem.Backend]*Options)
	open := func(t testing.TB, o *Options) idem.Backend {
		b := newBackend(t, p.connect(t), o)
		mu.Lock()
		defer mu.Unlock()
		options[b] = o
		return b
	}
	optionsOf := func(b idem.Backend) *Options {
		mu.Lock()
		defer mu.Unlock()
		return options[b]
	}
	return conformancetest.Harness{
		New:  func(t testing.TB) idem.Backend { return open(t, p.options()) },
		Peer: func(t testing.TB, b idem.Backend) idem.Backend { return open(t, optionsOf(b)) },
		Advance: func(t testing.TB, b idem.Backend, d time.Duration) {
			age(t, p.admin, optionsOf(b).Prefix, d)
		},
		InTx: func(t testing.TB, b idem.Backend, fn func(tx idem.Backend) error) error {
			return inTx(t.Context(), b.(*Backend), fn)
		},
		Break: func(testing.TB, idem.Backend) (restore func()) {
			p.down(true)
			return func() { p.down(false) }
		},
		Writes: func(t testing.TB, b idem.Backend) uint64 { return changes(t, p.admin) },
	}
}

// inTx runs fn in a transaction.
func inTx(ctx context.Context, b *Backend, fn func(tx idem.Backend) error) error {
	err := b.client.Watch(ctx, func(tx *goredis.Tx) error {
		p := tx.TxPipeline()
		err := fn(b.WithTx(tx, p))
		if err != nil {
			// What fn did not like may be that it has seen records from before and
			// after another caller's write. Then the transaction would fail anyway.
			p.Discard()
			p.Exists(ctx, b.canary)
		}
		if p.Len() > 0 {
			if _, execErr := p.Exec(ctx); execErr != nil {
				return execErr
			}
		}
		return err
	}, b.canary) // which leads to the node in a cluster
	if errors.Is(err, goredis.TxFailedErr) {
		return fmt.Errorf("%w: %w", idem.ErrRetryTx, err)
	}
	return err
}

// masters calls fn for each master behind a client.
func masters(t testing.TB, c goredis.UniversalClient, fn func(ctx context.Context, c goredis.UniversalClient) error) {
	t.Helper()
	ctx := context.Background()
	var err error
	if cluster, ok := c.(*goredis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, c *goredis.Client) error { return fn(ctx, c) })
	} else {
		err = fn(ctx, c)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// age makes the stored records older, or younger.
func age(t testing.TB, admin goredis.UniversalClient, prefix string, d time.Duration) {
	t.Helper()
	masters(t, admin, func(ctx context.Context, c goredis.UniversalClient) error {
		names, err := c.Keys(ctx, globQuote(prefix)+"{????}*").Result()
		if err != nil {
			return err
		}
		for _, name := range names {
			v, err := c.Get(ctx, name).Bytes()
			if err == goredis.Nil {
				continue
			}
			if err != nil {
				return err
			}
			was := readStamp(v)
			aged := stamp(v[headLen:], max(0, was-d.Microseconds()))
			if err := c.Do(ctx, "set", name, aged, "keepttl").Err(); err != nil {
				return err
			}
		}
		return nil
	})
}

func readStamp(v []byte) int64 {
	r := reader{b: v[stampAt:]}
	return int64(r.uint64())
}

// changes counts the writes to a storage.
func changes(t testing.TB, admin goredis.UniversalClient) uint64 {
	t.Helper()
	var mu sync.Mutex
	var sum uint64
	masters(t, admin, func(ctx context.Context, c goredis.UniversalClient) error {
		info, err := c.Info(ctx, "persistence").Result()
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(parseInfo(info)["rdb_changes_since_last_save"], 10, 64)
		mu.Lock()
		defer mu.Unlock()
		sum += n
		return err
	})
	return sum
}

// single returns a place with one server.
func single(t testing.TB, opts goredis.Options) place {
	addr := testredis.Start(t).Addr // Harness.Writes counts all writes to the server
	proxy := faultproxy.New(t, addr)
	return place{
		options: own,
		connect: func(t testing.TB) goredis.UniversalClient { return testredis.Client(t, proxy.Addr(), &opts) },
		admin:   testredis.Client(t, addr, nil),
		down:    proxy.Refuse,
	}
}

func TestConformanceRetries(t *testing.T) {
	t.Parallel()
	conformancetest.Run(t, single(t, goredis.Options{}).harness())
}

func TestConformanceNoRetries(t *testing.T) {
	t.Parallel()
	conformancetest.Run(t, single(t, goredis.Options{MaxRetries: -1}).harness())
}

// aclRules are the rights that the package documentation asks for.
const aclRules = "+hello +auth +ping +get +set +eval +evalsha +time +publish +subscribe +unsubscribe +scan +watch +unwatch +multi +exec"

// The user has the rights of the package documentation and no others.
func TestConformanceRestrictedUser(t *testing.T) {
	t.Parallel()
	p := single(t, goredis.Options{Username: "idem", Password: "secret"})
	user := []any{"acl", "setuser", "idem", "reset", "on", ">secret", "-@all", "~t*", "&t*"}
	for _, rule := range strings.Fields(aclRules + " +exists") { // the last is for the harness
		user = append(user, rule)
	}
	if err := p.admin.Do(t.Context(), user...).Err(); err != nil {
		t.Fatal(err)
	}
	conformancetest.Run(t, p.harness())
}

// inCluster returns a place with a cluster of three nodes.
func inCluster(t testing.TB, options func() *Options) place {
	cluster := testredis.StartCluster(t, 3)
	proxies := make(map[string]*faultproxy.Proxy)
	for _, n := range cluster.Nodes {
		proxies[n.Addr] = faultproxy.New(t, n.Addr)
	}
	return place{
		options: options,
		admin:   cluster.Client(t, nil),
		connect: func(t testing.TB) goredis.UniversalClient {
			return cluster.Client(t, &goredis.ClusterOptions{
				Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, network, proxies[addr].Addr())
				},
			})
		},
		down: func(down bool) {
			for _, p := range proxies {
				p.Refuse(down)
			}
		},
	}
}

func TestConformanceCluster(t *testing.T) {
	t.Parallel()
	h := inCluster(t, own).harness()
	h.InTx = nil // the suite's transactions have several keys, which are in several slots here
	conformancetest.Run(t, h)
}

func TestConformanceClusterOneSlot(t *testing.T) {
	t.Parallel()
	conformancetest.Run(t, inCluster(t, func() *Options {
		o := own()
		o.Prefix += "{x}:"
		return o
	}).harness())
}
