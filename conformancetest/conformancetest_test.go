package conformancetest

import (
	"context"
	"flag"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// The suite leaves no goroutine behind, whatever a backend does.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memoryHarness waits instead of moving a clock.
var memoryHarness = Harness{
	New:  func(testing.TB) idem.Backend { return memory.New() },
	Peer: func(_ testing.TB, b idem.Backend) idem.Backend { return b },
}

func TestMemory(t *testing.T) { Run(t, memoryHarness) }

// A backend without a fault has none, with either kind of transaction, and
// nothing of it is left untested.
func TestFake(t *testing.T) { Run(t, harness("")) }

func TestFakeOptimistic(t *testing.T) {
	for _, g := range groups {
		for _, c := range g.cases {
			if c.needs == needInTx {
				t.Run(g.name+"/"+c.name, func(t *testing.T) { c.check(t, harness("", optimistic)) })
			}
		}
	}
}

func TestFakeIsTestedWhole(t *testing.T) {
	h := harness("")
	b := h.New(t)
	for _, g := range groups {
		for _, c := range g.cases {
			// TestProber has a backend of its own.
			if why := c.needs.missing(h, b); why != "" && c.needs != needProber {
				t.Errorf("%s/%s: %s", g.name, c.name, why)
			}
		}
	}
}

// What cannot be tested is skipped, and says for want of what.
func TestSkipsByName(t *testing.T) {
	bare := Harness{New: func(testing.TB) idem.Backend { return struct{ idem.Backend }{memory.New()} }}
	skipped := make(map[need]int)
	for _, g := range groups {
		for _, c := range g.cases {
			if c.needs == "" {
				continue
			}
			skipped[c.needs]++
			r := verdict(t, c, bare)
			if r.failed || !strings.HasPrefix(r.skipped, "not tested: ") || !strings.Contains(r.skipped, string(c.needs)) {
				t.Errorf("%s/%s was skipped with %q, want the name of %s", g.name, c.name, r.skipped, c.needs)
			}
		}
	}
	for _, n := range []need{needPeer, needAdvance, needInTx, needBreak, needWrites, needLister, needWatcher, needProber, needBatcher} {
		if skipped[n] == 0 {
			t.Errorf("no case needs %s", n)
		}
	}
}

// A case that hangs fails, with the stacks that tell where.
func TestHangingCaseFails(t *testing.T) {
	hang := make(chan struct{})
	h := memoryHarness
	h.limits = limits{whole: 20 * time.Millisecond, prompt: 20 * time.Millisecond}
	r := verdict(t, testCase{name: "Hang", rule: "It ends.", run: func(*env) { <-hang }}, h)
	close(hang)
	text := strings.Join(r.said, "\n")
	if !r.failed || !strings.Contains(text, "TestHangingCaseFails") || !strings.Contains(text, "It ends.") {
		t.Errorf("a case that hangs gave: %v, %s", r.failed, text)
	}
}

// What a goroutine of a case reports after the end is not reported to a test
// that is over.
func TestLateReportsAreDropped(t *testing.T) {
	var e *env
	r := verdict(t, testCase{name: "Late", rule: "Nothing.", run: func(env *env) { e = env }}, memoryHarness)
	e.errorf("late")
	if r.failed {
		t.Errorf("a report after the end was counted: %v", r.said)
	}
}

// A case that real time has overtaken is tried again, and is no pass.
func TestInconclusiveIsNoPass(t *testing.T) {
	tries := 0
	r := verdict(t, testCase{name: "Slow", rule: "It is fast.", timed: true, run: func(e *env) {
		tries++
		e.inconclusive()
	}}, memoryHarness)
	if !r.failed || tries != 3 {
		t.Errorf("after %d tries a case that was inconclusive had failed: %v", tries, r.failed)
	}
}

// A hasty backend is one in which time passes faster, and nothing else.
func TestHasty(t *testing.T) {
	ctx := context.Background()
	for _, d := range []time.Duration{0, 1, time.Second, time.Hour, 100 * 365 * 24 * time.Hour, 1<<63 - 1} {
		h := &hasty{memory.New(), 200_000}
		r := newRecord(idem.InProgress)
		r.Lease, r.TTL = d, max(d, time.Hour)
		got, err := h.Swap(ctx, "k", "", r)
		if err != nil {
			t.Fatal(err)
		}
		if got.Lease < d || got.Lease/2 > max(d, 200_000) {
			t.Errorf("a lease of %v came back as %v", d, got.Lease)
		}
		if d%time.Second == 0 && diff(got, r) != "" {
			t.Errorf("a lease of %v: %s", d, diff(got, r))
		}
	}
}

// Bench measures and its operations succeed.
func TestBench(t *testing.T) {
	benchtime := flag.Lookup("test.benchtime").Value
	before := benchtime.String()
	defer benchtime.Set(before)
	if err := benchtime.Set("20x"); err != nil {
		t.Fatal(err)
	}
	failed := true
	testing.Benchmark(func(b *testing.B) {
		Bench(b, memoryHarness)
		failed = b.Failed()
	})
	if failed {
		t.Error("Bench failed")
	}
}

func BenchmarkMemory(b *testing.B) { Bench(b, memoryHarness) }
