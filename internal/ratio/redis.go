package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	idemredis "github.com/idem-go/idem/backend/redis"
	"github.com/idem-go/idem/internal/testenv"
)

// redisLines measures backend/redis, on servers of its own.
func redisLines(b *bench) error {
	fmt.Printf("redis: %d rounds of %v in %s\n\n", b.rounds, b.slice, b.dir)
	type targets map[int]float64
	for _, server := range []struct {
		fsync                string
		naive, floor, replay targets
	}{
		{"everysec", targets{1: 1.4, 8: 2, 64: 3.5, 512: 4}, targets{1: 0.7, 8: 0.85, 64: 1.4, 512: 1.6}, targets{1: 0.8, 8: 0.85, 64: 2.2, 512: 2.8}},
		{"always", nil, targets{1: 0.85, 8: 0.9, 64: 1.5, 512: 2.2}, nil},
	} {
		r, err := newRedisRig(b.dir, server.fsync)
		if err != nil {
			return err
		}
		for _, c := range b.callers {
			lines := []line{
				{name: "pair / floor, AOF " + server.fsync, c: c, target: server.floor[c], work: r.pair, base: r.floorPair},
			}
			if server.naive != nil {
				lines = append(lines,
					line{name: "pair / naive, AOF " + server.fsync, c: c, target: server.naive[c], work: r.pair, base: r.naivePair},
					line{name: "replay / raw GET", c: c, target: server.replay[c], work: r.replay, base: r.rawGet},
				)
			}
			for _, l := range lines {
				if err := b.measure(l); err != nil {
					r.stop()
					return err
				}
			}
		}
		if err := b.measure(manyLine(r.store, r.pair)); err != nil {
			r.stop()
			return err
		}
		if server.naive != nil {
			if err := r.rest(b); err != nil {
				r.stop()
				return err
			}
		}
		r.stop()
	}
	return nil
}

// A redisRig is a server with clients for the contenders.
type redisRig struct {
	process *exec.Cmd
	ended   <-chan struct{}
	dir     string
	own     *goredis.Client // idem's
	raw     *goredis.Client
	store   *idem.Store
	backend *idemredis.Backend
	keys    []string
	next    atomic.Int64
}

func newRedisRig(dir, fsync string) (*redisRig, error) {
	dir, err := os.MkdirTemp(dir, "idem-ratio-")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	r := &redisRig{dir: dir}
	// A rewrite of the AOF takes one of the cores for seconds, now from one
	// contender and now from the other.
	r.process = exec.Command("redis-server", "--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", dir,
		"--save", "", "--appendonly", "yes", "--appendfsync", fsync, "--loglevel", "warning", "--auto-aof-rewrite-percentage", "0")
	if r.ended, err = testenv.StartChild(r.process, syscall.SIGKILL); err != nil {
		return nil, err
	}
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	r.own, r.raw = goredis.NewClient(&goredis.Options{Addr: addr}), goredis.NewClient(&goredis.Options{Addr: addr})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for r.raw.Ping(ctx).Err() != nil && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	if err := r.fill(ctx); err != nil {
		r.stop()
		return nil, err
	}
	return r, nil
}

func (r *redisRig) stop() {
	_ = r.process.Process.Kill()
	<-r.ended
	_ = r.own.Close()
	_ = r.raw.Close()
	_ = os.RemoveAll(r.dir)
}

// fill stores the records that are replayed, and values of the same size.
func (r *redisRig) fill(ctx context.Context) (err error) {
	if r.backend, err = idemredis.New(r.own, nil); err != nil {
		return err
	}
	if r.store, err = idem.New(r.backend, nil); err != nil {
		return err
	}
	for range 10_000 {
		r.keys = append(r.keys, idem.NewKey())
	}
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for caller := range 64 {
		wg.Go(func() {
			for i := caller; i < len(r.keys); i += 64 {
				c, _, err := r.store.Begin(ctx, r.keys[i], payload)
				if err == nil {
					err = r.store.Complete(ctx, c, result)
				}
				if err == nil {
					err = r.raw.Set(ctx, "raw:"+r.keys[i], make([]byte, doneLen), 24*time.Hour).Err()
				}
				if err != nil {
					failed.Store(&err)
					return
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

func (r *redisRig) pair(int) error {
	ctx := context.Background()
	c, _, err := r.store.Begin(ctx, "order-"+idem.NewKey(), payload)
	if err != nil {
		return err
	}
	return r.store.Complete(ctx, c, result)
}

func (r *redisRig) key(caller int) string {
	return r.keys[(int(r.next.Add(1))*7919+caller)%len(r.keys)]
}

func (r *redisRig) replay(caller int) error {
	_, done, err := r.store.Begin(context.Background(), r.key(caller), payload)
	if err == nil && done == nil {
		err = errors.New("the key was claimed")
	}
	return err
}

func (r *redisRig) rawGet(caller int) error {
	_, err := r.raw.Get(context.Background(), "raw:"+r.key(caller)).Bytes()
	return err
}

// floorPair is the least that a claim and a completion take.
func (r *redisRig) floorPair(int) error {
	ctx, key := context.Background(), "floor:"+idem.NewKey()
	if err := r.raw.SetNX(ctx, key, make([]byte, claimLen), 24*time.Hour).Err(); err != nil {
		return err
	}
	return r.raw.Set(ctx, key, make([]byte, doneLen), 24*time.Hour).Err()
}

// naivePair looks before each step.
func (r *redisRig) naivePair(int) error {
	ctx, key := context.Background(), "naive:"+idem.NewKey()
	if err := r.raw.Get(ctx, key).Err(); err != goredis.Nil {
		return err
	}
	if err := r.raw.SetNX(ctx, key, make([]byte, claimLen), 24*time.Hour).Err(); err != nil {
		return err
	}
	if err := r.raw.Get(ctx, key).Err(); err != nil {
		return err
	}
	return r.raw.Set(ctx, key, make([]byte, doneLen), 24*time.Hour).Err()
}

// rest measures what is no rate: memory, and the time until a waiter knows.
func (r *redisRig) rest(b *bench) error {
	ctx := context.Background()
	key := "0123456789abcdef0123456789abcdef01234" // 37 bytes
	c, _, err := r.store.Begin(ctx, key, payload)
	if err != nil {
		return err
	}
	if err := r.store.Complete(ctx, c, result); err != nil {
		return err
	}
	bytes, err := r.raw.MemoryUsage(ctx, r.backend.Key(key)).Result()
	if err != nil {
		return err
	}
	b.print("memory of a completed record, bytes", 1, -520, []float64{float64(bytes)}, "")

	same, err := r.wakes(r.store)
	if err != nil {
		return err
	}
	b.print("waiter in the same process, ms", 1, -1, same, "")
	client := goredis.NewClient(&goredis.Options{Addr: r.own.Options().Addr})
	defer func() { _ = client.Close() }()
	backend, err := idemredis.New(client, nil)
	if err != nil {
		return err
	}
	other, err := idem.New(backend, nil)
	if err != nil {
		return err
	}
	apart, err := r.wakes(other)
	if err != nil {
		return err
	}
	b.print("waiter with a client of its own, ms", 1, -10, apart, "")
	return nil
}

// wakes measures the milliseconds from the return of Complete to the answer of
// one who waits through a Store.
func (r *redisRig) wakes(through *idem.Store) ([]float64, error) {
	ctx := context.Background()
	var waits []float64
	for range 50 {
		key := idem.NewKey()
		c, _, err := r.store.Begin(ctx, key, payload)
		if err != nil {
			return nil, err
		}
		answered := make(chan time.Time)
		go func() {
			_ = through.Wait(ctx, key)
			answered <- time.Now()
		}()
		time.Sleep(20 * time.Millisecond) // it waits by then, almost surely
		if err := r.store.Complete(ctx, c, result); err != nil {
			return nil, err
		}
		done := time.Now()
		waits = append(waits, max(0, (<-answered).Sub(done).Seconds()*1000))
	}
	return waits, nil
}
