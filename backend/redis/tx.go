package redis

import (
	"context"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
)

// WithTx returns a Backend that is bound to a transaction, for [idem.Store.With]:
// what the caller queues on p and what a Store writes take effect together, when
// the caller executes p, or not at all.
//
//	err := client.Watch(ctx, func(tx *redis.Tx) error {
//		p := tx.TxPipeline()
//		p.IncrBy(ctx, "balance", 100)
//		if err := store.With(backend.WithTx(tx, p)).Complete(ctx, claim, result); err != nil {
//			return err // nothing has happened
//		}
//		_, err := p.Exec(ctx)
//		return err
//	})
//
// The Backend watches its own keys and reads through tx, so there is no need to
// name them. A nil error of Complete means that the write is queued; Exec decides:
//
//   - nil: it has happened, all of it.
//   - redis.TxFailedErr: another caller was faster, and nothing has happened. Run
//     the function again; the Store then says what is stored now.
//   - any other error: it may have happened or not, as with every lost answer.
//     [idem.Store.Lookup] shows it: if the attempt is Completed, so are the
//     commands. Do not queue them a second time before that.
//
// A transaction has one connection, and what is asked over it returns when the
// client says so: at the context's deadline only with its ContextTimeoutEnabled.
//
// In a cluster, the commands' keys have to be in the slot of the record; see
// [Backend.Key].
func (b *Backend) WithTx(tx *goredis.Tx, p goredis.Pipeliner) idem.Backend {
	return &bound{b: b, tx: tx, p: p, seen: make(map[string]idem.Record)}
}

// A bound Backend is part of one transaction. It is not safe for concurrent use,
// as the transaction is not.
type bound struct {
	b  *Backend
	tx *goredis.Tx
	p  goredis.Pipeliner

	// seen has the records under the keys that are watched, as the transaction
	// leaves them.
	seen map[string]idem.Record
	now  int64 // the server's time, when it was last asked
	asof time.Time
}

// Get implements [idem.Backend].
func (t *bound) Get(ctx context.Context, key string) (idem.Record, error) {
	r, err := t.look(ctx, "get", key)
	return r.Clone(), err
}

// look returns the record under key. What was looked at does not change until the
// transaction ends, or the transaction fails.
func (t *bound) look(ctx context.Context, op, key string) (idem.Record, error) {
	if err := checkKey(key); err != nil {
		return idem.Record{}, fmt.Errorf("redis: %s: %w", op, err)
	}
	if ctx.Err() != nil {
		return idem.Record{}, gaveUp(ctx, op, "not asked")
	}
	if r, ok := t.seen[key]; ok {
		return r, nil
	}
	if err := t.b.join(ctx); err != nil {
		return idem.Record{}, err
	}
	records, err := t.watch(ctx, op, key)
	if err != nil {
		return idem.Record{}, err
	}
	r, err := t.open(op, key, records[0])
	if err != nil {
		return idem.Record{}, err
	}
	t.seen[key] = r
	return r, nil
}

// watch begins to watch keys, and returns what is stored under them.
func (t *bound) watch(ctx context.Context, op string, keys ...string) ([]*goredis.StringCmd, error) {
	names := make([]string, len(keys), len(keys)+1)
	for i, key := range keys {
		names[i] = t.b.Key(key)
	}
	watched := names
	if t.b.canary != "" {
		watched = append(watched, t.b.canary)
	}
	if err := t.tx.Watch(ctx, watched...).Err(); err != nil {
		return nil, failed(op, err, 1)
	}
	pipe := t.tx.Pipeline()
	records := make([]*goredis.StringCmd, len(keys))
	for i, name := range names {
		records[i] = pipe.Get(ctx, name)
	}
	var canary *goredis.StringCmd
	if t.b.canary != "" {
		canary = pipe.Get(ctx, t.b.canary)
	}
	now := pipe.Time(ctx)
	if _, err := pipe.Exec(ctx); now.Err() != nil {
		return nil, failed(op, err, 1)
	}
	if canary != nil {
		if epoch := *t.b.epoch.Load(); canary.Val() != epoch {
			if err := t.b.adopt(ctx, epoch, canary.Val()); err != nil {
				return nil, err
			}
		}
	}
	t.now, t.asof = now.Val().UnixMicro(), time.Now()
	return records, nil
}

// open returns the record under a key that is watched.
func (t *bound) open(op, key string, record *goredis.StringCmd) (idem.Record, error) {
	v, err := record.Result()
	switch {
	case err == goredis.Nil:
		return idem.Record{}, nil
	case err != nil:
		return idem.Record{}, failed(op, err, 1)
	}
	r, err := t.b.open(key, answer{now: t.now, value: v})
	if err != nil || r.Expired() {
		return idem.Record{}, err
	}
	return r, nil
}

// Swap implements [idem.Backend]. It queues a plain SET: a script would be carried
// out even where Redis is out of memory, up to its write, and could not undo the
// other commands.
func (t *bound) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	const op = "swap"
	now, err := t.look(ctx, op, key)
	if err != nil {
		return idem.Record{}, idem.NoEffect(err)
	}
	if now.Token != old || old == new.Token {
		return now.Clone(), nil
	}
	encoded, err := encode(key, new)
	if err != nil {
		return idem.Record{}, idem.NoEffect(fmt.Errorf("redis: %s: %w", op, err))
	}
	at := t.now + time.Since(t.asof).Microseconds()
	name := t.b.Key(key)
	t.p.Do(ctx, "set", name, stamp(encoded, at), "px", reclaimAfter(new.TTL))
	if old != "" {
		t.p.Eval(ctx, tellScript, []string{name}, new.Token)
	}
	new = new.Clone()
	new.Age = 0
	t.seen[key] = new
	return new.Clone(), nil
}

// Sweep implements [idem.Backend]. Redis reclaims the memory by itself.
func (t *bound) Sweep(ctx context.Context, _ int) (int, error) {
	if ctx.Err() != nil {
		return 0, gaveUp(ctx, "sweep", "not asked")
	}
	return 0, nil
}
