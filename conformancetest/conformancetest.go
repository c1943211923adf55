// Package conformancetest checks that a storage keeps the contract of
// [idem.Backend], and that an [idem.Store] on it keeps its promises.
//
// Whoever writes a backend calls Run from a test and Bench from a benchmark.
// Each sentence of the contract has at least one case, and a case that fails
// quotes the sentence.
//
// The cases should not report a fault where there is none. They may miss one
// that is there: many faults show only under concurrency. Run the suite several
// times, with the race detector. What becomes of records when a process or a
// machine dies is not tested here; a backend that promises to keep them needs
// tests of its own for that.
package conformancetest

import (
	"slices"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

// A Harness tells the suite how to handle one kind of storage. Only New is
// required. Everything is meant to be tested: what a nil field leaves untested
// is skipped under its own name and with the name of the field, never passed.
//
// The functions report what goes wrong in themselves with t.Fatal. They are
// called one at a time, except where it is said otherwise, and not always from
// the test's own goroutine.
type Harness struct {
	// New returns a backend on fresh, empty storage. It is called at least once
	// for each case; cases run one after another. What has to be closed is
	// closed in t.Cleanup.
	New func(t testing.TB) idem.Backend

	// Peer returns another handle on the storage of b, as another process would
	// have it: with a connection, a cache and goroutines of its own. b itself
	// will do only for a storage that no second handle can open.
	Peer func(t testing.TB, b idem.Backend) idem.Backend

	// Advance makes everything that is stored older by d, by the clock that
	// Age is measured with. A negative d is a clock that was set back: records
	// become younger, to the point of having been written in the future.
	//
	// Where Advance is nil the suite waits instead. It stores leases and TTLs
	// of some 100 ms for that, and it cannot set the clock back.
	Advance func(t testing.TB, b idem.Backend, d time.Duration)

	// InTx begins a transaction on the storage of b and calls fn once with the
	// backend that is bound to it. If fn returns nil it commits and returns the
	// error of that; otherwise it rolls back and returns fn's error. It rolls
	// back as well, in a deferred function, if fn does not return: a failing
	// test ends its goroutine. It may be called from several goroutines at once.
	InTx func(t testing.TB, b idem.Backend, fn func(tx idem.Backend) error) error

	// Break makes the storage of b fail: unreachable, closed, full, whatever is
	// close to what happens in operation. restore makes it work again, with its
	// records. It may be called more than once.
	Break func(t testing.TB, b idem.Backend) (restore func())

	// Writes returns a number that changes with every write to the storage of
	// b: a transaction id, a position in a log, a counter of changes.
	Writes func(t testing.TB, b idem.Backend) uint64

	limits limits
}

// limits bound a case in time. They bound what hangs and say nothing about
// speed; the suite's own tests set them lower for backends that hang on
// purpose.
type limits struct {
	whole  time.Duration // of a case
	prompt time.Duration // of a call that is to return promptly
}

func (l limits) withDefaults() limits {
	if l.whole == 0 {
		l.whole = 20 * time.Second
	}
	if l.prompt == 0 {
		l.prompt = 5 * time.Second
	}
	return l
}

// Run runs every case on the storage of h, each as a subtest on a storage of
// its own:
//
//	func TestConformance(t *testing.T) {
//		conformancetest.Run(t, conformancetest.Harness{
//			New: func(t testing.TB) idem.Backend { return mystorage.New() },
//		})
//	}
//
// With -short the cases that need many rounds run fewer of them. Cases with
// random input log their seed and take it from the variable IDEM_SEED.
func Run(t *testing.T, h Harness) {
	if h.New == nil {
		t.Fatal("Harness.New is nil")
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.cases {
				t.Run(c.name, func(t *testing.T) { c.check(t, h) })
			}
		})
	}
}

// groups is the table of contents.
var groups = []group{
	{"Backend", slices.Concat(swapCases, readCases, keyCases, timeCases, sweepCases, failCases)},
	{"Tx", slices.Concat(txCases, batchTxCases)},
	{"Lister", listCases},
	{"Watcher", watchCases},
	{"Batcher", batchCases},
	{"Prober", probeCases},
	{"Model", modelCases},
	{"Store", storeCases},
	{"StoreTx", slices.Concat(storeTxCases, manyTxCases)},
}

type group struct {
	name  string
	cases []testCase
}

// A testCase is one thing that can be wrong with a backend.
type testCase struct {
	name string

	// rule is the sentence that the case proves: of the contract, verbatim, or
	// of the documentation of Store in short. It ends every failure.
	rule string

	// needs names what the case cannot do without.
	needs need

	// timed cases let time pass. Their backend may be one in which it passes
	// faster; see clock.
	timed bool

	run func(e *env)
}

// A need is an optional part of a Harness or of a backend.
type need string

const (
	needPeer    need = "Harness.Peer"
	needAdvance need = "Harness.Advance"
	needInTx    need = "Harness.InTx"
	needBreak   need = "Harness.Break"
	needWrites  need = "Harness.Writes"
	needLister  need = "idem.Lister"
	needWatcher need = "idem.Watcher"
	needBatcher need = "idem.Batcher"
	needProber  need = "idem.Prober"
)

// missing returns why a case with this need cannot run on b, or "". As long as
// there is no b, only what the Harness lacks is missing.
func (n need) missing(h Harness, b idem.Backend) string {
	has := true
	switch n {
	case needPeer:
		has = h.Peer != nil
	case needAdvance:
		has = h.Advance != nil
	case needInTx:
		has = h.InTx != nil
	case needBreak:
		has = h.Break != nil
	case needWrites:
		has = h.Writes != nil
	case needLister:
		return n.unlessBackend(b, isA[idem.Lister])
	case needWatcher:
		return n.unlessBackend(b, isA[idem.Watcher])
	case needProber:
		return n.unlessBackend(b, isA[idem.Prober])
	case needBatcher:
		return n.unlessBackend(b, isA[idem.Batcher])
	}
	if !has {
		return "not tested: " + string(n) + " is nil"
	}
	return ""
}

func (n need) unlessBackend(b idem.Backend, is func(idem.Backend) bool) string {
	if b == nil || is(b) {
		return ""
	}
	return "not tested: the backend is not an " + string(n)
}

func isA[T any](b idem.Backend) bool {
	_, ok := b.(T)
	return ok
}
