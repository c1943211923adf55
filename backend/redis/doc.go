// Package redis keeps records in Redis 6.2 or later, Valkey, or a Redis Cluster, by
// way of github.com/redis/go-redis/v9. Import it as idemredis:
//
//	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	backend, err := idemredis.New(client, nil)
//	store, err := idem.New(backend, nil)
//
// A claim, a completion and a replay are one round trip each. Concurrent callers
// share round trips. A lost answer does no harm, whether the client is set to retry
// by itself or not: the repeated call finds what the first one has written.
//
// # What Redis can lose
//
// Redis acknowledges a write before it is on a replica, and usually before it is on
// a disk. What was acknowledged can then be gone, and a claim that is gone is
// granted a second time: the operation runs twice.
//
//   - Failover (Sentinel, Cluster, a managed service): the replica that is promoted
//     lacks the last writes, typically those of the last milliseconds, and all since
//     a partition began if the old master went on taking writes in it.
//     [WaitReplicas] narrows this window and does not close it: Redis may promote
//     a replica that has not confirmed.
//   - Crash of the server: with appendfsync always nothing is lost, with everysec up
//     to two seconds, with snapshots alone everything since the last one, without
//     persistence everything.
//   - Eviction: with any maxmemory-policy but noeviction, records go when memory is
//     short.
//
// The holder of a claim that was lost in this way learns it at his next write
// ([idem.ErrLost]), which may be after the effect. The fence still rises, so another
// system that compares it can refuse the older one.
//
// Use PostgreSQL instead where an operation must not run twice even then, such as a
// payment to a system that does not recognise repetitions, and where the business
// data is in PostgreSQL anyway.
//
// # Setting up the server
//
// maxmemory-policy noeviction; appendonly yes, with appendfsync always or everysec;
// connect to the master. [Backend.Check] looks at all of this, and [New] runs it.
//
// The records of one client and one Options.Prefix are one storage. Each has a TTL
// in Redis, and its memory is reclaimed a second after it has expired; a completed
// record with a body of 256 bytes takes about 490 bytes.
//
// A user with restricted rights needs, on a prefix of "idem:":
//
//	~idem:* &idem:* +hello +auth +ping +get +set +eval +evalsha +time +publish
//	+subscribe +unsubscribe +scan +watch +unwatch +multi +exec
//
// and +info +config|get for all that Check can see, and +wait for WaitReplicas.
// Without the channels, whoever waits for a running duplicate asks in intervals.
//
// # When the storage is lost
//
// A flush, or a restart without persistence, leaves an empty database in which
// every operation could run again. So each call compares an epoch that is kept in
// Redis beside the records; when that is gone, every call fails with
// [idem.ErrStoreLost], in all processes, until a person has found out which
// operations were done and calls [Backend.Init].
//
// A storage without an epoch is taken for a new one by a process that starts. If no
// other process has noticed the loss before, that is the gap; Options.MustExist
// closes it: then Init has to be called once, when the storage is set up.
//
// The epoch does not notice what it has survived itself: a failover, or a restart
// from an older snapshot.
//
// # Cluster
//
// Records are spread over all slots, and each is a key of its own. A script reaches
// one slot only, so there is no epoch there, and the loss of a node's data is not
// noticed, unless Options.Prefix has a hash tag, which puts all records on one node.
// WaitReplicas does not work either, since WAIT cannot be sent to a given node. A
// Ring is refused.
//
// # Time
//
// Age is measured by the clock of the server alone (TIME). If it is set ahead,
// leases and records end early. If it is set back, a lease is never reported longer
// than it is, and a process that sees a record from the future counts its lease from
// that moment on.
package redis
