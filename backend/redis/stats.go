package redis

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Stats tell an operator about the storage and the servers that it is on.
type Stats struct {
	// Epoch is "new", "initialised", or "lost" once a process has noticed that the
	// storage was gone; "none" if nothing has used the storage yet or all of it is
	// gone, and "" where there can be none: in a cluster without a hash tag in
	// Options.Prefix.
	Epoch string

	Nodes []Node // the server, or every master of a cluster by its address
}

// A Node is what a server tells about itself. What this user may not ask is in
// Hidden, and the fields that depend on it are zero.
type Node struct {
	Addr      string
	Hidden    []string // "INFO", "CONFIG GET", "DBSIZE" or "CLUSTER INFO"
	Version   string
	Role      string // "master" or "slave"
	Replicas  int    // that are connected
	Policy    string // maxmemory-policy
	AOF       bool   // appendonly
	Fsync     string // appendfsync
	Save      string // when it makes snapshots; "" for never
	Failing   bool   // the last attempt to write its data to disk failed
	Used      int64  // memory in bytes, with all that is not of this storage
	Max       int64  // maxmemory in bytes; 0 for no limit
	Evicted   int64  // keys that it has dropped under memory pressure since its start
	Keys      int64  // in the client's database, those of others too
	Loading   bool
	ClusterOK bool // its cluster is whole; true without one

	// ClockAhead is by how much its clock is ahead of this machine's, to within
	// half of the time that asking took.
	ClockAhead time.Duration
}

// Stats asks the server, or every master of a cluster. It changes nothing, and does
// not mind what [Backend.Check] refuses.
func (b *Backend) Stats(ctx context.Context) (s Stats, err error) {
	err = b.promptly(ctx, "stats", func(ctx context.Context) error {
		epoch, err := b.statsEpoch(ctx)
		if err != nil {
			return failed("stats", err, 1)
		}
		var one sync.Mutex
		var nodes []Node
		ask := func(ctx context.Context, addr string, c goredis.UniversalClient) error {
			n, err := b.node(ctx, addr, c)
			if err != nil {
				return failed("stats", err, 1)
			}
			one.Lock()
			defer one.Unlock()
			nodes = append(nodes, n)
			return nil
		}
		switch c := b.client.(type) {
		case *goredis.ClusterClient:
			err = c.ForEachMaster(ctx, func(ctx context.Context, c *goredis.Client) error { return ask(ctx, c.Options().Addr, c) })
		case *goredis.Client:
			err = ask(ctx, c.Options().Addr, c)
		default:
			err = ask(ctx, "", c)
		}
		slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.Addr, b.Addr) })
		if err == nil {
			s = Stats{Epoch: epoch, Nodes: nodes}
		}
		return err
	})
	if err != nil {
		return Stats{}, classed("stats", err)
	}
	return s, nil
}

func (b *Backend) statsEpoch(ctx context.Context) (string, error) {
	if b.canary == "" {
		return "", nil
	}
	switch epoch, err := b.client.Get(ctx, b.canary).Result(); {
	case err == goredis.Nil:
		return "none", nil
	case err != nil:
		return "", err
	case strings.HasPrefix(epoch, epochLost):
		return "lost", nil
	case strings.HasPrefix(epoch, epochInit):
		return "initialised", nil
	}
	return "new", nil
}

// node asks one server. Only one that does not answer is an error.
func (b *Backend) node(ctx context.Context, addr string, c goredis.UniversalClient) (Node, error) {
	n := Node{Addr: addr, ClusterOK: true}
	before := time.Now()
	now, err := c.Time(ctx).Result()
	if err != nil {
		return n, err
	}
	took := time.Since(before)
	if ahead := now.Sub(before.Add(took / 2)); ahead.Abs() > took/2 {
		n.ClockAhead = ahead
	}
	info, err := c.Info(ctx).Result()
	if err := n.hide("INFO", err); err != nil {
		return n, err
	}
	facts := parseInfo(info)
	if n.Version = facts["redis_version"]; n.Version == "" {
		n.Version = b.helloVersion(ctx, c)
	}
	number := func(name string) int64 {
		v, _ := strconv.ParseInt(facts[name], 10, 64)
		return v
	}
	n.Role, n.Policy, n.AOF = facts["role"], facts["maxmemory_policy"], facts["aof_enabled"] == "1"
	n.Replicas, n.Evicted = int(number("connected_slaves")), number("evicted_keys")
	n.Used, n.Max = number("used_memory"), number("maxmemory")
	n.Loading = facts["loading"] == "1"
	n.Failing = facts["aof_last_write_status"] == "err" || facts["rdb_last_bgsave_status"] == "err"
	config, err := c.ConfigGet(ctx, "*").Result()
	if err := n.hide("CONFIG GET", err); err != nil {
		return n, err
	}
	n.Save, n.Fsync = config["save"], config["appendfsync"]
	if n.Keys, err = c.DBSize(ctx).Result(); n.hide("DBSIZE", err) != nil {
		return n, err
	}
	if facts["cluster_enabled"] == "1" {
		state, err := c.ClusterInfo(ctx).Result()
		if err := n.hide("CLUSTER INFO", err); err != nil {
			return n, err
		}
		n.ClusterOK = err != nil || parseInfo(state)["cluster_state"] == "ok"
	}
	return n, nil
}

// hide notes that the server has refused to tell something. An error other than
// that is returned.
func (n *Node) hide(what string, err error) error {
	if err == nil {
		return nil
	}
	// A server that does not know or allow a command has answered all the same.
	if _, answered := err.(goredis.Error); !answered || refusal(err) != "NOPERM" && !strings.HasPrefix(err.Error(), "ERR ") {
		return err
	}
	n.Hidden = append(n.Hidden, what)
	return nil
}
