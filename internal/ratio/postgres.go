package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
	"github.com/idem-go/idem/internal/testpg"
)

// postgresConns is the size of every pool.
const postgresConns = 16

// postgresLines measures backend/postgres on a server of its own, with its data
// on a real disk and the settings that it has by default.
func postgresLines(b *bench) error {
	server, err := testpg.Start(b.dir, "max_wal_size=8GB")
	if err != nil {
		return err
	}
	defer server.Stop()
	fmt.Printf("postgres: %d records stored, %d rounds of %v in %s\n\n", b.stored, b.rounds, b.slice, server.Dir())
	own, err := newOwnPG(server.SocketURL(), b.stored)
	if err != nil {
		return err
	}
	defer own.pool.Close()
	raw, err := newRawPG(server.SocketURL(), b.stored)
	if err != nil {
		return err
	}
	defer raw.pool.Close()

	naiveTargets := map[int]float64{1: 1.05, 8: 1.6, 64: 3.5, 512: 5}
	floorTargets := map[int]float64{1: 0.85, 8: 1.15, 64: 3.5, 512: 5.5}
	replayTargets := map[int]float64{1: 0.75, 8: 0.8, 64: 2.2, 512: 2.5}
	txTargets := map[int]float64{1: 0.62, 8: 0.62, 64: 0.58}
	for _, c := range b.callers {
		lines := []line{
			{name: "pair / naive", c: c, target: naiveTargets[c], work: own.pair, base: raw.naivePair},
			{name: "pair / raw insert and update", c: c, target: floorTargets[c], work: own.pair, base: raw.pair},
			{name: "replay / raw select by key", c: c, target: replayTargets[c], work: own.replay, base: raw.get},
			{name: "one transaction / the same without idem", c: c, target: txTargets[c], work: own.transaction, base: raw.transaction},
		}
		for _, l := range lines {
			if err := b.measure(l); err != nil {
				return err
			}
		}
	}
	if err := b.measure(manyLine(own.store, own.pair)); err != nil {
		return err
	}
	if err := postgresWake(b, server.SocketURL()); err != nil {
		return err
	}
	return own.hot()
}

func connectPG(url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = postgresConns
	return pgxpool.NewWithConfig(context.Background(), config)
}

// An ownPG is a table of idem's with records in it, and a business table.
type ownPG struct {
	pool    *pgxpool.Pool
	backend *postgres.Backend
	store   *idem.Store
	stored  int
	next    atomic.Int64
}

const oldKey = "old-%d"

func newOwnPG(url string, stored int) (*ownPG, error) {
	ctx := context.Background()
	pool, err := connectPG(url)
	if err != nil {
		return nil, err
	}
	backend, err := postgres.New(pool, nil)
	if err != nil {
		return nil, err
	}
	if err := backend.Migrate(ctx); err != nil {
		return nil, err
	}
	store, err := idem.New(backend, nil)
	if err != nil {
		return nil, err
	}
	for _, sql := range []string{
		`CREATE TABLE payments (key text NOT NULL)`,
		fmt.Sprintf(`INSERT INTO idem_records (key, token, status, attempt, fence, fingerprint, code, meta, body, omitted, checkpoint, lease, ttl, written_at, sweep_at)
			SELECT 'old-' || i, 'token.' || i, 2, 1, i, '\x%s', 201, '', decode(repeat('00', %d), 'hex'), false, '', 0, 86400000000000, now(), now() + interval '24 hours'
			FROM generate_series(0, %d) AS i`, payload, resultLen, stored-1),
		`ANALYZE idem_records`,
	} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return nil, fmt.Errorf("%s: %w", sql, err)
		}
	}
	return &ownPG{pool: pool, backend: backend, store: store, stored: stored}, nil
}

// pair claims a fresh key and completes it.
func (o *ownPG) pair(int) error {
	ctx := context.Background()
	c, _, err := o.store.Begin(ctx, "order-"+idem.NewKey(), payload)
	if err != nil {
		return err
	}
	return o.store.Complete(ctx, c, result)
}

// replay asks for the result of a completed key, of 2,000.
func (o *ownPG) replay(caller int) error {
	key := fmt.Sprintf(oldKey, (int(o.next.Add(1))*7919+caller)%min(o.stored, 2000))
	_, done, err := o.store.Begin(context.Background(), key, payload)
	if err == nil && done == nil {
		err = errors.New("the key was claimed")
	}
	return err
}

// transaction makes a business change with everything in one transaction.
func (o *ownPG) transaction(int) error {
	ctx := context.Background()
	_, err := o.backend.Do(ctx, o.store, "order-"+idem.NewKey(), payload, func(ctx context.Context, tx pgx.Tx, c *idem.Claim) (idem.Result, error) {
		_, err := tx.Exec(ctx, `INSERT INTO payments (key) VALUES ($1)`, c.Key)
		return result, err
	})
	return err
}

// hot tells how many updates left the indexes alone.
func (o *ownPG) hot() error {
	o.pool.Reset()
	var updates, hot int64
	err := o.pool.QueryRow(context.Background(), `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'idem_records'`).Scan(&updates, &hot)
	if err == nil && updates > 0 {
		fmt.Printf("\n%.0f %% of %d updates were HOT\n", 100*float64(hot)/float64(updates), updates)
	}
	return err
}

// A rawPG is what a program without idem has.
type rawPG struct {
	pool   *pgxpool.Pool
	stored int
	next   atomic.Int64
}

func newRawPG(url string, stored int) (*rawPG, error) {
	ctx := context.Background()
	pool, err := connectPG(url)
	if err != nil {
		return nil, err
	}
	for _, sql := range []string{
		`CREATE TABLE raw (key text PRIMARY KEY, token text, status int, fingerprint bytea, body bytea, expires timestamptz)`,
		`CREATE TABLE raw_payments (key text NOT NULL)`,
		fmt.Sprintf(`INSERT INTO raw SELECT 'old-' || i, 'token.' || i, 2, '\x%s', decode(repeat('00', %d), 'hex'), now() + interval '24 hours' FROM generate_series(0, %d) AS i`,
			payload, resultLen, stored-1),
		`ANALYZE raw`,
	} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return nil, fmt.Errorf("%s: %w", sql, err)
		}
	}
	return &rawPG{pool: pool, stored: stored}, nil
}

const rawInsert = `INSERT INTO raw VALUES ($1, $2, 1, $3, NULL, now() + interval '24 hours') ON CONFLICT DO NOTHING RETURNING 1`

// pair is the two writes of the engine and nothing else.
func (r *rawPG) pair(int) error {
	ctx := context.Background()
	key, token := "order-"+idem.NewKey(), rand.Text()
	var one int
	if err := r.pool.QueryRow(ctx, rawInsert, key, token, payload[:]).Scan(&one); err != nil {
		return err
	}
	_, err := r.pool.Exec(ctx, `UPDATE raw SET status = 2, body = $3 WHERE key = $1 AND token = $2`, key, token, result.Body)
	return err
}

// naivePair is what a careful user writes by hand.
func (r *rawPG) naivePair(int) error {
	ctx := context.Background()
	key, token := "order-"+idem.NewKey(), rand.Text()
	err := pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		var status int
		if err := tx.QueryRow(ctx, `SELECT status FROM raw WHERE key = $1`, key).Scan(&status); !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("the key is in use: %w", err)
		}
		var one int
		return tx.QueryRow(ctx, rawInsert, key, token, payload[:]).Scan(&one)
	})
	if err != nil {
		return err
	}
	_, err = r.pool.Exec(ctx, `UPDATE raw SET status = 2, body = $3 WHERE key = $1 AND token = $2`, key, token, result.Body)
	return err
}

func (r *rawPG) get(caller int) error {
	var token string
	var status int
	var fingerprint, body []byte
	key := fmt.Sprintf(oldKey, (int(r.next.Add(1))*7919+caller)%min(r.stored, 2000))
	return r.pool.QueryRow(context.Background(), `SELECT token, status, fingerprint, body FROM raw WHERE key = $1`, key).Scan(&token, &status, &fingerprint, &body)
}

func (r *rawPG) transaction(int) error {
	ctx := context.Background()
	return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO raw_payments (key) VALUES ($1)`, "order-"+idem.NewKey())
		return err
	})
}

// postgresWake measures how long after the return of Complete a duplicate that
// waits has its answer: in the same process, in another one with notifications,
// and in another one that asks.
func postgresWake(b *bench, url string) error {
	for _, w := range []struct {
		name             string
		target           float64
		elsewhere, hears bool
	}{
		{"waiter in the process woken, milliseconds", -1, false, false},
		{"waiter elsewhere, notified, milliseconds", -10, true, true},
		{"waiter elsewhere, asking, milliseconds", 0, true, false},
	} {
		if !b.only.MatchString(w.name) {
			continue
		}
		var stores [2]*idem.Store
		for i := range stores {
			pool, err := connectPG(url)
			if err != nil {
				return err
			}
			defer pool.Close()
			opts := &postgres.Options{}
			if w.hears {
				opts.Listen = url
			}
			backend, err := postgres.New(pool, opts)
			if err != nil {
				return err
			}
			if stores[i], err = idem.New(backend, nil); err != nil {
				return err
			}
		}
		waits, works := stores[0], stores[0]
		if w.elsewhere {
			works = stores[1]
		}
		times, err := wakeTimes(waits, works, 5*b.rounds)
		if err != nil {
			return err
		}
		b.print(w.name, 1, w.target, times, "")
	}
	return nil
}

func wakeTimes(waits, works *idem.Store, n int) (times []float64, err error) {
	ctx := context.Background()
	for range n {
		key := "order-" + idem.NewKey()
		c, _, err := works.Begin(ctx, key, payload)
		if err != nil {
			return nil, err
		}
		var woken time.Time
		var waitErr error
		var all sync.WaitGroup
		all.Go(func() {
			_, waitErr = waits.Do(ctx, key, payload, func(context.Context, *idem.Claim) (idem.Result, error) {
				return idem.Result{}, errors.New("the waiter ran")
			})
			woken = time.Now()
		})
		time.Sleep(100 * time.Millisecond) // the operation runs, the duplicate waits
		if err := works.Complete(ctx, c, result); err != nil {
			return nil, err
		}
		done := time.Now()
		all.Wait()
		if waitErr != nil {
			return nil, waitErr
		}
		times = append(times, max(0, woken.Sub(done).Seconds()*1000))
	}
	return times, nil
}
