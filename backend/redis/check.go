package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
)

// oldest is the version of Redis that is needed.
var oldest = [2]int{6, 2}

// Check asks the server, or every master of a cluster, whether it can be trusted
// with claims. It returns an error if it cannot:
//
//   - it evicts records under memory pressure, and Options.AllowEviction is not set;
//   - it is a read-only replica;
//   - it is older than Redis 6.2;
//   - the storage has lost its records ([idem.ErrStoreLost]).
//
// It warns through Options.Warn of what a person should know: that a restart
// loses records, or that the user may not ask for some of this.
//
// Check needs the right to INFO and CONFIG GET. What it may not see it warns of.
func (b *Backend) Check(ctx context.Context) error {
	err := b.promptly(ctx, "check", func(ctx context.Context) error {
		c, ok := b.client.(*goredis.ClusterClient)
		if !ok {
			return b.checkNode(ctx, "the server", b.client)
		}
		var one sync.Mutex // Warn is called by one at a time
		return c.ForEachMaster(ctx, func(ctx context.Context, c *goredis.Client) error {
			one.Lock()
			defer one.Unlock()
			return b.checkNode(ctx, "the node "+c.Options().Addr, c)
		})
	})
	if err == nil {
		err = b.join(ctx)
	}
	return classed("check", err)
}

// checkNode checks one server, which which names.
func (b *Backend) checkNode(ctx context.Context, which string, client goredis.UniversalClient) error {
	if err := client.Ping(ctx).Err(); err != nil && refusal(err) != "NOPERM" {
		return failed("check", err, 0)
	}
	warn := func(format string, args ...any) { b.opts.Warn(which + " " + fmt.Sprintf(format, args...)) }
	info, err := client.Info(ctx).Result()
	if err != nil {
		warn("does not let this user ask INFO (%v): whether it is a replica, evicts records or keeps them over a restart is unknown", err)
	}
	facts := parseInfo(info)
	if facts["redis_version"] == "" {
		facts["redis_version"] = b.helloVersion(ctx, client)
	}
	if err := checkVersion(which, facts["redis_version"]); err != nil {
		return err
	}
	if facts["role"] == "slave" {
		return fmt.Errorf("redis: check: %w: %s is a replica of %s:%s; connect to the master", idem.ErrUnavailable, which, facts["master_host"], facts["master_port"])
	}
	if facts["cluster_enabled"] == "1" && !b.cluster {
		return fmt.Errorf("redis: check: %w: %s is part of a cluster; connect with a ClusterClient", idem.ErrOptions, which)
	}
	config, err := client.ConfigGet(ctx, "*").Result()
	if err != nil {
		warn("does not let this user ask CONFIG GET (%v): how it saves its data to disk is unknown", err)
	}
	if err := b.checkEviction(which, facts, config, warn); err != nil {
		return err
	}
	checkPersistence(facts, config, warn)
	return nil
}

func (b *Backend) checkEviction(which string, facts, config map[string]string, warn func(string, ...any)) error {
	policy := config["maxmemory-policy"]
	if policy == "" {
		policy = facts["maxmemory_policy"]
	}
	switch {
	case policy == "" || policy == "noeviction":
		return nil
	case b.opts.AllowEviction:
		warn("has the maxmemory-policy %s: under memory pressure it drops claims and results without a word, and operations run again", policy)
		return nil
	}
	return fmt.Errorf("redis: check: %w: %s has the maxmemory-policy %s: under memory pressure it drops claims and results without a word, and operations run again. Set it to noeviction, or accept that with Options.AllowEviction",
		idem.ErrOptions, which, policy)
}

func checkPersistence(facts, config map[string]string, warn func(string, ...any)) {
	save, known := config["save"]
	switch {
	case facts["aof_enabled"] == "0" && known && save == "":
		warn("does not save its data to disk: a restart loses all records. Set appendonly yes")
	case facts["aof_enabled"] == "0":
		warn("has no append-only file: a crash loses what was written since the last snapshot, and operations run again. Set appendonly yes")
	case config["appendfsync"] == "no":
		warn("has appendfsync no: a crash of the machine loses what the system has not written to disk, half a minute and more")
	}
	if facts["aof_last_write_status"] == "err" || facts["rdb_last_bgsave_status"] == "err" {
		warn("could not write its data to disk the last time that it tried")
	}
}

// helloVersion returns the version from the greeting, which everybody may ask for.
func (b *Backend) helloVersion(ctx context.Context, client goredis.UniversalClient) string {
	reply, err := client.Do(ctx, "hello").Result()
	if err != nil {
		return ""
	}
	switch reply := reply.(type) {
	case map[any]any:
		version, _ := reply["version"].(string)
		return version
	case []any:
		for i := 0; i+1 < len(reply); i += 2 {
			if reply[i] == "version" {
				version, _ := reply[i+1].(string)
				return version
			}
		}
	}
	return ""
}

// checkVersion refuses servers that lack what the scripts use. A version that is
// unknown is let pass: the first call would fail.
func checkVersion(which, version string) error {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	x, err1 := strconv.Atoi(major)
	y, err2 := strconv.Atoi(minor)
	if err1 != nil || err2 != nil {
		return nil
	}
	if x < oldest[0] || x == oldest[0] && y < oldest[1] {
		return fmt.Errorf("redis: check: %w: %s is Redis %s; version %d.%d or later is needed", idem.ErrOptions, which, version, oldest[0], oldest[1])
	}
	return nil
}

// parseInfo returns the fields of INFO.
func parseInfo(info string) map[string]string {
	facts := make(map[string]string)
	for line := range strings.Lines(info) {
		if field, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			facts[field] = value
		}
	}
	return facts
}
