package redis

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testredis"
)

// waitSubscribed waits until changes of a key are heard of.
func waitSubscribed(t testing.TB, b *Backend, key string) {
	t.Helper()
	testredis.Until(t, "the subscription is confirmed", func() bool { return isSubscribed(b, key) })
}

func isSubscribed(b *Backend, key string) bool {
	b.watchers.mu.Lock()
	defer b.watchers.mu.Unlock()
	topic := b.watchers.topics[b.Key(key)]
	return topic != nil && topic.subscribed
}

// One connection serves all who wait, and it is gone with the last of them.
func TestWatchOneConnection(t *testing.T) {
	server := testredis.Start(t)
	admin := server.Client(t, nil)
	o := own()
	b := newBackend(t, server.Client(t, nil), o)
	s := newStore(t, newBackend(t, server.Client(t, nil), o), nil)
	ctx := within(t, time.Minute)
	subscribers := func() int {
		list, err := admin.Do(ctx, "client", "list", "type", "pubsub").Text()
		if err != nil {
			t.Fatal(err)
		}
		return len(list) - len(withoutNewlines(list))
	}
	const keys, each = 20, 10
	var claims []*idem.Claim
	var waiting sync.WaitGroup
	for i := range keys {
		key := fmt.Sprintf("k%d", i)
		c, _, err := s.Begin(ctx, key, fp)
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Lookup(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		claims = append(claims, c)
		for range each {
			waiting.Go(func() {
				if err := b.Watch(ctx, key, r.Token); err != nil {
					t.Errorf("Watch: %v", err)
				}
			})
		}
	}
	for i := range keys {
		waitSubscribed(t, b, fmt.Sprintf("k%d", i))
	}
	if n := subscribers(); n != 1 {
		t.Errorf("%d connections for %d who wait, want 1", n, keys*each)
	}
	for _, c := range claims {
		if err := s.Complete(ctx, c, idem.Result{}); err != nil {
			t.Fatal(err)
		}
	}
	waiting.Wait()
	testredis.Until(t, "the connection is closed", func() bool { return subscribers() == 0 })
	if n := admin.PubSubNumPat(ctx).Val() + int64(len(admin.PubSubChannels(ctx, "*").Val())); n != 0 {
		t.Errorf("%d subscriptions are left", n)
	}
}

func withoutNewlines(s string) string {
	var b []byte
	for i := range len(s) {
		if s[i] != '\n' {
			b = append(b, s[i])
		}
	}
	return string(b)
}

// A break of the subscription is noticed and made up for.
func TestWatchSurvivesABreak(t *testing.T) {
	server := testredis.Start(t)
	admin := server.Client(t, nil)
	o := own()
	b := newBackend(t, server.Client(t, nil), o)
	s := newStore(t, newBackend(t, server.Client(t, nil), o), nil)
	ctx := within(t, time.Minute)
	for i := range 5 {
		key := fmt.Sprintf("k%d", i)
		c, _, err := s.Begin(ctx, key, fp)
		if err != nil {
			t.Fatal(err)
		}
		r, _ := s.Lookup(ctx, key)
		watched := make(chan error, 1)
		go func() { watched <- b.Watch(ctx, key, r.Token) }()
		waitSubscribed(t, b, key)
		if err := admin.Do(ctx, "client", "kill", "type", "pubsub").Err(); err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			testredis.Until(t, "it has subscribed again", func() bool {
				return len(admin.PubSubChannels(ctx, "*").Val()) > 0
			})
		}
		if err := s.Complete(ctx, c, idem.Result{}); err != nil {
			t.Fatal(err)
		}
		if err := <-watched; err != nil {
			t.Errorf("Watch: %v", err)
		}
	}
}

// A user who may not use the channels waits all the same.
func TestWatchWithoutChannels(t *testing.T) {
	server := testredis.Start(t)
	if err := server.Client(t, nil).Do(t.Context(), "acl", "setuser", "mute", "reset", "on", ">secret", "+@all", "~*", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	o := own()
	b := newBackend(t, server.Client(t, &goredis.Options{Username: "mute", Password: "secret"}), o)
	other := newStore(t, newBackend(t, server.Client(t, &goredis.Options{Username: "mute", Password: "secret"}), o), nil)
	ctx := within(t, 30*time.Second)
	c, _, err := other.Begin(ctx, "k", fp)
	if err != nil {
		t.Fatal(err)
	}
	r, _ := other.Lookup(ctx, "k")
	watched := make(chan error, 1)
	go func() { watched <- b.Watch(ctx, "k", r.Token) }()
	testredis.Until(t, "somebody waits", func() bool {
		b.watchers.mu.Lock()
		defer b.watchers.mu.Unlock()
		return len(b.watchers.topics) == 1
	})
	if err := other.Complete(ctx, c, idem.Result{}); err != nil {
		t.Fatalf("Complete without the right to publish: %v", err)
	}
	if err := <-watched; err != nil {
		t.Errorf("Watch: %v", err)
	}
}

// However many wait, the storage is asked as if one did, and hardly at all.
func TestWatchAsksLittle(t *testing.T) {
	server := testredis.Start(t)
	admin := server.Client(t, nil)
	o := own()
	var asked atomic.Int32
	waiters := newStore(t, newBackend(t, server.Client(t, nil), o), &idem.Options{Observe: func(_ context.Context, e idem.Event) {
		if e.Op == "begin" {
			asked.Add(1)
		}
	}})
	s := newStore(t, newBackend(t, server.Client(t, nil), o), nil)
	ctx := within(t, time.Minute)
	const waiting = 200
	c, _, err := s.Begin(ctx, "k", fp)
	if err != nil {
		t.Fatal(err)
	}
	answers := make(chan error, waiting)
	for range waiting {
		go func() {
			out, err := waiters.Do(ctx, "k", fp, func(context.Context, *idem.Claim) (idem.Result, error) {
				return idem.Result{}, fmt.Errorf("a duplicate ran")
			})
			if err == nil && string(out.Result.Body) != "done" {
				err = fmt.Errorf("the answer is %q", out.Result.Body)
			}
			answers <- err
		}()
	}
	gets := func() int64 { return calls(t, admin, "get") }
	testredis.Until(t, "all have asked and wait", func() bool {
		return asked.Load() == waiting && len(admin.PubSubChannels(ctx, "*").Val()) == 1
	})
	settled := gets()
	testredis.Until(t, "nobody asks any more", func() bool {
		now := gets()
		same := now == settled
		settled = now
		return same
	})
	if err := s.Complete(ctx, c, idem.Result{Body: []byte("done")}); err != nil {
		t.Fatal(err)
	}
	for range waiting {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if n := gets() - settled; n > 40 {
		t.Errorf("%d who waited have asked %d times after the completion", waiting, n)
	}
}

// calls returns how often a command was called.
func calls(t testing.TB, admin *goredis.Client, command string) (n int64) {
	t.Helper()
	info, err := admin.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = fmt.Sscanf(parseInfo(info)["cmdstat_"+command], "calls=%d", &n)
	return n
}
