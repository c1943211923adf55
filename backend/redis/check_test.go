package redis

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testredis"
)

func TestOptions(t *testing.T) {
	client := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	cluster := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer cluster.Close()
	ring := goredis.NewRing(&goredis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	for what, c := range map[string]struct {
		client goredis.UniversalClient
		opts   Options
	}{
		"no client":              {nil, Options{}},
		"a ring":                 {ring, Options{}},
		"a long prefix":          {client, Options{Prefix: strings.Repeat("p", 65)}},
		"half a hash tag":        {client, Options{Prefix: "a{b"}},
		"an empty hash tag":      {client, Options{Prefix: "a{}"}},
		"two hash tags":          {client, Options{Prefix: "{a}{b}"}},
		"a brace too many":       {client, Options{Prefix: "{a}}"}},
		"negative replicas":      {client, Options{WaitReplicas: WaitReplicas{N: -1}}},
		"a timeout below 1 ms":   {client, Options{WaitReplicas: WaitReplicas{N: 1, Timeout: 1}}},
		"a timeout that is long": {client, Options{WaitReplicas: WaitReplicas{N: 1, Timeout: time.Hour}}},
		"replicas in a cluster":  {cluster, Options{WaitReplicas: WaitReplicas{N: 1}}},
		"a canary in many slots": {cluster, Options{MustExist: true}},
	} {
		c.opts.SkipCheck = true
		_, err := New(c.client, &c.opts)
		wantErr(t, what, err, idem.ErrOptions)
	}
	for what, c := range map[string]struct {
		client goredis.UniversalClient
		opts   Options
	}{
		"a prefix":             {client, Options{Prefix: strings.Repeat("p", 64)}},
		"a hash tag":           {client, Options{Prefix: "app:{idem}:"}},
		"a canary in one slot": {cluster, Options{Prefix: "{idem}:", MustExist: true}},
		"replicas":             {client, Options{WaitReplicas: WaitReplicas{N: 1}}},
	} {
		c.opts.SkipCheck = true
		if _, err := New(c.client, &c.opts); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// FL-4: no storage, no run. Whatever is wrong with the server is ErrUnavailable.
func TestFL4FailClosed(t *testing.T) {
	down := testredis.Client(t, "127.0.0.1:1", nil)
	closed := goredis.NewClient(&goredis.Options{Addr: testredis.Shared(t)})
	closed.Close()
	secret := testredis.Start(t, "--requirepass", "secret")
	stopped := testredis.Start(t)
	busy := goredis.Options{Addr: testredis.Shared(t), PoolSize: 1, PoolTimeout: 10 * time.Millisecond}
	pool := testredis.Client(t, busy.Addr, &busy)
	conn := pool.Conn()
	defer conn.Close()
	if err := conn.Ping(t.Context()).Err(); err != nil { // takes the only connection
		t.Fatal(err)
	}
	master := testredis.Start(t)
	replica := testredis.Replica(t, master.Addr)
	for what, client := range map[string]*goredis.Client{
		"refusing connections":      down,
		"closed by the caller":      closed,
		"refusing authentication":   secret.Client(t, nil),
		"with a wrong password":     secret.Client(t, &goredis.Options{Password: "wrong"}),
		"timing out":                stopped.Client(t, &goredis.Options{ReadTimeout: 50 * time.Millisecond, MaxRetries: -1}),
		"without a free connection": pool,
		"read-only":                 replica.Client(t, nil),
	} {
		t.Run(what, func(t *testing.T) {
			o := own()
			if what == "timing out" {
				stopped.Pause()
				defer stopped.Resume()
			}
			_, err := New(client, o)
			wantErr(t, "New", err, idem.ErrUnavailable)
			o.SkipCheck = true
			s := newStore(t, newBackend(t, client, o), nil)
			ctx := within(t, 20*time.Second)
			runs := 0
			_, err = s.Do(ctx, "k", fp, func(context.Context, *idem.Claim) (idem.Result, error) {
				runs++
				return idem.Result{}, nil
			})
			wantErr(t, "Do", err, idem.ErrUnavailable)
			if runs > 0 {
				t.Error("the operation ran")
			}
			if err != nil && !strings.Contains(err.Error(), "redis: ") {
				t.Errorf("Do: %v, which does not say what failed", err)
			}
		})
	}
}

func TestCheckWarnsOfPersistence(t *testing.T) {
	for want, args := range map[string][]string{
		"does not save its data to disk": nil,
		"has no append-only file":        {"--save", "3600 1"},
		"has appendfsync no":             {"--appendonly", "yes", "--appendfsync", "no"},
		"":                               {"--appendonly", "yes"},
	} {
		o, warned := warnings()
		if _, err := New(testredis.Start(t, args...).Client(t, nil), o); err != nil {
			t.Errorf("%v: %v", args, err)
		}
		if got := warned(); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%v: the warnings are %q, want %q", args, got, want)
		}
	}
}

// A user who may not ask INFO and CONFIG is warned of what could not be seen.
func TestCheckWithoutRights(t *testing.T) {
	server := testredis.Start(t)
	admin := server.Client(t, nil)
	user := []any{"acl", "setuser", "idem", "reset", "on", ">secret", "-@all", "~t*", "&t*"}
	for _, rule := range strings.Fields(aclRules) {
		user = append(user, rule)
	}
	if err := admin.Do(t.Context(), user...).Err(); err != nil {
		t.Fatal(err)
	}
	o, warned := warnings()
	client := server.Client(t, &goredis.Options{Username: "idem", Password: "secret"})
	b, err := New(client, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"INFO", "CONFIG"} {
		if !strings.Contains(warned(), want) {
			t.Errorf("the warnings are %q, want one of %s", warned(), want)
		}
	}
	if v := b.helloVersion(t.Context(), client); !strings.Contains(v, ".") {
		t.Errorf("the version by the greeting is %q", v)
	}
	// INFO alone tells of eviction.
	if err := errors.Join(admin.Do(t.Context(), "acl", "setuser", "idem", "+info").Err(),
		admin.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err()); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "Check of a server that evicts", b.Check(t.Context()), idem.ErrOptions)
	// A right that is missing for a write is a definite no, with the reason.
	if err := admin.Do(t.Context(), "acl", "setuser", "idem", "-set").Err(); err != nil {
		t.Fatal(err)
	}
	_, err = b.Swap(t.Context(), "k", "", example())
	if err == nil || !noEffect(t, err) || !strings.Contains(err.Error(), "the user may not") {
		t.Errorf("Swap without the right to SET: %v", err)
	}
}

func TestCheckVersion(t *testing.T) {
	for version, ok := range map[string]bool{
		"6.2.0": true, "6.2.14": true, "7.0.15": true, "8.0.0": true, "": true, "unknown": true, "10.1": true,
		"6.0.16": false, "5.0.14": false, "2.8.0": false,
	} {
		if err := checkVersion("the server", version); (err == nil) != ok {
			t.Errorf("version %q: %v", version, err)
		}
	}
}

func TestCheckFindsACluster(t *testing.T) {
	cluster := testredis.StartCluster(t, 3)
	o, warned := warnings()
	_, err := New(cluster.Nodes[0].Client(t, nil), o)
	wantErr(t, "New with a plain client for a cluster", err, idem.ErrOptions)
	b, err := New(cluster.Client(t, nil), o)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(warned(), "does not save"); n < 3 {
		t.Errorf("%d of 3 nodes were warned of:\n%s", n, warned())
	}
	if err := cluster.Nodes[1].Client(t, nil).ConfigSet(t.Context(), "maxmemory-policy", "volatile-ttl").Err(); err != nil {
		t.Fatal(err)
	}
	err = b.Check(t.Context())
	wantErr(t, "Check with one node that evicts", err, idem.ErrOptions)
	if err != nil && !strings.Contains(err.Error(), cluster.Nodes[1].Addr) {
		t.Errorf("Check: %v, which does not name the node", err)
	}
}
