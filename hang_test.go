package idem_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// A storage that loses one answer only (a connection that is half open) costs
// one packet, not the whole operation: the next one goes over another
// connection.
func TestOneHangingExtendDoesNotEndTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		extends := 0
		b := newFaulty(memory.New(), func(method string, n int, rec idem.Record) fate {
			if method == "Swap" && rec.Status == idem.InProgress && n > 0 {
				if extends++; extends == 1 {
					return hung
				}
			}
			return fine
		})
		s := open(t, b, &idem.Options{Lease: 30 * time.Second})
		_, err := s.Do(context.Background(), "k", payloadA, func(ctx context.Context, _ *idem.Claim) (idem.Result, error) {
			select {
			case <-ctx.Done():
				return idem.Result{}, context.Cause(ctx)
			case <-time.After(2 * time.Minute):
				return result1, nil
			}
		})
		if err != nil {
			t.Errorf("one Extend without an answer, %d sent in all: %v", extends, err)
		}
	})
}

// The same for the completion.
func TestOneHangingCompleteIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFaulty(memory.New(), during(idem.Completed, 0, fine))
		sent := 0
		b.script = func(method string, _ int, rec idem.Record) fate {
			if method == "Swap" && rec.Status == idem.Completed {
				if sent++; sent == 1 {
					return hung
				}
			}
			return fine
		}
		s := open(t, b, &idem.Options{Lease: 30 * time.Second})
		_, err := s.Do(context.Background(), "k", payloadA, returning(new(atomic.Int64), result1, nil))
		if err != nil {
			t.Errorf("%d completions sent in 30 s: %v", sent, err)
		}
	})
}

// A claim whose answer comes after its lease is over is known not to be held:
// the operation must not begin under it.
func TestLateClaimDoesNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = time.Second
		mem := memory.New()
		slow := &slowReply{Backend: mem, delay: 2 * time.Second}
		var running, most atomic.Int64
		work := func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer running.Add(-1)
			time.Sleep(5 * time.Second) // an effect that does not look at its context
			return result1, nil
		}
		done := make(chan error)
		go func() {
			_, err := open(t, slow, &idem.Options{Lease: lease}).Do(context.Background(), "k", payloadA, work)
			done <- err
		}()
		synctest.Wait()
		_, err := open(t, mem, &idem.Options{Lease: lease}).Do(context.Background(), "k", payloadA, work)
		t.Log("other process:", err, "; first:", <-done)
		if most.Load() > 1 {
			t.Errorf("%d attempts run at a time; the first was told of its claim 1 s after its lease was over", most.Load())
		}
	})
}

// A slowReply delays the answer to the first Swap.
type slowReply struct {
	idem.Backend
	delay time.Duration
	used  atomic.Bool
}

func (b *slowReply) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	r, err := b.Backend.Swap(ctx, key, old, new)
	if !b.used.Swap(true) {
		time.Sleep(b.delay)
	}
	return r, err
}

// A claim that was completed by its own attempt is not lost.
func TestOwnCompletionDoesNotCancelTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, nil, &idem.Options{Lease: 30 * time.Second})
		out, err := s.Do(context.Background(), "k", payloadA, func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
			// As in the transaction of the change.
			if err := s.Complete(ctx, c, result1); err != nil {
				t.Error(err)
			}
			select { // what is left to do, such as a mail
			case <-ctx.Done():
				return idem.Result{}, context.Cause(ctx)
			case <-time.After(time.Minute):
				return result1, nil
			}
		})
		if err != nil {
			t.Errorf("%+v, %v", out, err)
		}
	})
}

// One part of a joined error says that nothing happened in that part; another
// part does not say so.
func TestNoEffectOfOneOfTwoErrors(t *testing.T) {
	timeout := errors.New("charge: no answer")
	for name, err := range map[string]error{
		"join":   errors.Join(timeout, idem.NoEffect(errors.New("receipt: not sent"))),
		"errorf": fmt.Errorf("%w; then %w", timeout, idem.NoEffect(errors.New("receipt: not sent"))),
	} {
		s := open(t, nil, nil)
		_, _ = s.Do(context.Background(), "k", payloadA, returning(new(atomic.Int64), idem.Result{}, err))
		if r := lookup(t, s, "k"); r.Status == idem.Released {
			t.Errorf("%s: %q freed the key, although the charge has no known outcome", name, err)
		}
	}
}

// A watcher that works over a storage that does not: asked in intervals, not
// without a pause.
func TestWaitingDoesNotSpinOnADeadStorage(t *testing.T) {
	b := newFaulty(memory.New(), func(method string, _ int, _ idem.Record) fate {
		if method == "Get" {
			return lost
		}
		return fine
	})
	watched := struct {
		*faulty
		idem.Watcher
	}{b, alwaysChanged{}}
	s := open(t, watched, &idem.Options{Lease: time.Hour})
	begin(t, s, "k", payloadA)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err := s.Do(ctx, "k", payloadA, returning(new(atomic.Int64), result1, nil))
	if n := b.count("Get"); n > 100 {
		t.Errorf("%d Gets in 300 ms of waiting (%v)", n, err)
	}
}

// alwaysChanged is a Watcher that returns early, as it may.
type alwaysChanged struct{}

func (alwaysChanged) Watch(context.Context, string, string) error { return nil }

// Observe is called after every operation, also one that is refused as bad input.
func TestObserveOfARefusedCheckpoint(t *testing.T) {
	var ops []string
	s := open(t, nil, &idem.Options{MaxResult: 10, Observe: func(_ context.Context, e idem.Event) { ops = append(ops, e.Op) }})
	c := begin(t, s, "k", payloadA)
	if err := s.Checkpoint(context.Background(), c, make([]byte, 11)); !errors.Is(err, idem.ErrOptions) {
		t.Fatal(err)
	}
	if got := strings.Join(ops, " "); got != "begin checkpoint" {
		t.Errorf("observed %q", got)
	}
}

// One watcher per key and process, however many wait: Stores are cheap, and
// several of them share a backend.
func TestWaitersOfTwoStoresShareOneWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory.New()
		b := &countingWatch{Backend: mem}
		stores := []*idem.Store{open(t, b, nil), open(t, b, &idem.Options{Lease: time.Minute}), open(t, b, nil)}
		c := begin(t, stores[0], "k", payloadA)
		for _, s := range stores {
			go func() { _, _ = s.Do(context.Background(), "k", payloadA, returning(new(atomic.Int64), result1, nil)) }()
		}
		synctest.Wait()
		if n := b.watching.Load(); n != 1 {
			t.Errorf("%d watchers of one key in one process", n)
		}
		if err := stores[0].Complete(context.Background(), c, result1); err != nil {
			t.Error(err)
		}
	})
}

type countingWatch struct {
	*memory.Backend
	watching atomic.Int64
}

func (b *countingWatch) Watch(ctx context.Context, key, token string) error {
	b.watching.Add(1)
	defer b.watching.Add(-1)
	return b.Backend.Watch(ctx, key, token)
}

// In a transaction nothing is done until it commits: a completion that fails in
// it is no "done, but not recorded".
func TestBoundDoDoesNotSayDone(t *testing.T) {
	b := newFaulty(memory.New(), during(idem.Completed, 0, never))
	s := open(t, nil, nil).With(b)
	_, err := s.Do(context.Background(), "k", payloadA, returning(new(atomic.Int64), result1, nil))
	if errors.Is(err, idem.ErrNotRecorded) {
		t.Errorf("the transaction will be rolled back, and Do says %v", err)
	}
}

// A watcher that returns early, over a storage that works: asked in intervals.
func TestEarlyWatcherIsNoReasonToSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFaulty(memory.New(), nil)
		s := open(t, struct {
			*faulty
			idem.Watcher
		}{b, alwaysChanged{}}, &idem.Options{Lease: time.Hour})
		begin(t, s, "k", payloadA)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = s.Do(ctx, "k", payloadA, succeed)
		if n := b.count("Get"); n > 50 {
			t.Errorf("%d Gets in a second of waiting", n)
		}
	})
}

// RS-4: as long as the function runs its claim is extended, also after its
// caller has gone.
func TestHeartbeatOutlivesTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, nil, &idem.Options{Lease: lease, NoWait: true})
		ctx, hangUp := context.WithCancel(context.Background())
		_, err := s.Do(ctx, "k", payloadA, func(context.Context, *idem.Claim) (idem.Result, error) {
			hangUp()
			for range 10 {
				time.Sleep(lease / 2)
				if _, _, err := s.Begin(context.Background(), "k", payloadA); !errors.Is(err, idem.ErrInProgress) {
					t.Errorf("while the operation runs: %v", err)
				}
			}
			return result1, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// A storage that another process holds for a moment is worth another try when
// there is a result to record.
func TestCompletionWaitsForALockedStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &lockedOnce{Backend: memory.New()}
		out, err := open(t, b, nil).Do(context.Background(), "k", payloadA, succeed)
		if err != nil || !out.Result.Equal(result1) {
			t.Errorf("%+v, %v", out, err)
		}
	})
}

type lockedOnce struct {
	idem.Backend
	refused bool
}

func (b *lockedOnce) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	if new.Status == idem.Completed && !b.refused {
		b.refused = true
		return idem.Record{}, idem.NoEffect(idem.ErrLocked)
	}
	return b.Backend.Swap(ctx, key, old, new)
}
