package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/faultproxy"
	"github.com/idem-go/idem/internal/testredis"
)

// book adds 1 to the balance and completes the claim, in one transaction.
func book(ctx context.Context, client *goredis.Client, b *Backend, s *idem.Store, c *idem.Claim, balance string, before func()) error {
	return client.Watch(ctx, func(tx *goredis.Tx) error {
		p := tx.TxPipeline()
		p.Incr(ctx, balance)
		if err := s.With(b.WithTx(tx, p)).Complete(ctx, c, idem.Result{Body: []byte("booked")}); err != nil {
			return err
		}
		if before != nil {
			before()
		}
		_, err := p.Exec(ctx)
		return err
	})
}

// The business command and the completion happen together.
func TestTxBusinessAndCompletion(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	o := own()
	b := newBackend(t, client, o)
	s := newStore(t, b, nil)
	ctx, balance := t.Context(), o.Prefix+"balance"
	c, _, err := s.Begin(ctx, "k", fp)
	if err != nil {
		t.Fatal(err)
	}
	err = book(ctx, client, b, s, c, balance, func() {
		if n := client.Exists(ctx, balance).Val(); n != 0 {
			t.Error("the command was carried out before Exec")
		}
		if r, _ := s.Lookup(ctx, "k"); r.Status != idem.InProgress {
			t.Errorf("before Exec the record is %v", r)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := client.Get(ctx, balance).Int(); err != nil || n != 1 {
		t.Errorf("the balance is %d, %v", n, err)
	}
	if _, done, err := s.Begin(ctx, "k", fp); err != nil || done == nil || string(done.Result.Body) != "booked" {
		t.Errorf("the replay: %v, %v", done, err)
	}
	// The claim is completed: a second run of the function changes nothing.
	other := &idem.Result{Body: []byte("other")}
	err = client.Watch(ctx, func(tx *goredis.Tx) error {
		return s.With(b.WithTx(tx, tx.TxPipeline())).Complete(ctx, c, *other)
	})
	wantErr(t, "Complete with another result", err, idem.ErrCompleted)
}

// A race that is lost leaves nothing behind, on whichever side of Complete it is.
func TestTxLostRace(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	o := own()
	b := newBackend(t, client, o)
	s := newStore(t, b, &idem.Options{Lease: time.Minute})
	ctx, balance := t.Context(), o.Prefix+"balance"
	for i, interfere := range []func(c *idem.Claim) error{
		func(c *idem.Claim) error { return s.Extend(ctx, c) },
		func(c *idem.Claim) error { return s.Release(ctx, c) },
		func(c *idem.Claim) error { return client.Del(ctx, b.Key(c.Key)).Err() },
		func(*idem.Claim) error { return client.Del(ctx, b.canary).Err() },
	} {
		key := fmt.Sprintf("k%d", i)
		c, _, err := s.Begin(ctx, key, fp)
		if err != nil {
			t.Fatal(err)
		}
		err = book(ctx, client, b, s, c, balance, func() {
			if err := interfere(c); err != nil {
				t.Fatal(err)
			}
		})
		wantErr(t, fmt.Sprintf("Exec after a race (%d)", i), err, goredis.TxFailedErr)
		if n := client.Exists(ctx, balance).Val(); n != 0 {
			t.Errorf("race %d: the command was carried out", i)
		}
	}
	if err := b.Init(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if r, err := s.Lookup(ctx, fmt.Sprintf("k%d", i)); err != nil || r.Status == idem.Completed {
			t.Errorf("after the race %d the record is %v, %v", i, r, err)
		}
	}
}

// Many transactions on few keys: each operation has its effect once.
func TestTxConcurrent(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	o := own()
	b := newBackend(t, client, o)
	s := newStore(t, b, nil)
	ctx, balance := within(t, time.Minute), o.Prefix+"balance"
	const keys, callers = 20, 8
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for i := range keys {
				var err error = goredis.TxFailedErr
				for errors.Is(err, goredis.TxFailedErr) {
					err = client.Watch(ctx, func(tx *goredis.Tx) error {
						p := tx.TxPipeline()
						in := s.With(b.WithTx(tx, p))
						c, done, err := in.Begin(ctx, fmt.Sprintf("k%d", i), fp)
						if err != nil || done != nil {
							return err
						}
						p.Incr(ctx, balance)
						if err := in.Complete(ctx, c, idem.Result{}); err != nil {
							return err
						}
						_, err = p.Exec(ctx)
						return err
					})
				}
				if err != nil {
					t.Errorf("the transaction: %v", err)
				}
			}
		})
	}
	all.Wait()
	if n, err := client.Get(ctx, balance).Int(); err != nil || n != keys {
		t.Errorf("the balance is %d, %v; want %d", n, err, keys)
	}
}

// The answer of Exec is lost: the client does not send it a second time, and Lookup
// tells what has become of it.
func TestTxReplyOfExecLost(t *testing.T) {
	for way, opts := range ways {
		for what, fate := range fates {
			t.Run(what+", "+way, func(t *testing.T) {
				proxy, client := proxied(t, &opts)
				o := own()
				b := newBackend(t, client, o)
				s := newStore(t, b, nil)
				ctx, balance := within(t, time.Minute), o.Prefix+"balance"
				for i := range 20 {
					key := fmt.Sprintf("k%d", i)
					c, _, err := s.Begin(ctx, key, fp)
					if err != nil {
						t.Fatal(err)
					}
					var execs atomic.Int32
					proxy.Judge(func(request []byte) faultproxy.Fate {
						if bytes.Contains(bytes.ToLower(request), []byte("multi")) && execs.Add(1) == 1 {
							return fate
						}
						return faultproxy.Pass
					})
					before, _ := client.Get(ctx, balance).Int()
					err = book(ctx, client, b, s, c, balance, nil)
					if errors.Is(err, goredis.TxFailedErr) {
						t.Fatalf("Exec whose answer is lost: %v, which means that nothing happened", err)
					}
					if execs.Load() != 1 {
						t.Fatalf("the transaction was sent %d times", execs.Load())
					}
					proxy.Judge(nil)
					testredis.Until(t, "the client is connected again", func() bool { return client.Ping(ctx).Err() == nil })
					r, lookErr := s.Lookup(ctx, key)
					after, getErr := client.Get(ctx, balance).Int()
					if lookErr != nil || getErr != nil && !errors.Is(getErr, goredis.Nil) {
						t.Fatal(lookErr, getErr)
					}
					if booked := after - before; booked == 1 != (r.Status == idem.Completed) || err == nil && booked != 1 {
						t.Fatalf("Exec: %v; booked %d times, and the record is %v", err, booked, r)
					}
				}
			})
		}
	}
}

// Who waits for a record hears of a completion in a transaction as well.
func TestTxTellsWaiters(t *testing.T) {
	addr := testredis.Shared(t)
	client := testredis.Client(t, addr, nil)
	o := own()
	b := newBackend(t, client, o)
	other := newBackend(t, testredis.Client(t, addr, nil), o)
	s := newStore(t, b, nil)
	ctx := within(t, 30*time.Second)
	c, _, err := s.Begin(ctx, "k", fp)
	if err != nil {
		t.Fatal(err)
	}
	r, _ := s.Lookup(ctx, "k")
	watched := make(chan error, 1)
	go func() { watched <- other.Watch(ctx, "k", r.Token) }()
	waitSubscribed(t, other, "k")
	if err := book(ctx, client, b, s, c, o.Prefix+"balance", nil); err != nil {
		t.Fatal(err)
	}
	if err := <-watched; err != nil {
		t.Errorf("Watch: %v", err)
	}
}

// In a cluster a transaction has the keys of one slot.
func TestTxInCluster(t *testing.T) {
	client := testredis.StartCluster(t, 3).Client(t, nil)
	b := newBackend(t, client, nil)
	s := newStore(t, b, nil)
	ctx := within(t, 30*time.Second)
	for i := range 20 {
		key := fmt.Sprintf("k%d", i)
		c, _, err := s.Begin(ctx, key, fp)
		if err != nil {
			t.Fatal(err)
		}
		record := b.Key(key)
		tag := record[strings.IndexByte(record, '{') : strings.IndexByte(record, '}')+1]
		balance := "balance" + tag
		err = client.Watch(ctx, func(tx *goredis.Tx) error {
			p := tx.TxPipeline()
			p.Set(ctx, balance, i, time.Hour)
			if err := s.With(b.WithTx(tx, p)).Complete(ctx, c, idem.Result{}); err != nil {
				return err
			}
			_, err := p.Exec(ctx)
			return err
		}, balance)
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Lookup(ctx, key)
		if n, getErr := client.Get(ctx, balance).Int(); getErr != nil || n != i || err != nil || r.Status != idem.Completed {
			t.Errorf("%q: the balance is %d, %v; the record is %v, %v", key, n, getErr, r, err)
		}
	}
}
