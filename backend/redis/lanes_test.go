package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testredis"
)

// trips is a hook that counts round trips and holds them up until its gate is
// closed.
type trips struct {
	n     atomic.Int32
	begun chan struct{} // receives when a trip begins
	gate  chan struct{}
}

func (h *trips) hold() {
	h.n.Add(1)
	h.begun <- struct{}{}
	<-h.gate
}

func (h *trips) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (h *trips) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		h.hold()
		return next(ctx, cmd)
	}
}

func (h *trips) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		h.hold()
		return next(ctx, cmds)
	}
}

// Callers who come while a trip is under way share the next one, and each gets his
// own answer.
func TestCallersShareTrips(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	b := newBackend(t, client, nil)
	h := &trips{begun: make(chan struct{}, 1000), gate: make(chan struct{})}
	client.AddHook(h)
	ctx := within(t, time.Minute)
	const callers = 200 // more than fit into one script
	var all sync.WaitGroup
	call := func(i int) {
		key := fmt.Sprintf("k%d", i)
		r := example()
		r.Token = fmt.Sprintf("a%d.1", i)
		got, err := b.Swap(ctx, key, "", r)
		if err != nil || got.Token != r.Token {
			t.Errorf("Swap %d: %v, %v", i, got, err)
		}
	}
	for i := range lanesUsual {
		all.Go(func() { call(i) })
		<-h.begun
	}
	for i := lanesUsual; i < callers; i++ {
		all.Go(func() { call(i) })
	}
	testredis.Until(t, "all the others are in the queue", func() bool {
		b.lanes.mu.Lock()
		defer b.lanes.mu.Unlock()
		// Those who wait for long start more lanes, which take what there is.
		return len(b.lanes.queue) == callers-lanesUsual || h.n.Load() > lanesUsual || b.lanes.running > lanesUsual
	})
	close(h.gate)
	all.Wait()
	if n := h.n.Load(); n > lanesAside+lanesUsual {
		t.Errorf("%d callers took %d trips", callers, n)
	}
	for i := range callers {
		if got, err := b.Get(ctx, fmt.Sprintf("k%d", i)); err != nil || got.Token != fmt.Sprintf("a%d.1", i) {
			t.Errorf("the record %d is %v, %v", i, got, err)
		}
	}
}

// Whoever gives up in the queue has no effect, and does not harm the others.
func TestLeavingTheQueue(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	b := newBackend(t, client, nil)
	var taken []*request
	ctx := t.Context()
	for range lanesUsual { // all lanes are busy
		if !b.lanes.push(&request{taken: true}) {
			t.Fatal("there is no lane")
		}
	}
	b.lanes.queue = nil
	gone, cancel := context.WithCancelCause(ctx)
	left := make(chan error)
	go func() {
		_, err := b.Swap(gone, "left", "", example())
		left <- err
	}()
	testredis.Until(t, "it is in the queue", func() bool {
		b.lanes.mu.Lock()
		defer b.lanes.mu.Unlock()
		if len(b.lanes.queue) == 1 {
			taken = append(taken, b.lanes.queue...)
		}
		return len(taken) > 0 || b.lanes.running > lanesUsual
	})
	if len(taken) == 0 {
		t.Skip("not tested: the machine is too slow to leave in time")
	}
	hungUp := errors.New("the caller has hung up")
	cancel(hungUp)
	err := <-left
	if !errors.Is(err, context.Canceled) || !errors.Is(err, hungUp) {
		t.Errorf("Swap that gave up: %v, want the context's error and its cause", err)
	}
	if noEffect(t, err) {
		b.drive(nil) // it finds what was left behind
		if r, err := b.Get(ctx, "left"); err != nil || r.Token != "" {
			t.Errorf("the Swap that gave up without effect has stored %v, %v", r, err)
		}
	}
}

func taken(batch []*request, _ bool) int { return len(batch) }

// What is queued while much is on its way waits until it is a share of that, or
// until a lane comes back or is set aside.
func TestLanesCarryShares(t *testing.T) {
	var l lanes
	push := func(n int, want bool) {
		t.Helper()
		for i := range n {
			if starts := l.push(&request{}); starts != (want && i == n-1) {
				t.Fatalf("request %d of %d starts a lane: %v", i+1, n, starts)
			}
		}
	}
	take := func(ln *lane, want int, rest bool) {
		t.Helper()
		if batch, left := l.take(ln, nil); len(batch) != want || left != rest {
			t.Fatalf("%d requests are taken, want %d; some are left: %v", len(batch), want, left)
		}
	}
	first, second, third := &lane{}, &lane{}, &lane{}
	push(1, true) // there is nothing on its way
	for range 5 {
		l.queue = append(l.queue, &request{})
	}
	take(first, 6, false)
	push(2, true) // the second one does
	take(second, 2, false)
	push(1, false)
	take(second, 0, true) // the first one will take it
	take(first, 1, false)
	push(1, true)
	take(third, 1, false)
	first.aside = true // as it is when it hangs
	l.running--
	push(1, true) // only the third one counts
	if l.running != 2 || len(l.busy) != 2 {
		t.Errorf("%d lanes run and %d are busy, want 2", l.running, len(l.busy))
	}
}

// A batch is bounded, in number and in bytes; what is larger goes alone.
func TestBatchesAreBounded(t *testing.T) {
	var l lanes
	ln := &lane{}
	for range maxBatch + 10 {
		l.push(&request{})
	}
	if n := taken(l.take(ln, nil)); n != maxBatch {
		t.Errorf("the first batch has %d requests, want %d", n, maxBatch)
	}
	if n := taken(l.take(ln, nil)); n != 10 {
		t.Errorf("the second batch has %d requests, want 10", n)
	}
	for range 5 {
		l.push(&request{encoded: bytes.Repeat([]byte("x"), maxBatchBytes)})
	}
	for range 5 {
		if n := taken(l.take(ln, nil)); n != 1 {
			t.Errorf("a batch of large records has %d, want 1", n)
		}
	}
	l.running = 1
	ln.aside = false
	if n := taken(l.take(ln, nil)); n != 0 || l.running != 0 {
		t.Errorf("the lane has not ended: %d requests, %d lanes", n, l.running)
	}
}

// A mix of large and small records in both directions does not get stuck.
func TestLargeRecordsTogether(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	s := newStore(t, newBackend(t, client, nil), nil)
	ctx := within(t, time.Minute)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			key := fmt.Sprintf("k%d", i)
			body := bytes.Repeat([]byte{byte(i)}, 1<<(i+4)) // up to 512 KiB
			for replay := range 3 {
				out, err := s.Do(ctx, key, fp, func(context.Context, *idem.Claim) (idem.Result, error) {
					return idem.Result{Body: body}, nil
				})
				if err != nil || !bytes.Equal(out.Result.Body, body) || out.Replayed != (replay > 0) {
					t.Errorf("Do of %d bytes: %d bytes, replayed %v, %v", len(body), len(out.Result.Body), out.Replayed, err)
				}
			}
		})
	}
	all.Wait()
}
