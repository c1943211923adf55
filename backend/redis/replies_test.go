package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/internal/faultproxy"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testredis"
)

// proxied returns a proxy in front of the shared server, and a client behind it.
func proxied(t testing.TB, opts *goredis.Options) (*faultproxy.Proxy, *goredis.Client) {
	proxy := faultproxy.New(t, testredis.Shared(t))
	return proxy, testredis.Client(t, proxy.Addr(), opts)
}

// once returns a judge for the first request that has the text in it, and a
// function that tells whether there was one.
func once(text string, fate faultproxy.Fate) (judge func([]byte) faultproxy.Fate, met func() bool) {
	var n atomic.Int32
	judge = func(request []byte) faultproxy.Fate {
		if bytes.Contains(request, []byte(text)) && n.Add(1) == 1 {
			return fate
		}
		return faultproxy.Pass
	}
	return judge, func() bool { return n.Load() > 0 }
}

var fates = map[string]faultproxy.Fate{
	"request lost": faultproxy.LoseRequest,
	"reply lost":   faultproxy.LoseReply,
	"both cut":     faultproxy.CutBoth,
	"reply cut":    faultproxy.TruncateReply,
	"reset":        faultproxy.Reset,
}

// ways are the settings of the client's own retries.
var ways = map[string]goredis.Options{
	"retries on":  {},
	"retries off": {MaxRetries: -1},
}

// eachFault runs a test with each fault and with each kind of client.
func eachFault(t *testing.T, test func(t *testing.T, proxy *faultproxy.Proxy, s *idem.Store, fate faultproxy.Fate)) {
	for way, opts := range ways {
		for what, fate := range fates {
			t.Run(what+", "+way, func(t *testing.T) {
				t.Parallel()
				proxy, client := proxied(t, &opts)
				test(t, proxy, newStore(t, newBackend(t, client, nil), nil), fate)
			})
		}
	}
}

const lostReplies = 100

// The claim belongs to whoever asked for it, whatever became of the answer.
func TestRD1PE5ReplyOfBeginLost(t *testing.T) {
	eachFault(t, func(t *testing.T, proxy *faultproxy.Proxy, s *idem.Store, fate faultproxy.Fate) {
		ctx := within(t, time.Minute)
		for i := range lostReplies {
			key := fmt.Sprintf("key-%d", i)
			judge, met := once(key, fate)
			proxy.Judge(judge)
			c, done, err := s.Begin(ctx, key, fp)
			if err != nil || done != nil || !met() {
				t.Fatalf("Begin of a fresh key: %v, %v (met with the fault: %v)", done, err, met())
			}
			if c.Attempt != 1 || c.Takeover {
				t.Fatalf("the claim is attempt %d, takeover %v; want 1, not taken over", c.Attempt, c.Takeover)
			}
			if _, _, err := s.Begin(ctx, key, fp); !errors.Is(err, idem.ErrInProgress) {
				t.Fatalf("a second Begin: %v, want ErrInProgress: there are two owners", err)
			}
			if err := s.Complete(ctx, c, idem.Result{Body: []byte(key)}); err != nil {
				t.Fatalf("Complete by the owner: %v", err)
			}
		}
	})
}

func TestPE6ReplyOfCompleteLost(t *testing.T) {
	eachFault(t, func(t *testing.T, proxy *faultproxy.Proxy, s *idem.Store, fate faultproxy.Fate) {
		ctx := within(t, time.Minute)
		for i := range lostReplies {
			key := fmt.Sprintf("key-%d", i)
			want := idem.Result{Code: i, Body: []byte(key)}
			runs := 0
			out, err := s.Do(ctx, key, fp, func(context.Context, *idem.Claim) (idem.Result, error) {
				runs++
				judge, _ := once(key, fate) // from now on: the completion
				proxy.Judge(judge)
				return want, nil
			})
			if err != nil || out.Replayed || !out.Result.Equal(want) {
				t.Fatalf("Do: %+v, %v", out, err)
			}
			again, err := s.Do(ctx, key, fp, func(context.Context, *idem.Claim) (idem.Result, error) {
				runs++
				return idem.Result{}, errors.New("ran again")
			})
			if err != nil || !again.Replayed || !again.Result.Equal(want) || runs != 1 {
				t.Fatalf("the retry: %+v, %v, after %d runs", again, err, runs)
			}
		}
	})
}

// The same Complete again is accepted, another one not, and Lookup shows which
// stands.
func TestPE6CompleteAgain(t *testing.T) {
	eachFault(t, func(t *testing.T, proxy *faultproxy.Proxy, s *idem.Store, fate faultproxy.Fate) {
		ctx := within(t, time.Minute)
		for i := range 20 {
			key := fmt.Sprintf("key-%d", i)
			c, _, err := s.Begin(ctx, key, fp)
			if err != nil {
				t.Fatal(err)
			}
			first, second := idem.Result{Body: []byte("first")}, idem.Result{Body: []byte("second")}
			judge, _ := once(key, fate)
			proxy.Judge(judge)
			if err := s.Complete(ctx, c, first); err != nil && !errors.Is(err, idem.ErrUnavailable) {
				t.Fatalf("Complete: %v", err)
			}
			err = s.Complete(ctx, c, first)
			for errors.Is(err, idem.ErrUnavailable) { // over a connection that is cut already
				err = s.Complete(ctx, c, first)
			}
			if err != nil {
				t.Fatalf("the same Complete again: %v", err)
			}
			if err := s.Complete(ctx, c, second); !errors.Is(err, idem.ErrCompleted) {
				t.Fatalf("Complete with another result: %v, want ErrCompleted", err)
			}
			if r, err := s.Lookup(ctx, key); err != nil || !r.Result.Equal(first) {
				t.Fatalf("Lookup: %v, %v", r, err)
			}
		}
	})
}

// Without retries of the client, a Swap whose answer is lost says that its outcome
// is unknown, and one that was not sent says that it had no effect.
func TestErrorsSayWhetherThereWasAnEffect(t *testing.T) {
	for way, opts := range ways {
		t.Run(way, func(t *testing.T) {
			opts.MinRetryBackoff, opts.MaxRetryBackoff, opts.DialerRetries = -1, -1, 1
			proxy, client := proxied(t, &opts)
			b := newBackend(t, client, nil)
			ctx := within(t, time.Minute)
			r := idem.Record{Token: "a.1", Status: idem.InProgress, Attempt: 1, TTL: time.Hour, Lease: time.Minute}

			proxy.Judge(func(request []byte) faultproxy.Fate {
				if bytes.Contains(request, []byte("evalsha")) {
					return faultproxy.LoseReply
				}
				return faultproxy.Pass
			})
			_, err := b.Swap(ctx, "lost", "", r)
			if err == nil || noEffect(t, err) {
				t.Errorf("Swap whose answer is lost: %v, want an error that does not exclude an effect", err)
			}
			proxy.Judge(nil)
			if got, err := b.Swap(ctx, "lost", "", r); err != nil || got.Token != r.Token {
				t.Errorf("the same Swap again: %v, %v", got, err)
			}

			proxy.Refuse(true)
			for range 3 { // the first may find a connection that is broken already
				_, err = b.Swap(ctx, "refused", "", r)
			}
			if err == nil {
				t.Error("Swap without a server succeeded")
			}
			proxy.Refuse(false)

			none := testredis.Client(t, "127.0.0.1:1", &opts)
			o := own()
			o.SkipCheck = true
			b = newBackend(t, none, o)
			if _, err := b.Swap(ctx, "k", "", r); err == nil || !noEffect(t, err) {
				t.Errorf("Swap where nobody listens: %v, want an error without effect", err)
			}
		})
	}
}

// noEffect reports whether an error says that there was no effect: a key whose
// operation fails with it is free.
func noEffect(t testing.TB, err error) bool {
	t.Helper()
	s := newStore(t, memory.New(), nil)
	_, _ = s.Do(t.Context(), "k", fp, func(context.Context, *idem.Claim) (idem.Result, error) { return idem.Result{}, err })
	r, _ := s.Lookup(t.Context(), "k")
	return r.Status == idem.Released
}

// Row 11: an answer in pieces of 3 bytes is an answer; one that is slow too.
func TestSlowAndSlicedAnswers(t *testing.T) {
	proxy, client := proxied(t, nil)
	s := newStore(t, newBackend(t, client, nil), nil)
	ctx := within(t, time.Minute)
	for i := range 10 {
		proxy.Slice(3)
		if i%2 == 1 {
			proxy.Slice(0)
			proxy.Delay(20 * time.Millisecond)
		}
		key := fmt.Sprintf("key-%d", i)
		out, err := s.Do(ctx, key, fp, func(context.Context, *idem.Claim) (idem.Result, error) {
			return idem.Result{Body: bytes.Repeat([]byte("x"), 10_000)}, nil
		})
		if err != nil || out.Replayed {
			t.Fatalf("Do: %v, %v", out.Replayed, err)
		}
		_, done, err := s.Begin(ctx, key, fp)
		if err != nil || done == nil || len(done.Result.Body) != 10_000 {
			t.Fatalf("the replay: %v, %v", done, err)
		}
	}
}

// Row 10: a connection that swallows answers does not keep a caller for longer
// than his context, and is not used again. Those who come later do not wait behind
// it.
func TestRow10HalfOpenConnection(t *testing.T) {
	proxy, client := proxied(t, &goredis.Options{ReadTimeout: time.Second, MaxRetries: -1})
	s := newStore(t, newBackend(t, client, nil), nil)
	for i := range 20 {
		key := fmt.Sprintf("key-%d", i)
		judge, _ := once(key, faultproxy.Silence)
		proxy.Judge(judge)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		start := time.Now()
		_, _, err := s.Begin(ctx, key, fp)
		took := time.Since(start)
		cancel()
		if !errors.Is(err, idem.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Begin over a silent connection: %v, want ErrUnavailable and the context's error", err)
		}
		if took > 150*time.Millisecond && !testenv.Race {
			t.Errorf("Begin with a deadline of 50 ms took %v", took)
		}
		other := fmt.Sprintf("other-%d", i)
		c, _, err := s.Begin(within(t, 10*time.Second), other, fp)
		if err != nil {
			t.Fatalf("Begin beside a silent connection: %v", err)
		}
		if err := s.Complete(t.Context(), c, idem.Result{}); err != nil {
			t.Fatal(err)
		}
	}
}

// RD-7: a context's deadline holds while a command is in flight, with any client.
func TestRD7ContextInFlight(t *testing.T) {
	proxy, client := proxied(t, nil)
	b := newBackend(t, client, nil)
	s := newStore(t, b, &idem.Options{Lease: time.Second})
	proxy.Delay(2 * time.Second)
	var runs atomic.Int32
	for _, call := range []func(ctx context.Context) error{
		func(ctx context.Context) error { _, _, err := s.Begin(ctx, "begin", fp); return err },
		func(ctx context.Context) error { _, err := s.Lookup(ctx, "lookup"); return err },
		func(ctx context.Context) error { _, err := b.Sweep(ctx, 10); return err },
		func(ctx context.Context) error { _, _, err := b.List(ctx, idem.Query{}); return err },
		func(ctx context.Context) error { return b.Watch(ctx, "watch", "token") },
		func(ctx context.Context) error { return b.Check(ctx) },
		func(ctx context.Context) error { return b.Init(ctx) },
		func(ctx context.Context) error {
			_, err := s.Do(ctx, "do", fp, func(context.Context, *idem.Claim) (idem.Result, error) {
				runs.Add(1)
				return idem.Result{}, nil
			})
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		start := time.Now()
		err := call(ctx)
		took := time.Since(start)
		cancel()
		wantErr(t, "a call with a deadline", err, context.DeadlineExceeded)
		if took > time.Second { // far below the 2 s of the answer
			t.Errorf("a call with a deadline of 100 ms took %v", took)
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		wantErr(t, "a call that is cancelled", call(ctx), context.Canceled)
	}
	proxy.Delay(0)
	// The connections are as good as before, and the keys come free.
	testredis.Until(t, "the key is free", func() bool {
		c, _, err := s.Begin(t.Context(), "begin", fp)
		return err == nil && c != nil
	})
	if runs.Load() > 0 {
		t.Errorf("%d operations ran without a claim", runs.Load())
	}
}

// Row 9: a context that ends at any instant of a call.
func TestRow9ContextEndsAtAnyInstant(t *testing.T) {
	_, client := proxied(t, nil)
	s := newStore(t, newBackend(t, client, nil), nil)
	rnd := testenv.Rand(t)
	ended := 0
	for i := range 400 {
		key := fmt.Sprintf("key-%d", i)
		c, _, err := s.Begin(t.Context(), key, fp)
		if err != nil {
			t.Fatal(err)
		}
		want := idem.Result{Body: []byte(key)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(600))*time.Microsecond)
		err = s.Complete(ctx, c, want)
		cancel()
		r, lookErr := s.Lookup(t.Context(), key)
		if lookErr != nil {
			t.Fatal(lookErr)
		}
		switch {
		case err == nil && !(r.Status == idem.Completed && r.Result.Equal(want)):
			t.Fatalf("Complete succeeded, but stored is %v", r)
		case err != nil && !errors.Is(err, idem.ErrUnavailable):
			t.Fatalf("Complete: %v, want ErrUnavailable", err)
		case err != nil:
			ended++
		}
		if err := s.Complete(t.Context(), c, want); err != nil {
			t.Fatalf("the same Complete again: %v", err)
		}
	}
	t.Logf("%d of 400 contexts ended first", ended)
}
