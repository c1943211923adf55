package main

import (
	"fmt"
	"strings"

	idemredis "github.com/idem-go/idem/backend/redis"
)

// redis examines a server, or the masters of a cluster.
func (d *diagnosis) redis() {
	// Looking must not make a storage that is not there, nor mind what is wrong.
	backend, err := d.target.connectRedis(toRead)
	if err != nil {
		d.unopened("server", err)
		return
	}
	defer func() { _ = backend.Close() }()
	ctx, cancel := d.ask()
	defer cancel()
	st, err := backend.redis.Stats(ctx)
	if err != nil {
		d.unopened("server", err)
		return
	}
	for _, n := range st.Nodes {
		which := ""
		if len(st.Nodes) > 1 {
			which = n.Addr + ": "
		}
		d.node(which, n)
	}
	if !d.epoch(st) {
		d.add(skip, "records", "", "not looked at, for what is said above")
		return
	}
	d.records(backend)
}

// epoch judges whether the storage has been lost, and reports whether the records
// can be looked at.
func (d *diagnosis) epoch(st idemredis.Stats) bool {
	again := "find out which operations were done, and then: " + d.target.storeLine("migrate", "--init")
	switch st.Epoch {
	case "":
		d.add(skip, "epoch", "put a hash tag in idem_prefix, such as {idem}:, to have all records on one node, where it is noticed", "whether a node has lost its records cannot be noticed in a cluster")
	case "none":
		d.add(bad, "epoch", "if this is a new store, run something with it; if there have been records, "+again, "there is no storage with this prefix: nothing has been run with it yet, or it is gone")
		return false
	case "lost":
		d.add(bad, "epoch", again, "the storage has lost its records: it was flushed, or restarted without persistence; every call is refused")
		return false
	default:
		d.add(ok, "epoch", "", "the storage has not lost its records since it was %s", map[string]string{"new": "begun", "initialised": "initialised"}[st.Epoch])
	}
	return true
}

// node examines one server. which names it, if there are several.
func (d *diagnosis) node(which string, n idemredis.Node) {
	switch {
	case n.Version == "":
		d.add(skip, "server", "", "%sit answers, and does not tell its version", which)
	case tooOld(n.Version):
		d.add(bad, "server", "use version 6.2 or later", "%sit is Redis %s", which, n.Version)
	default:
		d.add(ok, "server", "", "%sit answers, and is Redis %s", which, n.Version)
	}
	hidden := func(what string) bool {
		for _, h := range n.Hidden {
			if h == what {
				return true
			}
		}
		return false
	}
	for _, h := range n.Hidden {
		what := map[string]string{
			"INFO":         "whether it is a replica, keeps records over a restart, evicts them or is short of memory",
			"CONFIG GET":   "when it makes snapshots, and how its append-only file is synced",
			"DBSIZE":       "how many keys there are",
			"CLUSTER INFO": "whether the cluster is whole",
		}[h]
		d.add(skip, "hidden", "grant +"+strings.ToLower(strings.ReplaceAll(h, " ", "|"))+" to look", "%sthe user may not ask %s: %s", which, h, what)
	}
	d.clock(which, n.ClockAhead)
	if !n.ClusterOK {
		d.add(bad, "cluster", "see CLUSTER INFO and CLUSTER NODES", "%sthe cluster is down for a part of the keys", which)
	}
	if hidden("INFO") {
		return
	}
	switch {
	case n.Role == "slave":
		d.add(bad, "primary", "name the master in the URL", "%sit is a replica: it takes no claims, and what it has may be old", which)
	case n.Replicas == 0:
		d.add(ok, "primary", "", "%sit is a master, without replicas", which)
	default:
		d.add(ok, "primary", "", "%sit is a master with %s; a failover can lose the last writes", which, counted(int64(n.Replicas), "replica", "replicas"))
	}
	d.eviction(which, n)
	d.persistence(which, n, hidden("CONFIG GET"))
}

func (d *diagnosis) eviction(which string, n idemredis.Node) {
	noeviction := n.Policy == "noeviction" || n.Policy == ""
	switch {
	case !noeviction && d.target.redisOptions.AllowEviction:
		d.add(warn, "eviction", "set maxmemory-policy noeviction", "%sthe policy is %s, which the URL allows: under memory pressure records are dropped, and operations run again", which, n.Policy)
	case !noeviction:
		d.add(bad, "eviction", "set maxmemory-policy noeviction", "%sthe policy is %s: under memory pressure records are dropped, and operations run again", which, n.Policy)
	case n.Evicted > 0:
		d.add(warn, "eviction", "find out whether records were among them", "%sthe policy is noeviction now, but %s been dropped since the server's start", which, counted(n.Evicted, "key has", "keys have"))
	default:
		d.add(ok, "eviction", "", "%sthe policy is noeviction", which)
	}
	share := 0.0
	if n.Max > 0 {
		share = float64(n.Used) / float64(n.Max)
	}
	of := fmt.Sprintf("%s%s of %s are in use", which, size(n.Used), size(n.Max))
	switch {
	case n.Max == 0:
		d.add(ok, "memory", "", "%s%s are in use, and there is no limit but the machine's memory", which, size(n.Used))
	case share >= 0.95:
		d.add(bad, "memory", "make room or raise maxmemory: at the limit no operation can begin", "%s", of)
	case share >= 0.8:
		d.add(warn, "memory", "make room or raise maxmemory, while it works", "%s", of)
	default:
		d.add(ok, "memory", "", "%s", of)
	}
}

func (d *diagnosis) persistence(which string, n idemredis.Node, hidden bool) {
	switch {
	case n.Failing:
		d.add(bad, "durability", "see the server's log; its disk may be full", "%sthe last attempt to write its data to disk failed", which)
	case n.AOF && n.Fsync == "no":
		d.add(warn, "durability", "set appendfsync everysec or always", "%sappendfsync is no: a crash of the machine loses half a minute and more", which)
	case n.AOF && n.Fsync == "always":
		d.add(ok, "durability", "", "%sthe append-only file is synced with every write", which)
	case n.AOF && hidden:
		d.add(ok, "durability", "", "%sthere is an append-only file; how it is synced is not to be seen", which)
	case n.AOF:
		d.add(ok, "durability", "", "%sthe append-only file is synced every second: a crash can lose two", which)
	case hidden:
		d.add(warn, "durability", "set appendonly yes", "%sthere is no append-only file: a crash loses what was written since the last snapshot, if there is any", which)
	case n.Save == "":
		d.add(warn, "durability", "set appendonly yes", "%snothing is saved to disk: a restart loses all records", which)
	default:
		d.add(warn, "durability", "set appendonly yes", "%sthere are snapshots only: a crash loses what was written since the last one", which)
	}
}

func tooOld(version string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n < 2 {
		return false
	}
	return major < 6 || major == 6 && minor < 2
}
