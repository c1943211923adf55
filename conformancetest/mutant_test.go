package conformancetest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// mutants are backends with one fault each, and the cases that have to find it.
var mutants = []struct {
	fault    fault
	caughtBy string // cases, separated by blanks; each has to fail
	options  []func(*storage)
}{
	{fault: "looks first and writes later", caughtBy: "Backend/ConcurrentCreate Backend/ConcurrentReplace Backend/PeerCreate Batcher/OneOwner Store/CL-1/ManyCallers", options: options(optimistic)},
	{fault: "ignores the old token", caughtBy: "Backend/ReplaceConflict Model/Random Store/LS-3/StaleHolder"},
	{fault: "overwrites", caughtBy: "Backend/CreateConflict Backend/ConcurrentCreate Store/CL-3/FinishedStays Store/PE-9/InFlight"},
	{fault: "creates with any token", caughtBy: "Backend/ReplaceAbsent Backend/ExpiredReplace"},
	{fault: "refuses a repeated Swap", caughtBy: "Backend/Repeat Model/Random Store/PE-5/ClaimReplyLost"},
	{fault: "writes a repeated Swap again", caughtBy: "Backend/RepeatLate"},
	{fault: "returns new though it did not swap", caughtBy: "Backend/Returns Backend/ConcurrentCreate"},
	{fault: "returns the record before", caughtBy: "Backend/Returns"},
	{fault: "touches the record in the way", caughtBy: "Backend/RefusedSwap Backend/Reading Store/LS-1/CrashAndTakeover"},
	{fault: "writes a refused Swap", caughtBy: "Backend/RefusedSwapWrites"},
	{fault: "keeps what new leaves out", caughtBy: "Backend/Whole"},
	{fault: "merges meta", caughtBy: "Backend/Whole"},
	{fault: "keeps what has expired", caughtBy: "Backend/WholeAfterExpiry"},

	{fault: "fails for what is absent", caughtBy: "Backend/Absent"},
	{fault: "fails on a conflict", caughtBy: "Backend/Absent Store/OP-4/WaiterGivesUp"},
	{fault: "drops binary meta", caughtBy: "Backend/RoundTrip Backend/RoundTripRandom Store/RS-1/Results"},
	{fault: "drops empty results", caughtBy: "Backend/RoundTrip"},
	{fault: "stores floats", caughtBy: "Backend/RoundTrip"},
	{fault: "stores milliseconds", caughtBy: "Backend/RoundTrip Backend/RoundTripRandom"},
	{fault: "loses results", caughtBy: "Backend/RoundTrip Backend/Create Store/RS-1/Results Store/Do/OneRuns"},
	{fault: "forgets the fingerprint", caughtBy: "Store/KF-1/SamePayload Store/PE-9/InFlight"},
	{fault: "forgets the checkpoint", caughtBy: "Store/LS-1/CrashAndTakeover Store/LS-6/Reclaim"},
	{fault: "loses claims", caughtBy: "Store/LS-3/StaleHolder"},
	{fault: "shares what it is given", caughtBy: "Backend/SharesIn"},
	{fault: "shares what callers have given who left", caughtBy: "Backend/SharesInOnTheWay"},
	{fault: "shares what it returns", caughtBy: "Backend/SharesOut"},
	{fault: "reads from a cache", caughtBy: "Backend/Peer"},
	{fault: "folds case", caughtBy: "Backend/Keys Backend/KeyPatterns Store/PE-8/HostileKeys"},
	{fault: "trims keys", caughtBy: "Backend/Keys Backend/KeyPatterns Backend/KeyCharacters"},
	{fault: "normalises keys", caughtBy: "Backend/Keys"},
	{fault: "cuts keys", caughtBy: "Backend/Keys Store/PE-8/LongestKeys"},
	{fault: "takes keys for patterns", caughtBy: "Backend/Keys Backend/KeyPatterns"},

	{fault: "returns expired records", caughtBy: "Backend/ExpiredGet Backend/Expiry"},
	{fault: "lets expired records block", caughtBy: "Backend/ExpiredCreate Backend/ExpiredRace Batcher/Expired"},
	{fault: "expires too late", caughtBy: "Backend/Expiry", options: options(frozen)},
	{fault: "expires with the lease", caughtBy: "Backend/ExpiryNotLease"},
	{fault: "adds up times that overflow", caughtBy: "Backend/ExpiryLong"},
	{fault: "takes short times for no limit", caughtBy: "Backend/ExpiryShort"},
	{fault: "counts from the first write", caughtBy: "Backend/AgeRestarts Backend/ExpiryRestarts Store/LS-4/Extend Store/RT-4/FromCompletion"},
	{fault: "believes the caller's age", caughtBy: "Backend/AgeIgnored"},
	{fault: "makes records younger", caughtBy: "Backend/Reading Store/RT-4/FromCompletion"},
	{fault: "lets ages be negative", caughtBy: "Backend/ClockSetBack"},

	{fault: "sweeps lapsed claims", caughtBy: "Backend/SweepLive Backend/ExpiryNotLease Store/RT-1/SweepBesideClaims Store/LS-6/Hold"},
	{fault: "sweeps what was expired before", caughtBy: "Backend/SweepRace Store/PE-4/SweepBesideReclaims"},
	{fault: "sweeps without a limit", caughtBy: "Backend/SweepLimit"},
	{fault: "takes no limit for no end", caughtBy: "Backend/SweepNone"},
	{fault: "counts one too many", caughtBy: "Backend/SweepCount Backend/SweepLimit"},
	{fault: "sweeps in a batch only", caughtBy: "Backend/SweepAll"},
	{fault: "fails on an empty storage", caughtBy: "Backend/SweepEmpty"},

	{fault: "ignores the context", caughtBy: "Backend/ContextDone Backend/ContextDoneUnchanged"},
	{fault: "loses the context's error", caughtBy: "Backend/ContextDone"},
	{fault: "writes although it was cancelled", caughtBy: "Backend/ContextDoneUnchanged"},
	{fault: "hides a failure", caughtBy: "Backend/Broken Store/FL-4/StorageDown"},

	{fault: "writes through transactions", caughtBy: "Tx/Rollback Tx/Commit StoreTx/EverythingInOne StoreTx/CompleteInTx StoreTx/CompleteLost"},
	{fault: "hides a transaction's own Swaps", caughtBy: "Tx/OwnSwaps StoreTx/EverythingInOne StoreTx/Do"},
	{fault: "breaks a transaction by a refused Swap", caughtBy: "Tx/RefusedSwap StoreTx/KF-1/OtherPayload"},
	{fault: "commits in spite of a race", caughtBy: "Tx/LostRace Tx/Race StoreTx/DoTx/OneRuns", options: options(optimistic)},

	{fault: "skips at the page's end", caughtBy: "Lister/All"},
	{fault: "lists one too many", caughtBy: "Lister/Limit"},
	{fault: "ends at an empty page", caughtBy: "Lister/End"},
	{fault: "has a cursor at the end", caughtBy: "Lister/All"},
	{fault: "starts again at a bad cursor", caughtBy: "Lister/Cursor"},
	{fault: "lists expired records", caughtBy: "Lister/Expired"},
	{fault: "lists records without meta", caughtBy: "Lister/Records"},
	{fault: "lists records without age", caughtBy: "Lister/Age"},
	{fault: "lists any prefix", caughtBy: "Lister/Prefix"},
	{fault: "lists prefixes of any case", caughtBy: "Lister/Prefix"},
	{fault: "lists any status", caughtBy: "Lister/Status"},
	{fault: "lists what is not lapsed", caughtBy: "Lister/Lapsed Store/LS-6/ListLapsed"},

	{fault: "watches for ever", caughtBy: "Watcher/Change Watcher/ChangeByPeer Watcher/Many Store/Do/Waiters"},
	{fault: "watches what has changed already", caughtBy: "Watcher/AtOnce"},
	{fault: "watches without a context", caughtBy: "Watcher/ContextEnds Watcher/ContextDone"},
	{fault: "hides the context's end", caughtBy: "Watcher/ContextEnds"},

	{fault: "answers many in the order of their keys", caughtBy: "Batcher/Each Batcher/Sizes"},
	{fault: "answers too few of many", caughtBy: "Batcher/Sizes"},
	{fault: "swaps all of many or none", caughtBy: "Batcher/Each Batcher/Refused"},
	{fault: "stops many at the first refusal", caughtBy: "Batcher/Each Batcher/Refused"},
	{fault: "judges many by what was there before", caughtBy: "Batcher/SameKey"},
	{fault: "repeats nothing of many", caughtBy: "Batcher/Repeat Store/Many/ReplyLost"},
	{fault: "locks many keys as they come", caughtBy: "Batcher/Circle"},
	{fault: "swaps many without a context", caughtBy: "Batcher/ContextDone"},
	{fault: "writes many through transactions", caughtBy: "Tx/Batch StoreTx/Many"},
}

func options(o ...func(*storage)) []func(*storage) { return o }

func frozen(s *storage)     { s.frozen = true }
func optimistic(s *storage) { s.optimistic = true }

// The suite finds each of the faults, by the case that is there for it.
func TestMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(string(m.fault), " ", "-"), func(t *testing.T) {
			t.Parallel()
			h := harness(m.fault, m.options...)
			h.limits = limits{whole: 4 * time.Second, prompt: 300 * time.Millisecond}
			for _, name := range strings.Fields(m.caughtBy) {
				c := find(t, name)
				r := verdict(t, c, h)
				if !r.failed {
					t.Errorf("%s passed on a backend that %s", name, m.fault)
				}
				if text := strings.Join(r.said, "\n"); r.failed && !strings.Contains(text, c.rule) {
					t.Errorf("%s failed without its rule:\n%s", name, text)
				}
			}
		})
	}
}

// Every fault of the list is one that the fake backend has, and is not spelt
// in two ways.
func TestMutantsAreDistinct(t *testing.T) {
	seen := make(map[fault]bool)
	for _, m := range mutants {
		if seen[m.fault] {
			t.Errorf("the fault %q stands twice in the list", m.fault)
		}
		seen[m.fault] = true
	}
}

// find returns the case with the name "Group/Case".
func find(t *testing.T, name string) testCase {
	t.Helper()
	for _, g := range groups {
		rest, ok := strings.CutPrefix(name, g.name+"/")
		if !ok {
			continue
		}
		if i := slices.IndexFunc(g.cases, func(c testCase) bool { return c.name == rest }); i >= 0 {
			return g.cases[i]
		}
	}
	t.Fatalf("there is no case %s", name)
	return testCase{}
}

// verdict runs one case and returns what it reported, instead of failing.
func verdict(t *testing.T, c testCase, h Harness) *recorder {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.check(r, h)
	}()
	<-done
	r.mu.Lock()
	defer r.mu.Unlock()
	return r
}

// A recorder is a testing.TB that keeps for itself how a test ended.
type recorder struct {
	testing.TB
	mu      sync.Mutex
	failed  bool
	skipped string
	said    []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func (r *recorder) Logf(string, ...any) {}

func (r *recorder) Skip(args ...any) {
	r.mu.Lock()
	r.skipped = fmt.Sprint(args...)
	r.mu.Unlock()
	runtime.Goexit()
}
