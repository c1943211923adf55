package postgres

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem"
)

// An operation is what is asked about one key: what is there, to store a record
// where there is none, or to store one in the place of another.
type operation struct {
	kind kind
	key  string
	lock int64 // the advisory lock that stands for the key; claim and replace

	new *idem.Record // claim and replace

	// replace: the token of the record to be replaced, and whether that record
	// is live or, on the contrary, expired.
	old  string
	live bool

	meta []byte // encoded

	// unsure is set when a write was sent that may have taken place though no reply
	// came. It is its Swap's, of whose errors none says from then on that there was no
	// effect. Nil for a Get.
	unsure *bool
}

// failedTry notes that a try has ended with err.
func (op *operation) failedTry(err error) {
	if op.unsure != nil && op.kind != get && !unsent(err) {
		*op.unsure = true
	}
}

func (op *operation) mayBeDone() bool { return op.unsure != nil && *op.unsure }

// notDone marks the error of an operation that was not carried out, unless an
// earlier try may have been.
func (op *operation) notDone(err error) error {
	if op.mayBeDone() {
		return err
	}
	return idem.NoEffect(err)
}

type kind uint8

const (
	get kind = iota
	claim
	replace
)

// size is about how many bytes the operation sends.
func (op *operation) size() int {
	n := 200 + len(op.key) + len(op.meta)
	if op.new != nil {
		n += len(op.new.Result.Body) + len(op.new.Checkpoint)
	}
	return n
}

// args are the parameters of the operation's statement.
func (op *operation) args() []any {
	if op.kind == get {
		return []any{op.key}
	}
	r := op.new
	args := make([]any, 0, 17)
	args = append(args, op.key, op.lock, r.Token, int64(r.Status), int64(r.Attempt), r.Fence, r.Fingerprint[:], int64(r.Result.Code),
		op.meta, orEmpty(r.Result.Body), r.Result.Omitted, orEmpty(r.Checkpoint), int64(r.Lease), int64(r.TTL), soonest(r))
	if op.kind == replace {
		args = append(args, op.old, op.live)
	}
	return args
}

// soonest returns the earliest, in microseconds from now, that r can expire as
// it is or after its completion. It goes into sweep_at, the indexed column, which
// tells Sweep where to look; whether a record is expired is told by its age
// alone. Because a completion leaves sweep_at as it is, unless that is off by
// more than an hour, it changes no indexed column, and PostgreSQL keeps the
// update within its page (HOT). For the same reason a claim that is held for good
// is looked at after a day.
func soonest(r *idem.Record) int64 {
	d := r.TTL
	if r.Status == idem.InProgress {
		d = min(d-r.Lease, idem.MinRetention)
	}
	return int64(max(d, 0) / time.Microsecond)
}

// alone runs an operation by itself, on a connection of its own.
func (b *Backend) alone(ctx context.Context, op *operation) (reply, error) {
	if b.pgx != nil {
		return b.inPieces(ctx, op)
	}
	return b.whole(ctx, op)
}

// whole runs an operation as one statement.
func (b *Backend) whole(ctx context.Context, op *operation) (rep reply, err error) {
	err = b.src.with(ctx, func(s session) error {
		rep, err = b.query(ctx, s, op)
		return err
	})
	return rep, err
}

// query is whole on a session.
func (b *Backend) query(ctx context.Context, s session, op *operation) (reply, error) {
	switch op.kind {
	case claim:
		return queryReply(ctx, s, b.sql.claim.alone, op.args())
	case replace:
		return queryReply(ctx, s, b.sql.replace.alone, op.args())
	}
	rep, err := queryReply(ctx, s, b.sql.get, op.args())
	return orStandby(ctx, s, rep, err)
}

// orStandby asks whether the server is a standby where a Get has found no record that
// could tell.
func orStandby(ctx context.Context, s session, rep reply, err error) (reply, error) {
	if err != nil || rep.outcome != nothing {
		return rep, err
	}
	return queryReply(ctx, s, standbySQL, nil)
}

// inPieces runs an operation with the statements that take the server least. Of a
// claim these are a write and a read in one pipeline; the read finds nothing if
// the write has taken place. That a record is not replaced is rare enough for its
// caller to look what there is.
func (b *Backend) inPieces(ctx context.Context, op *operation) (rep reply, err error) {
	conn, release, err := b.pgx.acquire(ctx)
	if err != nil {
		return rep, err
	}
	defer release()
	var batch pgx.Batch
	switch op.kind {
	case get:
		batch.Queue(b.sql.get, op.args()...)
	case claim:
		batch.Queue(b.sql.claim.piece, op.args()...)
		batch.Queue(b.sql.read, op.key, op.new.Token)
	case replace:
		batch.Queue(b.sql.replace.piece, op.args()...)
	}
	results := send(ctx, conn, &batch)
	switch op.kind {
	case get:
		rep, err = readReply(results)
	case claim:
		if rep, err = readWrite(results); err == nil && rep.outcome == unwritten {
			rep, err = readReply(results)
		}
	case replace:
		rep, err = readWrite(results)
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr // that of the commit
	}
	if op.kind == get {
		return orStandby(ctx, pgxSession{conn}, rep, err)
	}
	return rep, err
}

// A swap is one Swap on its way through operations and replies.
type swap struct {
	op  operation
	old string
	new idem.Record

	look    bool   // what there is is asked next
	expired string // the token of an expired record in the way
	unsure  bool   // see operation
}

// checkKey reports why a key cannot be stored.
func checkKey(key string) error {
	if key == "" || len(key) > idem.MaxStoredKey {
		return idem.NoEffect(fmt.Errorf("postgres: swap: %w: stored keys have 1 to %d bytes, not %d", idem.ErrKey, idem.MaxStoredKey, len(key)))
	}
	return nil
}

// newSwap returns a Swap that shares no memory with its caller, who may leave while it
// is on its way.
func (b *Backend) newSwap(key, old string, new idem.Record) *swap {
	sw := &swap{old: old, new: new.Clone(), op: operation{key: key, lock: lockOf("key", b.table, key), meta: encodeMeta(new.Result.Meta)}}
	sw.op.new, sw.op.unsure = &sw.new, &sw.unsure
	return sw
}

// next returns what to ask next. It is the same operation, changed.
func (sw *swap) next() *operation {
	switch op := &sw.op; {
	case sw.look:
		op.kind = get
	case sw.expired != "":
		op.kind, op.old, op.live = replace, sw.expired, false
	case sw.old == "":
		op.kind = claim
	default:
		op.kind, op.old, op.live = replace, sw.old, true
	}
	return &sw.op
}

// settle says how the Swap ends, or that there is more to ask: the reply shows
// the record as it was before a rival's write, or a transaction holds the key.
func (sw *swap) settle(rep reply) (got idem.Record, ok bool) {
	sw.look = false
	switch {
	case rep.outcome == stored || rep.outcome == unsafely:
		sw.new.Age = 0
		return sw.new, true
	case rep.outcome == unwritten:
		sw.look = true
		return idem.Record{}, false
	case rep.outcome != present:
		sw.expired = ""
		return idem.Record{}, sw.old != ""
	case rep.record.Expired():
		if sw.old == "" {
			sw.expired = rep.record.Token
		}
		return idem.Record{}, sw.old != ""
	case rep.record.Token == sw.op.new.Token:
		return *rep.record, true
	}
	return *rep.record, sw.old == "" || rep.record.Token != sw.old
}

// known remembers keys under which this process has seen a record. A duplicate of
// such a key is answered by a read, which costs less than a claim that finds the
// key taken. It is a guess: what has expired or is gone costs a claim two round
// trips more. A key has its place in a set of four, so that two keys rarely drive
// each other out in turn.
type known [1 << 12][4]atomic.Uint64

// hashes differ from process to process, so that nobody finds keys that drive others
// out.
var hashes = maphash.MakeSeed()

// find returns the hash of a key, and the set in which it has its place.
func (k *known) find(key string) (hash uint64, set *[4]atomic.Uint64) {
	hash = max(maphash.String(hashes, key), 1) // 0 is a place that is free
	return hash, &k[hash%uint64(len(k))]
}

func (k *known) has(key string) bool {
	hash, set := k.find(key)
	for i := range set {
		if set[i].Load() == hash {
			return true
		}
	}
	return false
}

func (k *known) note(key string) {
	if k.has(key) {
		return
	}
	hash, set := k.find(key)
	for i := range set {
		if set[i].CompareAndSwap(0, hash) {
			return
		}
	}
	set[rand.N(len(set))].Store(hash)
}

func (k *known) forget(key string) {
	hash, set := k.find(key)
	for i := range set {
		set[i].CompareAndSwap(hash, 0)
	}
}
