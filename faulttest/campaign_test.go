package faulttest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testpg"
	"github.com/idem-go/idem/internal/testredis"
)

var (
	long   = flag.Bool("long", false, "twenty times as many histories")
	update = flag.Bool("update", false, "write the figures into docs/reliability.md")
)

func TestMain(m *testing.M) {
	if storage := os.Getenv(childEnv); storage != "" {
		if err := child(storage, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if path := os.Getenv(crashChildEnv); path != "" {
		if err := crashChild(path, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	goredis.SetLogger(silent{}) // the faults are on purpose
	code := m.Run()
	testredis.StopShared()
	testpg.Stop()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code == 0 && *update && !testing.Short() {
		if err := updateDoc("../docs/reliability.md"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// times returns how many histories a campaign has.
func times(n int) int {
	switch {
	case *long:
		return 20 * n
	case testing.Short():
		return max(1, n/10)
	}
	return n
}

// A campaign is many histories of one storage with one kind of faults.
type campaign struct {
	storage, faults string
	histories       int
	disturbed       bool // something has to happen to requests
	silent          bool // the client repeats what got no answer, and does not tell
	perform         func(t *testing.T, seed uint64) (*history, error)
}

// run performs the histories and checks each. A campaign in which too little
// happened has proved nothing and fails.
func (c campaign) run(t *testing.T) {
	seed := testenv.Seed(t)
	start := time.Now()
	var total figures
	violations := 0
	for i := range uint64(c.histories) {
		h, err := c.perform(t, seed+i)
		if h == nil {
			t.Fatal(err)
		}
		total.add(h.figures)
		if err != nil {
			t.Errorf("history %d: an answer that no call may get: %v", i, err)
			violations++
		}
		if verdict := h.check(); verdict != porcupine.Ok {
			violations++
			dir, err := h.keep()
			t.Errorf("history %d: no order of its %d calls explains all answers (%v); the keys in question are in %s (%v)", i, h.Calls, verdict, dir, err)
		}
	}
	t.Logf("%d histories, %d violations: %+v in %v", c.histories, violations, total, time.Since(start).Round(time.Millisecond))
	for _, least := range []struct {
		what      string
		n, wanted int
	}{
		{"calls", total.Calls, 1300 * c.histories},
		{"takeovers", total.Takeovers, few(50)},
		{"requests and answers that something happened to", total.Faults, c.leastFaults()},
		{"calls without an answer", total.Unknown, c.leastUnknown()},
	} {
		if least.n < least.wanted {
			t.Errorf("there were only %d %s, want %d", least.n, least.what, least.wanted)
		}
	}
	if !c.disturbed && total.Unknown > total.Calls/10 {
		t.Errorf("%d calls of %d got no answer from a storage that was not disturbed", total.Unknown, total.Calls)
	}
	report(c.storage, c.faults, total, violations)
}

func (c campaign) leastFaults() int {
	if !c.disturbed {
		return 0
	}
	return few(100)
}

func (c campaign) leastUnknown() int {
	if c.silent {
		return 0
	}
	return c.leastFaults()
}

// few returns the least number of something in a campaign.
func few(n int) int {
	if testing.Short() {
		return 1 // there are one or two histories
	}
	return n
}

// In memory the time of a history is virtual: callers that sleep for a day cost
// nothing, and clocks are exact.
var virtual = plan{workers: 50, keys: 200, rounds: 22, days: 2, lease: time.Second, patience: 20 * time.Second}

// What goes wrong on the way to a storage in memory.
var (
	slow  = faults{transit: 20 * time.Millisecond}
	lossy = faults{loseRequest: 10, loseReply: 10, delayRequest: 5, transit: 20 * time.Millisecond, delay: 2 * time.Second}
)

// inMemory performs one history of a storage in memory.
func inMemory(t *testing.T, f faults, seed uint64, b func(*rand.Rand) idem.Backend) (h *history, err error) {
	synctest.Test(t, func(*testing.T) {
		rnd := rand.New(rand.NewPCG(seed, 1<<32))
		l := newLine(b(rnd), f, rnd)
		h, err = perform(virtual, l, seed)
		h.Faults = l.wait()
	})
	return h, err
}

func TestMemory(t *testing.T) {
	for _, f := range []struct {
		name string
		faults
	}{{"none", slow}, {"requests and replies lost, or late", lossy}} {
		t.Run(f.name, func(t *testing.T) {
			campaign{
				storage: "memory", faults: f.name, histories: times(200), disturbed: f.loseReply > 0,
				perform: func(t *testing.T, seed uint64) (*history, error) {
					return inMemory(t, f.faults, seed, func(*rand.Rand) idem.Backend { return memory.New() })
				},
			}.run(t)
		})
	}
}
