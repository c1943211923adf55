package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/bolt"
)

// What the contenders store.
const (
	resultLen = 256
	// So many bytes idem stores for a claim and for a completed record; the floor
	// stores as many.
	claimLen = 140
	doneLen  = 400
)

var (
	payload = idem.FingerprintOf([]byte("payload"))
	result  = idem.Result{Code: 201, Body: make([]byte, resultLen)}
)

// boltLines measures backend/bolt.
func boltLines(b *bench) error {
	dir, err := os.MkdirTemp(b.dir, "idem-ratio-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	fmt.Printf("bolt: %d records stored, %d rounds of %v in %s\n\n", b.stored, b.rounds, b.slice, dir)
	own, err := newOwn(filepath.Join(dir, "idem.db"), b.stored)
	if err != nil {
		return err
	}
	defer func() { _ = own.close() }()
	naive, err := newRaw(filepath.Join(dir, "naive.db"), &bbolt.Options{}, own.keys, doneLen)
	if err != nil {
		return err
	}
	defer func() { _ = naive.db.Close() }()
	engine := &bbolt.Options{FreelistType: bbolt.FreelistMapType, NoFreelistSync: true, NoStatistics: true}
	floor, err := newRaw(filepath.Join(dir, "floor.db"), engine, sequential(b.stored), doneLen)
	if err != nil {
		return err
	}
	defer func() { _ = floor.db.Close() }()
	raw, err := newRaw(filepath.Join(dir, "raw.db"), engine, own.keys, doneLen)
	if err != nil {
		return err
	}
	defer func() { _ = raw.db.Close() }()

	naiveTargets := map[int]float64{1: 1.5, 8: 7, 64: 25, 512: 80}
	floorTargets := map[int]float64{1: 0.85, 8: 0.65, 64: 0.45, 512: 0.5}
	for _, c := range b.callers {
		lines := []line{
			{name: "pair / naive", c: c, target: naiveTargets[c], work: own.pair, base: naive.naivePair},
			{name: "pair / engine floor", c: c, target: floorTargets[c], work: own.pair, base: floor.floorPairs(c), baseRuns: 1, baseDoes: c},
		}
		if c == 1 {
			// No layout is faster than that: what the disk lets a lone caller gain.
			lines = append(lines, line{name: "engine floor / naive", c: c, work: floor.floorPairs(c), base: naive.naivePair})
		}
		for _, l := range lines {
			if err := b.measure(l); err != nil {
				return err
			}
		}
		if err := touch(own, raw); err != nil {
			return err
		}
		if err := b.measure(line{name: "replay / raw view, get and copy", c: c, target: 0.85, work: own.replay, base: raw.get}); err != nil {
			return err
		}
	}
	if err := b.measure(manyLine(own.store, own.pair)); err != nil {
		return err
	}
	if err := boltWake(b, own); err != nil {
		return err
	}
	if err := boltAfterSweep(b, dir); err != nil {
		return err
	}
	if b.growth {
		return boltGrowth(b, dir)
	}
	return nil
}

// touch reads every record. The first access to a page costs a fault, and so it
// does after pairs have made the file larger, as bbolt maps it anew.
func touch(o *own, r *raw) error {
	for _, key := range o.keys {
		if _, err := o.backend.Get(context.Background(), key); err != nil {
			return err
		}
		if err := r.get(0); err != nil {
			return err
		}
	}
	return nil
}

// An own is a store of idem's with records in it.
type own struct {
	path    string
	backend *bolt.Backend
	store   *idem.Store
	keys    []string // completed
	next    atomic.Int64
}

// newOwn stores n completed records with keys in no order.
func newOwn(path string, n int) (*own, error) {
	backend, err := bolt.Open(path, nil)
	if err != nil {
		return nil, err
	}
	store, err := idem.New(backend, nil)
	if err != nil {
		return nil, err
	}
	o := &own{path: path, backend: backend, store: store, keys: make([]string, n)}
	for i := range o.keys {
		o.keys[i] = "order-" + rand.Text()
	}
	return o, o.fill(o.keys, 24*time.Hour)
}

// fill stores completed records as they are after Complete.
func (o *own) fill(keys []string, ttl time.Duration) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range 1024 {
		wg.Go(func() {
			for failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(keys) {
					return
				}
				r := idem.Record{
					Token: rand.Text() + "." + rand.Text(), Status: idem.Completed, Attempt: 1, Fence: int64(i),
					Fingerprint: payload, Result: result, TTL: ttl,
				}
				if _, err := o.backend.Swap(context.Background(), keys[i], "", r); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (o *own) close() error { return o.backend.Close() }

// pair claims a fresh key and completes it.
func (o *own) pair(int) error {
	ctx := context.Background()
	c, _, err := o.store.Begin(ctx, "order-"+rand.Text(), payload)
	if err != nil {
		return err
	}
	return o.store.Complete(ctx, c, result)
}

// replay asks for the result of a completed key.
func (o *own) replay(caller int) error {
	key := o.keys[(int(o.next.Add(1))*7919+caller)%len(o.keys)]
	_, done, err := o.store.Begin(context.Background(), key, payload)
	if err == nil && done == nil {
		err = errors.New("the key was claimed")
	}
	return err
}

// A raw is a bbolt file with one bucket, as a program has it without idem.
type raw struct {
	db   *bbolt.DB
	keys []string
	next atomic.Int64
}

var bucket = []byte("keys")

// newRaw stores a value under each key, in the order of the keys given: the tree
// has the shape that it gets in use.
func newRaw(path string, opts *bbolt.Options, keys []string, size int) (*raw, error) {
	db, err := bbolt.Open(path, 0o600, opts)
	if err != nil {
		return nil, err
	}
	db.NoSync = true
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(bucket)
		return err
	})
	value := make([]byte, size)
	for chunk := range slices.Chunk(keys, 100) {
		if err != nil {
			return nil, err
		}
		err = db.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket(bucket)
			for _, key := range chunk {
				if err := b.Put([]byte(key), value); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		return nil, err
	}
	db.NoSync = false
	return &raw{db: db, keys: keys}, db.Sync()
}

func sequential(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = sequentialKey(int64(i))
	}
	return keys
}

func sequentialKey(i int64) string { return fmt.Sprintf("order-%030d", i) }

// naivePair is what a careful user writes by hand: one transaction that looks and
// claims, one that completes, and JSON.
func (r *raw) naivePair(int) error {
	type record struct {
		Status, Owner string
		Fingerprint   []byte
		Expires       time.Time
		Code          int
		Body          []byte
	}
	key := []byte("order-" + rand.Text())
	rec := record{Status: "in progress", Owner: rand.Text(), Fingerprint: payload[:], Expires: time.Now().Add(time.Minute)}
	put := func(b *bbolt.Bucket) error {
		v, err := json.Marshal(rec)
		if err != nil {
			return err
		}
		return b.Put(key, v)
	}
	err := r.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucket)
		if b.Get(key) != nil {
			return errors.New("the key is in use")
		}
		return put(b)
	})
	if err != nil {
		return err
	}
	return r.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucket)
		var stored record
		if err := json.Unmarshal(b.Get(key), &stored); err != nil {
			return err
		}
		if stored.Owner != rec.Owner {
			return errors.New("the claim is lost")
		}
		rec.Status, rec.Code, rec.Body, rec.Expires = "done", result.Code, result.Body, time.Now().Add(24*time.Hour)
		return put(b)
	})
}

// floorPairs puts c claims in one transaction and their completions in another,
// under keys in order.
func (r *raw) floorPairs(c int) contender {
	return func(int) error {
		first := int64(len(r.keys)) + r.next.Add(int64(c)) - int64(c)
		for _, size := range []int{claimLen, doneLen} {
			err := r.db.Update(func(tx *bbolt.Tx) error {
				b := tx.Bucket(bucket)
				for i := range int64(c) {
					if err := b.Put([]byte(sequentialKey(first+i)), make([]byte, size)); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// get reads one value.
func (r *raw) get(caller int) error {
	key := []byte(r.keys[(int(r.next.Add(1))*7919+caller)%len(r.keys)])
	var value []byte
	return r.db.View(func(tx *bbolt.Tx) error {
		value = append(value, tx.Bucket(bucket).Get(key)...)
		return nil
	})
}

// boltWake measures how long after the return of Complete a duplicate that waits
// in the same process has its answer.
func boltWake(b *bench, o *own) error {
	const name = "waiter in the process woken, milliseconds"
	if !b.only.MatchString(name) {
		return nil
	}
	ctx := context.Background()
	var times []float64
	for range 20 * b.rounds {
		key := "order-" + rand.Text()
		c, _, err := o.store.Begin(ctx, key, payload)
		if err != nil {
			return err
		}
		asked := make(chan struct{})
		woken := make(chan time.Time)
		go func() {
			close(asked)
			_, _ = o.store.Do(ctx, key, payload, func(context.Context, *idem.Claim) (idem.Result, error) {
				return idem.Result{}, errors.New("the operation ran twice")
			})
			woken <- time.Now()
		}()
		<-asked
		time.Sleep(2 * time.Millisecond) // most of them wait by now; the others make the figure better by nothing
		if err := o.store.Complete(ctx, c, result); err != nil {
			return err
		}
		done := time.Now()
		times = append(times, max(0, (<-woken).Sub(done).Seconds()*1000))
	}
	b.print(name, 1, -1, times, "")
	return nil
}

// boltAfterSweep measures pairs after half of the records have been swept,
// against a file in which nothing was.
func boltAfterSweep(b *bench, dir string) error {
	const name = "pair after a sweep of half / before"
	if !b.only.MatchString(name) {
		return nil
	}
	fresh, err := newOwn(filepath.Join(dir, "fresh.db"), b.stored)
	if err != nil {
		return err
	}
	defer func() { _ = fresh.close() }()
	swept, err := newOwn(filepath.Join(dir, "swept.db"), b.stored/2)
	if err != nil {
		return err
	}
	defer func() { _ = swept.close() }()
	expiring := make([]string, b.stored/2)
	for i := range expiring {
		expiring[i] = "expires-" + rand.Text()
	}
	// They live long enough not to be deleted by the writes that follow them.
	ttl := 10*time.Second + time.Duration(b.stored/2)*20*time.Microsecond
	start := time.Now()
	if err := swept.fill(expiring, ttl); err != nil {
		return err
	}
	time.Sleep(time.Until(start.Add(2 * ttl)))
	start = time.Now()
	n, err := swept.backend.Sweep(context.Background(), b.stored)
	if err != nil {
		return err
	}
	fmt.Printf("swept %d records in %v\n", n, time.Since(start).Round(time.Millisecond))
	for _, c := range b.callers {
		if err := b.measure(line{name: name, c: c, work: swept.pair, base: fresh.pair}); err != nil {
			return err
		}
	}
	return nil
}

// boltGrowth measures what a pair costs with 5 M records against 100 k, and how
// long opening takes.
func boltGrowth(b *bench, dir string) error {
	small, err := newOwn(filepath.Join(dir, "small.db"), 100_000)
	if err != nil {
		return err
	}
	defer func() { _ = small.close() }()
	large, err := newOwn(filepath.Join(dir, "large.db"), 5_000_000)
	if err != nil {
		return err
	}
	defer func() { _ = large.close() }()
	for _, c := range b.callers {
		err := b.measure(line{name: "cost of a pair at 5 M records / at 100 k", c: c, target: -1.7, work: small.pair, base: large.pair})
		if err != nil {
			return err
		}
	}
	for _, o := range []*own{small, large} {
		if err := o.close(); err != nil {
			return err
		}
		start := time.Now()
		o.backend, err = bolt.Open(o.path, nil)
		if err != nil {
			return err
		}
		fmt.Printf("opened %d records in %v\n", len(o.keys), time.Since(start).Round(time.Millisecond))
	}
	return nil
}
