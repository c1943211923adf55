package conformancetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

// Where time cannot be moved, an hour of a case is 18, 36 or 180 ms.
var scales = []int64{200_000, 100_000, lastScale}

const lastScale = 20_000

// check runs the case and reports to t. A case that was overtaken by its own
// clock proves nothing either way; it is run again with more time.
func (c testCase) check(t testing.TB, h Harness) {
	t.Helper()
	for _, scale := range scales {
		if !c.try(t, h, scale) {
			return
		}
	}
	t.Errorf("the storage is too slow, or the machine too busy, to tell before from after with leases of seconds")
}

// try runs the case once and reports whether it has to be run again.
func (c testCase) try(t testing.TB, h Harness, scale int64) (again bool) {
	t.Helper()
	h.limits = h.limits.withDefaults()
	if why := c.needs.missing(h, nil); why != "" {
		t.Skip(why)
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.limits.whole)
	defer cancel()
	e := &env{t: t, ctx: ctx, h: h, rule: c.rule, raw: h.New(t), over: make(chan struct{})}
	if why := c.needs.missing(h, e.raw); why != "" {
		t.Skip(why)
	}
	e.clock = newClock(e, c.timed, scale)
	e.b = e.clock.view(e.raw)

	done := make(chan struct{})
	go func() {
		defer close(done)
		c.run(e)
	}()
	// Whoever keeps to his context has ended by then.
	grace := time.AfterFunc(h.limits.whole+h.limits.prompt, func() {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		e.errorf("the case hangs: it did not end within %v\n%s", h.limits.whole+h.limits.prompt, stacks)
		e.end()
	})
	defer grace.Stop()
	select {
	case <-done:
	case <-e.over:
	}
	e.end()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.again && !e.failed
}

// An env is what a case works with: the backend and short forms of its calls,
// which end the case if the storage fails.
type env struct {
	t     testing.TB
	h     Harness
	ctx   context.Context // done when the case has used up its time
	rule  string
	raw   idem.Backend // as the Harness made it
	b     idem.Backend // raw, or raw with faster time
	clock *clock

	over chan struct{} // closed by end

	mu     sync.Mutex
	isOver bool
	failed bool
	again  bool
}

// end makes the case deaf to what its goroutines report from now on: the test
// is over, and its T must not be used any more.
func (e *env) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.isOver {
		e.isOver = true
		close(e.over)
	}
}

// errorf reports a fault, with the rule that it breaks.
func (e *env) errorf(format string, args ...any) {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.isOver {
		return
	}
	if e.clock.late() {
		e.again = true
		return
	}
	e.failed = true
	e.t.Errorf("%s\n\tthe rule: %s", fmt.Sprintf(format, args...), e.rule)
}

// fatalf reports a fault and ends the goroutine that calls it.
func (e *env) fatalf(format string, args ...any) {
	e.t.Helper()
	e.errorf(format, args...)
	runtime.Goexit()
}

func (e *env) logf(format string, args ...any) {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.isOver {
		e.t.Logf(format, args...)
	}
}

// inconclusive ends the case: real time ran past what it was to look at.
func (e *env) inconclusive() {
	e.mu.Lock()
	e.again = true
	e.mu.Unlock()
	runtime.Goexit()
}

// live ends the goroutine of a case whose test is over.
func (e *env) live() {
	e.mu.Lock()
	over := e.isOver
	e.mu.Unlock()
	if over {
		runtime.Goexit()
	}
}

// peer returns another handle on the storage, or the same one if the Harness
// has no other; the case that is about peers needs Harness.Peer.
func (e *env) peer() idem.Backend {
	e.live()
	if e.h.Peer == nil {
		return e.b
	}
	return e.clock.view(e.h.Peer(e.t, e.raw))
}

// handles returns n handles on the storage, the first of them e.b.
func (e *env) handles(n int) []idem.Backend {
	hs := []idem.Backend{e.b}
	for len(hs) < n {
		hs = append(hs, e.peer())
	}
	return hs
}

// inTx runs fn in a transaction.
func (e *env) inTx(fn func(tx idem.Backend) error) error {
	e.live()
	return e.h.InTx(e.t, e.raw, func(tx idem.Backend) error { return fn(e.clock.view(tx)) })
}

// get returns what b has stored under key.
func (e *env) get(b idem.Backend, key string) idem.Record {
	e.t.Helper()
	r, err := b.Get(e.ctx, key)
	if err != nil {
		e.fatalf("Get(%q) failed: %v", key, err)
	}
	if r.Token != "" && r.Expired() {
		e.errorf("Get(%q) returned %v, which has outlived its TTL of %v", key, show(r), r.TTL)
	}
	return r
}

// swap returns what b has stored under key after the Swap.
func (e *env) swap(b idem.Backend, key, old string, r idem.Record) idem.Record {
	e.t.Helper()
	got, err := b.Swap(e.ctx, key, old, r)
	if err != nil {
		e.fatalf("Swap(%q, %q, %v) failed: %v", key, old, show(r), err)
	}
	return got
}

// put stores r under key, where there is nothing, and returns it.
func (e *env) put(key string, r idem.Record) idem.Record {
	e.t.Helper()
	e.want("Swap of an absent key", e.swap(e.b, key, "", r), r)
	return r
}

func (e *env) sweep(limit int) int {
	e.t.Helper()
	n, err := e.b.Sweep(e.ctx, limit)
	if err != nil {
		e.fatalf("Sweep(%d) failed: %v", limit, err)
	}
	return n
}

// want reports a record that is not the wanted one, its age aside.
func (e *env) want(what string, got, want idem.Record) {
	e.t.Helper()
	if d := diff(got, want); d != "" {
		e.errorf("%s: %s\n\tgot:  %v\n\twant: %v", what, d, show(got), show(want))
	}
}

// wantStored reports if key does not have the wanted record.
func (e *env) wantStored(key string, want idem.Record) {
	e.t.Helper()
	e.want(fmt.Sprintf("Get(%q)", short(key)), e.get(e.b, key), want)
}

// promptly runs fn and reports if it does not return; it is then left behind.
func (e *env) promptly(what string, fn func()) {
	e.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	limit := time.NewTimer(e.h.limits.prompt)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
		e.fatalf("%s did not return within %v", what, e.h.limits.prompt)
	}
}

// together runs fn n times at once, all set off by the same signal.
func together(n int, fn func(i int)) {
	var ready, all sync.WaitGroup
	start := make(chan struct{})
	ready.Add(n)
	for i := range n {
		all.Go(func() {
			ready.Done()
			<-start
			fn(i)
		})
	}
	ready.Wait()
	close(start)
	all.Wait()
}

// rounds returns n, or a quarter of it with -short.
func rounds(n int) int {
	if testing.Short() {
		return max(1, n/4)
	}
	return n
}

// random returns a source of random numbers and logs how to get it again.
func (e *env) random() *rand.Rand {
	e.t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("IDEM_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			e.fatalf("IDEM_SEED=%q is not a number", s)
		}
		seed = n
	}
	e.logf("IDEM_SEED=%d repeats this run", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
