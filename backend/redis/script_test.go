package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testredis"
)

// RD-3: a script cache that is emptied all the time, and a restart, are no concern
// of the caller.
func TestRD3ScriptFlush(t *testing.T) {
	server := testredis.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	admin := server.Client(t, nil)
	client := server.Client(t, nil)
	b := newBackend(t, client, nil)
	s := newStore(t, b, nil)
	ctx := within(t, time.Minute)
	stop := make(chan struct{})
	var flushing sync.WaitGroup
	var flushes atomic.Int32
	flushing.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if admin.ScriptFlush(ctx).Err() == nil {
					flushes.Add(1)
				}
			}
		}
	})
	const callers, each = 8, 125 // 1,000 of each call
	var granted [each]atomic.Int32
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := range each {
				own := fmt.Sprintf("own-%d-%d", caller, i)
				free := fmt.Sprintf("free-%d-%d", caller, i)
				c, _, err := s.Begin(ctx, own, fp)
				f, _, err2 := s.Begin(ctx, free, fp)
				if err := errors.Join(err, err2); err != nil {
					t.Errorf("Begin: %v", err)
					return
				}
				err = errors.Join(s.Extend(ctx, c), s.Complete(ctx, c, idem.Result{}), s.Release(ctx, f))
				_, err2 = s.Lookup(ctx, own)
				_, err3 := b.Sweep(ctx, 10)
				if err := errors.Join(err, err2, err3); err != nil {
					t.Errorf("Extend, Complete, Release, Lookup or Sweep: %v", err)
					return
				}
				// CL-1: one of all who want the same key gets it.
				switch _, _, err := s.Begin(ctx, fmt.Sprintf("common-%d", i), fp); {
				case err == nil:
					granted[i].Add(1)
				case !errors.Is(err, idem.ErrInProgress):
					t.Errorf("Begin: %v", err)
				}
			}
		})
	}
	all.Wait()
	close(stop)
	flushing.Wait()
	for i := range granted {
		if n := granted[i].Load(); n != 1 {
			t.Errorf("the key %d was granted %d times", i, n)
		}
	}
	if flushes.Load() < 50 {
		t.Errorf("the cache was emptied only %d times", flushes.Load())
	}
	server.Kill()
	server.Restart()
	testredis.Until(t, "the client is connected again", func() bool { return client.Ping(ctx).Err() == nil })
	if _, _, err := s.Begin(ctx, "after", fp); err != nil {
		t.Errorf("Begin after a restart: %v", err)
	}
}

// Row 40: what stops a script half-way does so before its write, or after it
// without harm; and it stops one Swap, not those that share the script.
func TestRow40ScriptStoppedHalfWay(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	b := newBackend(t, client, nil)
	ctx := t.Context()
	if err := client.LPush(ctx, b.Key("list"), "x").Err(); err != nil {
		t.Fatal(err)
	}
	record := func(token string) idem.Record {
		return idem.Record{Token: token, Status: idem.InProgress, Attempt: 1, TTL: time.Hour, Lease: time.Minute}
	}
	const n = 30
	var batch []*request
	for i := range n {
		key := fmt.Sprintf("key-%d", i)
		if i%10 == 5 {
			key = "list"
		}
		r := record(fmt.Sprintf("a.%d", i))
		encoded, err := encode(key, r)
		if err != nil {
			t.Fatal(err)
		}
		batch = append(batch, &request{
			ctx: ctx, op: "swap", name: b.Key(key), done: make(chan struct{}),
			swap: true, token: r.Token, encoded: encoded, reclaim: 1000,
		})
	}
	b.trip(batch)
	for i, r := range batch {
		<-r.done
		if i%10 == 5 {
			if !errors.Is(r.err, idem.ErrCorrupt) || !noEffect(t, r.err) {
				t.Errorf("the Swap of a key that is a list: %v, want ErrCorrupt without effect", r.err)
			}
		} else if r.err != nil || r.answer.kind != stored {
			t.Errorf("the Swap %d beside it: %+v, %v", i, r.answer, r.err)
		}
	}
	if got := client.Type(ctx, b.Key("list")).Val(); got != "list" {
		t.Errorf("the list is a %s now", got)
	}
	_, err := b.Get(ctx, "list")
	wantErr(t, "Get of a key that is a list", err, idem.ErrCorrupt)
}

// A script that reads a record of another program, or a damaged one, changes
// nothing.
func TestDamagedRecord(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	b := newBackend(t, client, nil)
	s := newStore(t, b, nil)
	ctx := t.Context()
	for _, v := range []string{"", "x", strings.Repeat("\x00", 100), "\x01" + strings.Repeat("\xff", 30), "\x02" + strings.Repeat("a", 100)} {
		if err := client.Set(ctx, b.Key("k"), v, time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		_, _, err := s.Begin(ctx, "k", fp)
		wantErr(t, fmt.Sprintf("Begin of %q", v), err, idem.ErrCorrupt)
		_, err = s.Lookup(ctx, "k")
		wantErr(t, fmt.Sprintf("Lookup of %q", v), err, idem.ErrCorrupt)
		if got := client.Get(ctx, b.Key("k")).Val(); got != v {
			t.Errorf("%q was replaced with %q", v, got)
		}
	}
}

// RD-5: all keys of one command are in one slot and known to Redis as keys, and
// different keys are in different slots.
func TestRD5Slots(t *testing.T) {
	cluster := testredis.StartCluster(t, 3).Client(t, nil)
	b := newBackend(t, cluster, nil)
	s := newStore(t, b, nil)
	var seen recorder
	cluster.AddHook(&seen)
	ctx := within(t, time.Minute)
	keys := []string{"a", "{", "}", "{}", "{x}y", "}{", "a{b}c{d}", "{}}x", "a}b{c"}
	rnd := testenv.Rand(t)
	for range 200 {
		letters := make([]byte, 1+rnd.IntN(20))
		for i := range letters {
			letters[i] = "{}ab:%?*["[rnd.IntN(9)]
		}
		keys = append(keys, string(letters))
	}
	slots := make(map[int64]bool)
	for _, key := range slices.Compact(slices.Sorted(slices.Values(keys))) {
		out, err := s.Do(ctx, key, fp, func(context.Context, *idem.Claim) (idem.Result, error) {
			return idem.Result{Body: []byte(key)}, nil
		})
		if err != nil || out.Replayed {
			t.Fatalf("Do(%q): %v, %v", key, out.Replayed, err)
		}
		if r, err := s.Lookup(ctx, key); err != nil || string(r.Result.Body) != key {
			t.Fatalf("Lookup(%q): %v, %v", key, r, err)
		}
		slot, err := cluster.ClusterKeySlot(ctx, b.Key(key)).Result()
		if err != nil {
			t.Fatal(err)
		}
		slots[slot] = true
	}
	if len(slots) < 100 {
		t.Errorf("%d keys are in %d slots only", len(keys), len(slots))
	}
	entries, next, err := b.List(ctx, idem.Query{Limit: 10_000})
	for ; err == nil && next != ""; _, next, err = b.List(ctx, idem.Query{Limit: 10_000, Cursor: next}) {
	}
	if err != nil || len(entries) == 0 {
		t.Errorf("List: %d entries, %v", len(entries), err)
	}
	if n := seen.check(t); n < 400 {
		t.Errorf("only %d scripts were seen", n)
	}
}

// A recorder is a hook that looks at the scripts' keys.
type recorder struct {
	mu       sync.Mutex
	commands [][]any
}

func (r *recorder) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (r *recorder) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		r.note(cmd)
		return next(ctx, cmd)
	}
}

func (r *recorder) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		for _, cmd := range cmds {
			r.note(cmd)
		}
		return next(ctx, cmds)
	}
}

func (r *recorder) note(cmd goredis.Cmder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.commands = append(r.commands, cmd.Args())
}

// check checks that each script has one key, which begins with a hash tag, and
// returns the number of scripts.
func (r *recorder) check(t *testing.T) (scripts int) {
	t.Helper()
	for _, args := range r.commands {
		if name := fmt.Sprint(args[0]); name != "evalsha" && name != "eval" {
			continue
		}
		scripts++
		if args[2] != 1 {
			t.Errorf("a script has %v keys", args[2])
		}
		name := args[3].(string)
		open := strings.IndexByte(name, '{')
		shut := strings.IndexByte(name, '}')
		if (open < 0 || shut != open+5) && !strings.HasSuffix(name, ":touch") {
			t.Errorf("the name %q has no hash tag of its own", name)
		}
		for _, arg := range args[4:] {
			if s, ok := arg.(string); ok && len(s) > 3 && bytes.Contains([]byte(name), []byte(s)) {
				t.Errorf("the script of %q is told the name in an argument: %q", name, s)
			}
		}
	}
	return scripts
}
