package redis

import (
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testredis"
)

func TestStats(t *testing.T) {
	server := testredis.Start(t, "--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	client := server.Client(t, nil)
	o := own()
	o.SkipCheck = true // it evicts
	b := newBackend(t, client, o)
	stats := func() Stats {
		t.Helper()
		s, err := b.Stats(t.Context())
		if err != nil || len(s.Nodes) != 1 {
			t.Fatalf("Stats = %+v, %v", s, err)
		}
		return s
	}
	if s := stats(); s.Epoch != "none" {
		t.Errorf("the epoch of an unused storage is %q", s.Epoch)
	}
	if n := client.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("Stats has written %d keys", n)
	}
	if _, err := b.Swap(t.Context(), "k", "", example()); err != nil {
		t.Fatal(err)
	}
	s := stats()
	n := s.Nodes[0]
	if s.Epoch != "new" || n.Addr != server.Addr || n.Role != "master" || n.Policy != "allkeys-lru" || !n.AOF || n.Fsync != "everysec" ||
		n.Save != "" || n.Max != 100<<20 || n.Used == 0 || n.Keys != 2 || !n.ClusterOK || !strings.Contains(n.Version, ".") || n.Hidden != nil {
		t.Errorf("%+v", s)
	}
	if n.ClockAhead.Abs() > time.Minute {
		t.Errorf("the clock of this machine is %v ahead of itself", n.ClockAhead)
	}
	if err := b.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := stats(); s.Epoch != "initialised" {
		t.Errorf("the epoch after Init is %q", s.Epoch)
	}
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	_, err := b.Get(t.Context(), "k")
	wantErr(t, "Get after the loss", err, idem.ErrStoreLost)
	if s := stats(); s.Epoch != "lost" {
		t.Errorf("the epoch after a loss is %q", s.Epoch)
	}

	replica := testredis.Replica(t, server.Addr)
	b = newBackend(t, replica.Client(t, nil), o)
	if s := stats(); s.Nodes[0].Role != "slave" {
		t.Errorf("%+v", s)
	}
	server.Kill()
	b = newBackend(t, client, o)
	_, err = b.Stats(t.Context())
	wantErr(t, "Stats of a server that is down", err, idem.ErrUnavailable)
}

func TestStatsWithoutRights(t *testing.T) {
	server := testredis.Start(t)
	rules := []any{"acl", "setuser", "idem", "reset", "on", ">secret", "-@all", "~t*", "&t*"}
	for _, rule := range strings.Fields(aclRules) {
		rules = append(rules, rule)
	}
	if err := server.Client(t, nil).Do(t.Context(), rules...).Err(); err != nil {
		t.Fatal(err)
	}
	b := newBackend(t, server.Client(t, &goredis.Options{Username: "idem", Password: "secret"}), own())
	s, err := b.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := s.Nodes[0]
	if strings.Join(n.Hidden, ",") != "INFO,CONFIG GET,DBSIZE" || !strings.Contains(n.Version, ".") || n.Role != "" {
		t.Errorf("%+v", n)
	}
}

func TestStatsOfACluster(t *testing.T) {
	cluster := testredis.StartCluster(t, 3)
	b := newBackend(t, cluster.Client(t, nil), own())
	s, err := b.Stats(t.Context())
	if err != nil || len(s.Nodes) != 3 || s.Epoch != "" {
		t.Fatalf("Stats = %+v, %v", s, err)
	}
	for i, n := range s.Nodes {
		if !n.ClusterOK || n.Role != "master" || i > 0 && s.Nodes[i-1].Addr >= n.Addr {
			t.Errorf("node %d: %+v", i, n)
		}
	}
}
