package idemtest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/conformancetest"
)

// The decorators are backends as good as those they decorate. The Clock is how
// the suite moves time.
func TestDecoratorsConform(t *testing.T) {
	t.Parallel()
	clocks := make(map[idem.Backend]*Clock)
	conformancetest.Run(t, conformancetest.Harness{
		New: func(testing.TB) idem.Backend {
			aged, clock := Aging(memory.New())
			b, _ := Faulty(aged)
			clocks[b] = clock
			return b
		},
		Peer:    func(_ testing.TB, b idem.Backend) idem.Backend { return b },
		Advance: func(_ testing.TB, b idem.Backend, d time.Duration) { clocks[b].Advance(d) },
	})
}

// What a backend can do besides, its decorated form can do too, and no more.
func TestDecoratorsKeepTheOptionalParts(t *testing.T) {
	type (
		l = idem.Lister
		w = idem.Watcher
		p = idem.Prober
	)
	m := memory.New()
	for _, b := range []idem.Backend{
		struct{ idem.Backend }{m},
		struct {
			idem.Backend
			l
		}{m, m},
		struct {
			idem.Backend
			w
		}{m, m},
		struct {
			idem.Backend
			p
		}{m, always{}},
		struct {
			idem.Backend
			l
			p
		}{m, m, always{}},
		struct {
			idem.Backend
			w
			p
		}{m, m, always{}},
		struct {
			idem.Backend
			l
			w
			p
		}{m, m, m, always{}},
		m,
	} {
		aged, _ := Aging(b)
		failing, _ := Faulty(aged)
		_, lists := b.(idem.Lister)
		_, watches := b.(idem.Watcher)
		_, probes := b.(idem.Prober)
		if _, ok := failing.(idem.Lister); ok != lists {
			t.Errorf("%T: a Lister: %v, want %v", b, ok, lists)
		}
		if _, ok := failing.(idem.Watcher); ok != watches {
			t.Errorf("%T: a Watcher: %v, want %v", b, ok, watches)
		}
		if _, ok := failing.(idem.Prober); ok != probes {
			t.Errorf("%T: a Prober: %v, want %v", b, ok, probes)
		}
	}
}

// always is a Prober that never knows.
type always struct{}

func (always) Probe(string) bool { return true }

func record(token string, status idem.Status) idem.Record {
	return idem.Record{Token: token, Status: status, Attempt: 1, Lease: 30 * time.Second, TTL: 25 * time.Hour}
}

func TestFaults(t *testing.T) {
	ctx := context.Background()
	b, faults := Faulty(memory.New())
	stored := func(key string) bool {
		t.Helper()
		faults.Script(nil)
		r, err := b.Get(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		return r.Token != ""
	}
	for _, c := range []struct {
		name     string
		fault    Fault
		executed bool
	}{{"lost", Lost, false}, {"reply lost", ReplyLost, true}, {"refused", Refused, false}} {
		faults.All(c.fault)
		r, err := b.Swap(ctx, c.name, "", record("a.1", idem.InProgress))
		if !errors.Is(err, ErrInjected) || r.Token != "" {
			t.Errorf("%s: %v, %v", c.name, r, err)
		}
		if got := stored(c.name); got != c.executed {
			t.Errorf("%s: executed is %v, want %v", c.name, got, c.executed)
		}
	}
	fails := func() (list []bool) {
		for range 4 {
			_, err := b.Get(ctx, "k")
			list = append(list, err != nil)
		}
		return list
	}
	faults.Nth(3, Lost)
	if got := fails(); !slices.Equal(got, []bool{false, false, true, false}) {
		t.Errorf("Nth(3): %v", got)
	}
	faults.On("Swap", Lost)
	if got := fails(); !slices.Equal(got, []bool{false, false, false, false}) {
		t.Errorf("On(Swap): Get fails: %v", got)
	}
	if _, err := b.Swap(ctx, "k", "", record("a.1", idem.InProgress)); err == nil {
		t.Error("On(Swap): Swap does not fail")
	}
	faults.All(Lost)
	if _, err := b.Sweep(ctx, 1); err == nil {
		t.Error("Sweep does not fail")
	}
	if _, _, err := b.(idem.Lister).List(ctx, idem.Query{}); err == nil {
		t.Error("List does not fail")
	}
	if err := b.(idem.Watcher).Watch(ctx, "k", ""); err == nil {
		t.Error("Watch does not fail")
	}
}

func TestFaultsRecordCalls(t *testing.T) {
	ctx := context.Background()
	b, faults := Faulty(memory.New())
	store, err := idem.New(b, &idem.Options{Scope: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	faults.Nth(2, ReplyLost)
	_, err = store.Do(ctx, "k", idem.Fingerprint{}, func(context.Context, *idem.Claim) (idem.Result, error) { return idem.Result{}, nil })
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for i, c := range faults.Calls() {
		if c.N != i+1 {
			t.Errorf("call %d has the number %d", i+1, c.N)
		}
		said = append(said, c.Method+" "+c.Record.Status.String()+" "+c.Key)
		if (c.Fault.Err != nil) != (i == 1) {
			t.Errorf("call %d has the fault %v", c.N, c.Fault)
		}
	}
	want := "Swap in-progress orders\x1fk, Swap completed orders\x1fk, Swap completed orders\x1fk"
	if got := strings.Join(said, ", "); got != want {
		t.Errorf("the calls were %q, want %q", got, want)
	}
}

// A lease and a retention run out without anybody waiting for them: no time
// passes in the bubble.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ctx := context.Background()
		b, clock := Aging(memory.New())
		store, err := idem.New(b, nil)
		if err != nil {
			t.Fatal(err)
		}
		claim, _, _ := store.Begin(ctx, "k", idem.Fingerprint{})
		clock.Advance(29 * time.Second)
		_, _, err = store.Begin(ctx, "k", idem.Fingerprint{})
		if busy, _ := errors.AsType[*idem.Error](err); !errors.Is(err, idem.ErrInProgress) || busy.RetryAfter() != time.Second {
			t.Errorf("after 29 s of a lease of 30 s: %v", err)
		}
		if err := store.Extend(ctx, claim); err != nil {
			t.Fatal(err)
		}
		clock.Advance(29 * time.Second)
		if _, _, err = store.Begin(ctx, "k", idem.Fingerprint{}); !errors.Is(err, idem.ErrInProgress) {
			t.Errorf("the extended lease: %v", err)
		}
		clock.Lapse()
		lapsed, _, err := b.(idem.Lister).List(ctx, idem.Query{Lapsed: true})
		if err != nil || len(lapsed) != 1 {
			t.Errorf("after Lapse %d claims are lapsed, %v", len(lapsed), err)
		}
		second, _, err := store.Begin(ctx, "k", idem.Fingerprint{})
		if err != nil || !second.Takeover || second.Attempt != 2 {
			t.Fatalf("after Lapse: %+v, %v", second, err)
		}
		if err := store.Complete(ctx, claim, idem.Result{}); !errors.Is(err, idem.ErrLost) {
			t.Errorf("Complete of the attempt whose lease is over: %v", err)
		}
		if err := store.Complete(ctx, second, idem.Result{Code: 7}); err != nil {
			t.Error(err)
		}
		clock.Lapse() // only claims have a lease
		clock.Advance(24*time.Hour - 1)
		if _, done, err := store.Begin(ctx, "k", idem.Fingerprint{1}); done != nil || !errors.Is(err, idem.ErrMismatch) {
			t.Errorf("just before the retention ends: %v, %v", done, err)
		}
		clock.Advance(1)
		if r, err := store.Lookup(ctx, "k"); r.Token != "" || err != nil {
			t.Errorf("after the retention: %v, %v", r, err)
		}
		if all, _, err := b.(idem.Lister).List(ctx, idem.Query{}); len(all) != 0 || err != nil {
			t.Errorf("after the retention %d records are listed, %v", len(all), err)
		}
		if c, _, err := store.Begin(ctx, "k", idem.Fingerprint{1}); c == nil || c.Takeover {
			t.Errorf("after the retention the key is not free: %+v, %v", c, err)
		}
		if time.Since(start) != 0 {
			t.Errorf("%v have passed", time.Since(start))
		}
	})
}

// A record that is expired by the Clock alone is not replaced by its token.
func TestClockExpiredReplace(t *testing.T) {
	ctx := context.Background()
	b, clock := Aging(memory.New())
	if _, err := b.Swap(ctx, "k", "", record("a.1", idem.InProgress)); err != nil {
		t.Fatal(err)
	}
	clock.Advance(25 * time.Hour)
	if r, err := b.Swap(ctx, "k", "a.1", record("a.2", idem.Completed)); r.Token != "" || err != nil {
		t.Errorf("Swap of an expired record by its token: %v, %v", r, err)
	}
	if r, err := b.Swap(ctx, "k", "", record("b.1", idem.Completed)); r.Token != "b.1" || r.Age >= 25*time.Hour || err != nil {
		t.Errorf("Swap of the free key: %v, %v", r, err)
	}
	if r, err := b.Swap(ctx, "k", "b.1", record("b.2", idem.Completed)); r.Token != "b.2" || err != nil {
		t.Errorf("Swap by the new token: %v, %v", r, err)
	}
}

// Whoever waits for an attempt notices that its lease was made to run out.
func TestClockWakesWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		b, clock := Aging(memory.New())
		store, err := idem.New(b, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		if _, _, err := store.Begin(ctx, "k", idem.Fingerprint{}); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- store.Wait(ctx, "k") }()
		synctest.Wait()
		clock.Lapse()
		if err := <-done; err != nil || time.Since(start) > time.Second {
			t.Errorf("Wait returned %v after %v", err, time.Since(start))
		}
	})
}

func TestBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBarrier(3)
		ctx, cancel := context.WithCancel(context.Background())
		for range 2 { // it can be used again
			through := make(chan error, 3)
			for n := range 3 {
				synctest.Wait()
				if len(through) > 0 {
					t.Errorf("%d of 3 have come, and %d are through", n, len(through))
				}
				go func() { through <- b.Wait(ctx) }()
			}
			for range 3 {
				if err := <-through; err != nil {
					t.Error(err)
				}
			}
		}
		gone := make(chan error)
		go func() { gone <- b.Wait(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("Wait with a context that ends: %v", err)
		}
		// The one who has gone does not count.
		through := make(chan error, 3)
		for range 2 {
			go func() { through <- b.Wait(context.Background()) }()
		}
		synctest.Wait()
		if len(through) > 0 {
			t.Error("a barrier for 3 opened for 2")
		}
		go func() { through <- b.Wait(context.Background()) }()
		for range 3 {
			<-through
		}
	})
}
