package redis

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
)

// Options configure a Backend. Nil Options and zero fields stand for the
// defaults.
type Options struct {
	// Prefix begins the names of all keys and channels in Redis; "idem:" by
	// default. Two backends with one prefix on one database are one storage. It
	// may have 64 bytes.
	//
	// In a cluster, records are spread over all slots. A prefix with a hash tag,
	// such as "{idem}:", keeps them in one slot, and so on one node: transactions
	// can then have several of them, and their loss is noticed.
	Prefix string

	// MustExist refuses a database that has not been initialised, with
	// idem.ErrStoreLost and ErrNotInitialized, instead of taking it for a new one.
	// The operator calls Init once.
	MustExist bool

	// AllowEviction accepts a server whose maxmemory-policy is not noeviction.
	// Under memory pressure it drops claims and results without a word, and
	// operations run again.
	AllowEviction bool

	// SkipCheck makes New return without asking the server anything, so that a
	// program can start before its Redis. Call Check later.
	SkipCheck bool

	// WaitReplicas makes a write count only when replicas have it.
	WaitReplicas WaitReplicas

	// Warn is called by Check with what is no reason to refuse the server, but
	// for a person to know. By default the warning is logged to slog.Default.
	Warn func(warning string)
}

// WaitReplicas says how many replicas have to confirm a write. If they do not, a
// call fails with idem.ErrUnavailable; what it has written stays on the master,
// and repeating the call, as a Store does by itself, asks for confirmation again.
// It narrows the window in which a failover loses claims and does not close it.
type WaitReplicas struct {
	N       int           // 0 = do not wait
	Timeout time.Duration // 1 s by default; at most half of the client's ReadTimeout
}

func (o *Options) withDefaults() (Options, error) {
	var with Options
	if o != nil {
		with = *o
	}
	if with.Prefix == "" {
		with.Prefix = "idem:"
	}
	if with.WaitReplicas.N > 0 && with.WaitReplicas.Timeout == 0 {
		with.WaitReplicas.Timeout = time.Second
	}
	if with.Warn == nil {
		with.Warn = func(warning string) { slog.Default().Warn("idem: redis: " + warning) }
	}
	switch w := with.WaitReplicas; {
	case len(with.Prefix) > 64:
		return with, fmt.Errorf("redis: %w: the prefix %q has more than 64 bytes", idem.ErrOptions, with.Prefix)
	case strings.ContainsAny(with.Prefix, "{}") && !tagged(with.Prefix):
		return with, fmt.Errorf("redis: %w: the braces of the prefix %q are not one hash tag", idem.ErrOptions, with.Prefix)
	case w.N < 0 || w.Timeout < 0 || w.N > 0 && w.Timeout < time.Millisecond:
		return with, fmt.Errorf("redis: %w: WaitReplicas %d within %v: the number may not be negative, and the timeout not below 1 ms", idem.ErrOptions, w.N, w.Timeout)
	}
	return with, nil
}

// A Backend implements [idem.Backend], [idem.Lister], [idem.Watcher] and
// [idem.Batcher] on Redis. It is safe for concurrent use. It has nothing to close: it holds no connection
// and runs no goroutine while no call is in progress.
type Backend struct {
	client  goredis.UniversalClient
	opts    Options
	cluster bool // the client talks to many nodes

	canary   string // its name; "" where there can be none
	epoch    atomic.Pointer[string]
	lanes    lanes
	watchers watchers
	ahead    ahead
	replays  replays
}

// tagged reports whether a prefix has a hash tag, and no other braces.
func tagged(prefix string) bool {
	_, tag, ok := strings.Cut(prefix, "{")
	tag, rest, ok2 := strings.Cut(tag, "}")
	return ok && ok2 && tag != "" && !strings.ContainsAny(tag+rest, "{}")
}

// checkFor is how long New waits for the server.
const checkFor = 5 * time.Second

// New returns a Backend on the database of client, which is a Client, a
// ClusterClient or a FailoverClient of go-redis. The caller owns client and closes
// it after the last call. Any setting of MaxRetries will do. A ReadTimeout is
// needed: a call returns when its context is done, but what it has sent stays in
// flight until then.
//
// New runs [Backend.Check], for 5 s at most.
func New(client goredis.UniversalClient, opts *Options) (*Backend, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Backend{client: client, opts: o, canary: o.Prefix + "epoch"}
	b.watchers.b = b
	var readTimeout time.Duration
	switch c := client.(type) {
	case nil:
		return nil, fmt.Errorf("redis: %w: no client", idem.ErrOptions)
	case *goredis.Ring:
		return nil, fmt.Errorf("redis: %w: a Ring moves keys to another server when one is down, and two callers would own one key; use a ClusterClient", idem.ErrOptions)
	case *goredis.ClusterClient:
		b.cluster = true
		if !tagged(o.Prefix) {
			b.canary = "" // a script reaches one slot
		}
		switch {
		case o.WaitReplicas.N > 0:
			return nil, fmt.Errorf("redis: %w: WaitReplicas does not work with a ClusterClient, which cannot say to a node: wait", idem.ErrOptions)
		case o.MustExist && b.canary == "":
			return nil, fmt.Errorf("redis: %w: with a ClusterClient, MustExist needs a Prefix with a hash tag", idem.ErrOptions)
		}
	case *goredis.Client:
		readTimeout = c.Options().ReadTimeout
	}
	if w := o.WaitReplicas; w.N > 0 && readTimeout > 0 && w.Timeout > readTimeout/2 {
		return nil, fmt.Errorf("redis: %w: WaitReplicas.Timeout %v is more than half of the client's ReadTimeout %v", idem.ErrOptions, w.Timeout, readTimeout)
	}
	if o.SkipCheck {
		return b, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkFor)
	defer cancel()
	if err := b.Check(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

// Key returns the name that the record of a stored key has in Redis: of
// idem.ScopePrefix(scope...) + key. In a cluster, what changes in the same
// transaction has to be in the same slot; names that contain the braces of this
// one, with what is between them, are.
func (b *Backend) Key(stored string) string { return name(b.opts.Prefix, stored) }

// Get implements [idem.Backend]. It writes nothing.
func (b *Backend) Get(ctx context.Context, key string) (idem.Record, error) {
	const op = "get"
	if err := checkKey(key); err != nil {
		return idem.Record{}, fmt.Errorf("redis: %s: %w", op, err)
	}
	a, err := b.ask(ctx, op, &request{name: b.Key(key)})
	if err != nil || a.kind != present {
		return idem.Record{}, err
	}
	r, err := b.open(key, a)
	if err != nil || r.Expired() {
		return idem.Record{}, err
	}
	return r, nil
}

// Swap implements [idem.Backend].
func (b *Backend) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	const op = "swap"
	if err := checkKey(key); err != nil {
		return idem.Record{}, idem.NoEffect(fmt.Errorf("redis: %s: %w", op, err))
	}
	if old == new.Token {
		return b.Get(ctx, key) // it is stored, or another record is in the way
	}
	if old == "" && b.replays.likely() {
		switch now, err := b.Get(ctx, key); {
		case err != nil:
			// It had no effect, but a Store repeats only what may have had one.
			b.replays.score.Store(0)
			return idem.Record{}, err
		case now.Token != "":
			b.replays.note(true)
			return now, nil
		}
	}
	r, err := b.newSwap(key, old, new)
	if err != nil {
		return idem.Record{}, idem.NoEffect(fmt.Errorf("redis: %s: %w", op, err))
	}
	a, err := b.ask(ctx, op, r)
	if err != nil {
		return idem.Record{}, err
	}
	return b.swapped(key, r, a, new)
}

func (b *Backend) newSwap(key, old string, new idem.Record) (*request, error) {
	encoded, err := encode(key, new)
	if err != nil {
		return nil, err
	}
	return &request{name: b.Key(key), swap: true, old: old, token: new.Token, encoded: encoded, reclaim: reclaimAfter(new.TTL)}, nil
}

// swapped returns what is stored after a Swap of new.
func (b *Backend) swapped(key string, r *request, a answer, new idem.Record) (idem.Record, error) {
	if r.old == "" {
		b.replays.note(a.kind == present)
	}
	switch a.kind {
	case stored:
		if r.old != "" {
			b.watchers.tell(r.name)
		}
		new = new.Clone()
		new.Age = 0
		return new, nil
	case present:
		return b.open(key, a)
	}
	return idem.Record{}, nil
}

// replays guesses whether a Swap of an absent record will find one all the same. A
// Get costs the server a fraction of a script, but where it finds nothing it is a
// round trip for nothing. So it pays where nearly all requests are replays.
type replays struct{ score atomic.Int32 }

const (
	replaysLikely = 12
	replaysMost   = 16
)

func (p *replays) likely() bool { return p.score.Load() >= replaysLikely }

func (p *replays) note(replayed bool) {
	now := p.score.Load()
	next := max(now-4, 0)
	if replayed {
		next = min(now+1, replaysMost)
	}
	if next != now {
		p.score.CompareAndSwap(now, next) // one that is lost does not matter
	}
}

// reclaimLate is by how much Redis reclaims the memory of a record later than it
// expires: which of the two it is must not be decided by two clocks.
const reclaimLate = time.Second

// reclaimAfter returns the milliseconds after which Redis may reclaim a record. It
// takes any duration of Go.
func reclaimAfter(ttl time.Duration) int64 {
	return int64(max(0, ttl)/time.Millisecond) + 1 + reclaimLate.Milliseconds()
}

// open decodes an answer's record.
func (b *Backend) open(key string, a answer) (idem.Record, error) {
	r, stamp, err := decode(key, a.value)
	if err != nil {
		return idem.Record{}, idem.NoEffect(corrupt(key, "%v", err))
	}
	r.Age = b.age(r, stamp, a.now)
	return r, nil
}

// Sweep implements [idem.Backend]. Redis reclaims the memory of expired records by
// itself, so Sweep deletes none and only sees whether the server answers.
func (b *Backend) Sweep(ctx context.Context, _ int) (int, error) {
	return 0, b.touch(ctx, "sweep")
}

// touch sees whether the storage is there.
func (b *Backend) touch(ctx context.Context, op string) error {
	_, err := b.ask(ctx, op, &request{name: b.opts.Prefix + "touch"})
	return err
}

// ask sends a request. It is asked again if a person has initialised the storage
// meanwhile.
func (b *Backend) ask(ctx context.Context, op string, r *request) (answer, error) {
	if ctx.Err() != nil {
		return answer{}, idem.NoEffect(gaveUp(ctx, op, "not asked"))
	}
	for r.prepare(op); ; {
		if err := b.join(ctx); err != nil {
			return answer{}, idem.NoEffect(err)
		}
		if err := b.send(ctx, r); err != nil {
			return answer{}, err
		}
		if r.answer.kind != otherEpoch {
			return r.answer, nil
		}
		r.refused()
		if err := b.adopt(ctx, r.epoch, r.answer.value); err != nil {
			return answer{}, idem.NoEffect(err)
		}
	}
}
