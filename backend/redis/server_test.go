package redis

import (
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

// warnings returns options that collect the warnings.
func warnings() (*Options, func() string) {
	var mu sync.Mutex
	var all []string
	o := own()
	o.Warn = func(w string) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, w)
	}
	return o, func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(all, "\n")
	}
}

// Row 16: a server with AOF always is killed in the middle of a load. What it has
// acknowledged is there.
func TestRow16KillUnderLoad(t *testing.T) {
	server := testredis.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := newStore(t, newBackend(t, server.Client(t, nil), nil), nil)
	ctx := within(t, 2*time.Minute)
	for round := range 3 {
		const least = 300
		var claims, done sync.Map
		var acked atomic.Int32
		enough := make(chan struct{})
		stop := make(chan struct{})
		var writers sync.WaitGroup
		for w := range 8 {
			writers.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					key := fmt.Sprintf("%d-%d-%d", round, w, i)
					c, _, err := s.Begin(ctx, key, fp)
					if err != nil {
						return // the server is gone
					}
					claims.Store(key, c)
					if acked.Add(1) == least {
						close(enough)
					}
					if i%2 == 0 && s.Complete(ctx, c, idem.Result{Body: []byte(key)}) == nil {
						done.Store(key, true)
					}
				}
			})
		}
		select {
		case <-enough:
		case <-ctx.Done():
			t.Fatal("the load does not get going")
		}
		server.Kill()
		close(stop)
		writers.Wait()
		server.Restart()
		testredis.Until(t, "the client is connected again", func() bool {
			_, err := s.Lookup(ctx, "none")
			return err == nil
		})
		n := 0
		claims.Range(func(key, claim any) bool {
			n++
			var r idem.Record
			testredis.Until(t, "Lookup has an answer", func() (ok bool) { // some connections are slower to come back
				var err error
				r, err = s.Lookup(ctx, key.(string))
				return err == nil
			})
			_, completed := done.Load(key)
			if r.Status == 0 || completed && (r.Status != idem.Completed || string(r.Result.Body) != key) {
				t.Errorf("round %d: of %q, which was acknowledged (completed: %v), there is %v", round, key, completed, r)
			}
			if c, _, err := s.Begin(ctx, key.(string), fp); c != nil {
				t.Errorf("round %d: the claim of %q was granted a second time: %v", round, key, err)
			}
			return true
		})
		if n < least {
			t.Fatalf("round %d has only %d acknowledged claims, want %d", round, n, least)
		}
		t.Logf("round %d: %d claims were acknowledged before the kill", round, n)
	}
}

// Row 17: after a restart without persistence, and after a flush, everything is
// refused until a person has looked; by a process that runs, and by one that starts.
func TestRow17StoreLost(t *testing.T) {
	for what, lose := range map[string]func(s *testredis.Server, c *goredis.Client){
		"restart": func(s *testredis.Server, _ *goredis.Client) { s.Kill(); s.Restart() },
		"flush":   func(_ *testredis.Server, c *goredis.Client) { c.FlushAll(context.Background()) },
	} {
		t.Run(what, func(t *testing.T) {
			server := testredis.Start(t)
			client := server.Client(t, nil)
			o := own()
			b := newBackend(t, client, o)
			s := newStore(t, b, nil)
			ctx := within(t, time.Minute)
			c, _, err := s.Begin(ctx, "claimed", fp)
			if err != nil {
				t.Fatal(err)
			}
			lose(server, client)
			for call, err := range map[string]error{
				"Begin":    second(s.Begin(ctx, "claimed", fp)),
				"Complete": s.Complete(ctx, c, idem.Result{}),
				"Extend":   s.Extend(ctx, c),
				"Lookup":   first(s.Lookup(ctx, "claimed")),
				"Sweep":    first(b.Sweep(ctx, 10)),
				"List":     second(b.List(ctx, idem.Query{})),
				"Watch":    b.Watch(ctx, "claimed", "token"),
				"WithTx": client.Watch(ctx, func(tx *goredis.Tx) error {
					return second(s.With(b.WithTx(tx, tx.TxPipeline())).Begin(ctx, "claimed", fp))
				}),
				"New": first(New(client, o)),
			} {
				wantErr(t, call, err, idem.ErrStoreLost)
			}
			if n, err := client.DBSize(ctx).Result(); err != nil || n > 1 {
				t.Errorf("after the loss there are %d keys, %v; want the mark alone", n, err)
			}
			if err := b.Init(ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := New(client, o); err != nil {
				t.Errorf("New after Init: %v", err)
			}
			if _, _, err := s.Begin(ctx, "claimed", fp); err != nil {
				t.Errorf("Begin after Init: %v", err)
			}
			wantErr(t, "Complete of a claim that was lost", s.Complete(ctx, c, idem.Result{}), idem.ErrLost)
		})
	}
}

func first[T any](_ T, err error) error          { return err }
func second[T, U any](_ T, _ U, err error) error { return err }

// A process that began anew after the loss does not make the others go on. Init by
// any process does.
func TestStoreLostAmongProcesses(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	o := own()
	old := newBackend(t, client, o)
	if err := client.Del(t.Context(), old.canary).Err(); err != nil {
		t.Fatal(err)
	}
	young := newBackend(t, client, o) // before anybody has noticed
	if _, err := young.Get(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := old.Get(t.Context(), "k")
		wantErr(t, "Get by the process that knew better", err, idem.ErrStoreLost)
	}
	if err := young.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, b := range []*Backend{old, young} {
		if _, err := b.Get(t.Context(), "k"); err != nil {
			t.Errorf("Get after Init: %v", err)
		}
	}
}

func TestMustExist(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	o := own()
	o.MustExist = true
	_, err := New(client, o)
	wantErr(t, "New on an empty database with MustExist", err, idem.ErrStoreLost)
	wantErr(t, "New on an empty database with MustExist", err, ErrNotInitialized)
	o.SkipCheck = true
	b := newBackend(t, client, o)
	_, err = b.Get(t.Context(), "k")
	wantErr(t, "Get", err, idem.ErrStoreLost)
	if err := b.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), "k"); err != nil {
		t.Errorf("Get after Init: %v", err)
	}
	o.SkipCheck = false
	if _, err := New(client, o); err != nil {
		t.Errorf("New after Init: %v", err)
	}
	// A loss that was noticed is something else.
	if err := client.Del(t.Context(), o.Prefix+"epoch").Err(); err != nil {
		t.Fatal(err)
	}
	_, err = b.Get(t.Context(), "k")
	wantErr(t, "Get after the loss", err, idem.ErrStoreLost)
	_, err = New(client, o)
	wantErr(t, "New after the loss", err, idem.ErrStoreLost)
	if errors.Is(err, ErrNotInitialized) {
		t.Errorf("New after the loss: the error is %v, which is not a loss", err)
	}
}

// RD-4: a record that has vanished by itself is noticed at the next write.
func TestRD4RecordGone(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	b := newBackend(t, client, nil)
	s := newStore(t, b, nil)
	ctx := t.Context()
	lose := func(key string) *idem.Claim {
		c, _, err := s.Begin(ctx, key, fp)
		if err != nil {
			t.Fatal(err)
		}
		if n := client.Del(ctx, b.Key(key)).Val(); n != 1 {
			t.Fatalf("%d records were deleted", n)
		}
		return c
	}
	c1 := lose("taken")
	c2, _, err := s.Begin(ctx, "taken", fp)
	if err != nil {
		t.Fatal(err)
	}
	before, _ := s.Lookup(ctx, "taken")
	wantErr(t, "Extend", s.Extend(ctx, c1), idem.ErrLost)
	wantErr(t, "Complete", s.Complete(ctx, c1, idem.Result{}), idem.ErrLost)
	if err := s.Release(ctx, c1); err != nil {
		t.Errorf("Release: %v", err)
	}
	if after, _ := s.Lookup(ctx, "taken"); after.Token != before.Token {
		t.Error("the second claim was changed")
	}
	if c2.Fence <= c1.Fence {
		t.Errorf("the fence went from %d to %d", c1.Fence, c2.Fence)
	}
	c := lose("free")
	wantErr(t, "Extend", s.Extend(ctx, c), idem.ErrLost)
	wantErr(t, "Complete", s.Complete(ctx, c, idem.Result{}), idem.ErrLost)
	if r, _ := s.Lookup(ctx, "free"); r.Status != 0 {
		t.Errorf("a record was made: %v", r)
	}
}

// Row 18 and RD-4: every policy that evicts is refused, unless it is allowed; with
// noeviction no claim is granted twice.
func TestRow18Eviction(t *testing.T) {
	server := testredis.Start(t, "--maxmemory", "2mb")
	admin := server.Client(t, nil)
	ctx := within(t, time.Minute)
	for _, policy := range []string{"allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"} {
		if err := admin.ConfigSet(ctx, "maxmemory-policy", policy).Err(); err != nil {
			t.Fatal(err)
		}
		_, err := New(admin, own())
		wantErr(t, "New with "+policy, err, idem.ErrOptions)
		o, warned := warnings()
		o.AllowEviction = true
		if _, err := New(admin, o); err != nil || !strings.Contains(warned(), policy) {
			t.Errorf("New with %s and AllowEviction: %v, with the warnings %q", policy, err, warned())
		}
	}
	if err := admin.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err(); err != nil {
		t.Fatal(err)
	}
	s := newStore(t, newBackend(t, admin, nil), nil)
	const n = 4000
	var granted []string
	var refused int
	for i := range n {
		key := fmt.Sprintf("key-%d-%s", i, strings.Repeat("x", 200))
		c, _, err := s.Begin(ctx, key, fp)
		switch {
		case err == nil:
			granted = append(granted, key)
			_ = c
		case errors.Is(err, idem.ErrUnavailable) && strings.Contains(err.Error(), "maxmemory"):
			refused++
		default:
			t.Fatalf("Begin: %v", err)
		}
		if refused > 50 {
			break // it stays full
		}
	}
	if refused == 0 || len(granted) < 1000 {
		t.Fatalf("%d claims were granted and %d refused; the memory was to run out", len(granted), refused)
	}
	for _, key := range granted {
		if _, _, err := s.Begin(ctx, key, fp); !errors.Is(err, idem.ErrInProgress) {
			t.Fatalf("the claim of %.20q was granted a second time: %v", key, err)
		}
	}
	t.Logf("%d claims granted, %d refused, 0 granted twice", len(granted), refused)
}

// Row 15: a server that is full says a definite no. What was claimed stays and can
// be completed when there is room again.
func TestRow15OutOfMemory(t *testing.T) {
	server := testredis.Start(t)
	admin := server.Client(t, nil)
	b := newBackend(t, server.Client(t, nil), nil)
	s := newStore(t, b, nil)
	ctx := within(t, time.Minute)
	c, _, err := s.Begin(ctx, "before", fp)
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	r := idem.Record{Token: "a.1", Status: idem.InProgress, Attempt: 1, TTL: time.Hour, Lease: time.Minute}
	if _, err := b.Swap(ctx, "full", "", r); err == nil || !noEffect(t, err) || !strings.Contains(err.Error(), "maxmemory") {
		t.Errorf("Swap on a full server: %v, want an error without effect that says why", err)
	}
	wantErr(t, "Complete on a full server", s.Complete(ctx, c, idem.Result{}), idem.ErrUnavailable)
	if r, err := s.Lookup(ctx, "before"); err != nil || r.Status != idem.InProgress {
		t.Errorf("Lookup on a full server: %v, %v", r, err)
	}
	// A transaction on a full server does nothing at all.
	err = admin.Watch(ctx, func(tx *goredis.Tx) error {
		p := tx.TxPipeline()
		p.Del(ctx, b.canary) // needs no memory, so it alone would be carried out
		if err := s.With(b.WithTx(tx, p)).Complete(ctx, c, idem.Result{}); err != nil {
			return err
		}
		_, err := p.Exec(ctx)
		return err
	})
	if err == nil {
		t.Error("a transaction on a full server succeeded")
	}
	if err := admin.ConfigSet(ctx, "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.Complete(ctx, c, idem.Result{}); err != nil {
		t.Errorf("Complete when there is room again: %v", err)
	}
}

// Row 19: a replica takes no claims.
func TestRow19Replica(t *testing.T) {
	master := testredis.Start(t)
	o := own()
	s := newStore(t, newBackend(t, master.Client(t, nil), o), nil)
	replica := testredis.Replica(t, master.Addr)
	client := replica.Client(t, &goredis.Options{MaxRetries: -1})
	_, err := New(client, o)
	wantErr(t, "New on a replica", err, idem.ErrUnavailable)
	o.SkipCheck = true
	b := newBackend(t, client, o)
	if _, _, err := s.Begin(t.Context(), "k", fp); err != nil {
		t.Fatal(err)
	}
	testredis.Until(t, "the replica has the claim", func() bool {
		return client.Exists(t.Context(), b.Key("k")).Val() == 1
	})
	onReplica := newStore(t, b, nil)
	_, _, err = onReplica.Begin(t.Context(), "other", fp)
	wantErr(t, "Begin on a replica", err, idem.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "read-only replica") {
		t.Errorf("Begin on a replica: %v, want the reason", err)
	}
}

// Row 20: with WaitReplicas a claim counts only when the replica has it, and the
// same attempt can ask again.
func TestRow20WaitReplicas(t *testing.T) {
	master := testredis.Start(t)
	proxy := faultproxy.New(t, master.Addr)
	replica := testredis.Replica(t, proxy.Addr())
	ctx := within(t, time.Minute)
	o := own()
	o.WaitReplicas = WaitReplicas{N: 1, Timeout: 100 * time.Millisecond}
	b := newBackend(t, master.Client(t, nil), o)
	s := newStore(t, b, nil)
	c, _, err := s.Begin(ctx, "replicated", fp)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Complete(ctx, c, idem.Result{Body: []byte("done")}); err != nil {
		t.Fatal(err)
	}

	replica.Pause()
	r := idem.Record{Token: "a.1", Status: idem.InProgress, Attempt: 1, TTL: time.Hour, Lease: time.Minute}
	for try := range 3 {
		_, err = b.Swap(ctx, "k", "", r)
		if !errors.Is(err, idem.ErrUnavailable) || noEffect(t, err) {
			t.Errorf("try %d of a Swap that no replica confirms: %v, want ErrUnavailable, not without effect", try, err)
		}
	}
	if _, done, err := s.Begin(ctx, "replicated", fp); err != nil || done == nil {
		t.Errorf("a replay needs no replica: %v, %v", done, err)
	}
	replica.Resume()
	testredis.Until(t, "the same Swap is confirmed", func() bool {
		got, err := b.Swap(ctx, "k", "", r)
		return err == nil && got.Token == r.Token
	})
	// WAIT is for what this connection has written, so a repeated Swap writes.
	before := changes(t, b.client)
	if _, err := b.Swap(ctx, "k", "", r); err != nil || changes(t, b.client) == before {
		t.Errorf("the same Swap again: %v, and it has not written", err)
	}
	// What was acknowledged is on the replica.
	proxy.Refuse(true)
	master.Kill()
	client := replica.Client(t, nil)
	if err := client.ReplicaOf(ctx, "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	promoted := newStore(t, newBackend(t, client, &Options{Prefix: o.Prefix, Warn: o.Warn}), nil)
	if _, done, err := promoted.Begin(ctx, "replicated", fp); err != nil || done == nil || string(done.Result.Body) != "done" {
		t.Errorf("the replay after the failover: %v, %v", done, err)
	}
}

// Row 20: what failover with asynchronous replication loses, as documented: a claim
// that was acknowledged is granted a second time. The first holder notices, and
// the fence still rises.
func TestRow20FailoverLosesClaims(t *testing.T) {
	master := testredis.Start(t)
	proxy := faultproxy.New(t, master.Addr)
	replica := testredis.Replica(t, proxy.Addr())
	ctx := within(t, time.Minute)
	o := own()
	s := newStore(t, newBackend(t, master.Client(t, nil), o), nil)
	testredis.Until(t, "the replica has the canary", func() bool {
		return replica.Client(t, nil).Exists(ctx, o.Prefix+"epoch").Val() == 1
	})
	proxy.Refuse(true)
	c1, _, err := s.Begin(ctx, "k", fp)
	if err != nil {
		t.Fatal(err)
	}
	master.Kill()
	client := replica.Client(t, nil)
	if err := client.ReplicaOf(ctx, "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	promoted := newStore(t, newBackend(t, client, o), nil)
	c2, _, err := promoted.Begin(ctx, "k", fp)
	if err != nil {
		t.Fatalf("Begin after the failover: %v; the claim was not replicated, so it is expected to be lost", err)
	}
	wantErr(t, "Complete by the first holder", promoted.Complete(ctx, c1, idem.Result{}), idem.ErrLost)
	if c2.Fence <= c1.Fence {
		t.Errorf("the fence went from %d to %d", c1.Fence, c2.Fence)
	}
}
