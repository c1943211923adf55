package postgres

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

// queueOnly puts calls into the queue, as push does, and opens no lane.
func (l *lanes) queueOnly(n, with int) {
	for range n {
		l.queue = append(l.queue, &call{queued: time.Now(), with: with, op: &operation{new: &idem.Record{}}})
	}
}

// Lanes carry a share of the calls each. What is queued while others are at work
// waits until it is worth another lane; what one caller wants together stays
// together; lanes that are stuck do not count.
func TestLanesCarryShares(t *testing.T) {
	l := &lanes{limit: limits{least: 4, most: 256}, usual: 3}
	take := func(ln *lane, want, left int) {
		t.Helper()
		if n := len(l.take(ln)); n != want || len(l.queue) != left {
			t.Fatalf("%d calls are taken and %d are left, want %d and %d", n, len(l.queue), want, left)
		}
	}
	worthwhile := func(want bool) {
		t.Helper()
		if got := l.worthwhile(time.Now(), len(l.queue)); got != want {
			t.Fatalf("another lane is worth while: %v; the queue has %d, and at work are %d lanes", got, len(l.queue), len(l.working))
		}
	}
	first, second, third := &lane{}, &lane{}, &lane{}
	worthwhile(false) // there is nothing to do
	l.queueOnly(1, 0)
	worthwhile(true) // nobody waits for company
	l.queueOnly(29, 0)
	take(first, 10, 20)
	take(second, 10, 10)
	take(third, 10, 0)
	worthwhile(false)
	l.queueOnly(4, 0)
	worthwhile(false) // there are lanes enough
	take(third, 0, 4) // and 4 are no share of 20: it is closed
	worthwhile(false)
	l.queueOnly(3, 0)
	worthwhile(true)
	take(second, 6, 1) // of these seven and the ten of the first
	take(second, 0, 1) // one is not worth while, and the first will take it
	if len(l.working) != 1 {
		t.Fatalf("%d lanes are at work, want one", len(l.working))
	}
	first.since = first.since.Add(-stuckAfter)
	worthwhile(true) // but it is stuck
	take(second, 1, 0)
	l.queueOnly(30, 0)
	take(third, 11, 19)
	second.since, third.since = first.since, first.since
	worthwhile(false)  // all lanes are stuck, and it is for the timer to open more
	take(third, 7, 12) // which comes back all the same

	// What is not enough for two lanes goes with one, and for three with two.
	for _, c := range []struct {
		limit  limits
		usual  int
		shares []int
	}{
		{limits{least: 4, most: 256}, 3, []int{1}},
		{limits{least: 4, most: 256}, 3, []int{4}},
		{limits{least: 4, most: 256}, 3, []int{7}},
		{limits{least: 4, most: 256}, 3, []int{4, 4}},
		{limits{least: 4, most: 256}, 3, []int{6, 5}},
		{limits{least: 4, most: 256}, 3, []int{4, 4, 4}},
		{forWrites, usualLanes, []int{16}},
		{forWrites, usualLanes, []int{23}},
		{forWrites, usualLanes, []int{12, 12}},
		{forWrites, usualLanes, []int{256, 256}},
		{forReads, usualLanes, []int{7}},
		{forReads, usualLanes, []int{4, 4}},
		{forReads, usualLanes, []int{64, 64}},
		{forWrites, 1, []int{64}},
	} {
		l = &lanes{limit: c.limit, usual: c.usual}
		left := 0
		for _, n := range c.shares {
			left += n
		}
		l.queueOnly(left, 0)
		for _, n := range c.shares {
			left -= n
			take(&lane{}, n, left)
		}
	}

	l = &lanes{limit: forReads, usual: 3}
	l.queueOnly(200, 200)
	l.queueOnly(1000, 1000)
	take(first, 200, 1000)
	take(second, largeBatch, 488)
	take(third, 488, 0)

	l = &lanes{limit: forReads, usual: 1} // on a single connection
	l.queueOnly(100, 0)
	take(first, forReads.most, 36)
	first.since = first.since.Add(-stuckAfter)
	worthwhile(false)
}

// All batches have the same order, whatever order their calls came in: two batches
// that wrote common keys in different orders would wait for each other.
func TestOneOrderForAllBatches(t *testing.T) {
	var sorted []*call
	for _, kind := range []kind{get, claim, replace} {
		for lock := range int64(5) {
			sorted = append(sorted, &call{op: &operation{kind: kind, lock: lock - 2}})
		}
	}
	random := rand.New(rand.NewPCG(testenv.Seed(t), 0))
	for range 100 {
		calls := slices.Clone(sorted)
		random.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
		calls[0].reply.outcome, calls[1].err = stored, errors.New("of an earlier try")
		inOrder(calls)
		for i, c := range calls {
			if c != sorted[i] || c.err != nil || c.reply != (reply{}) {
				t.Fatalf("place %d has kind %d, lock %d, reply %v and error %v", i, c.op.kind, c.op.lock, c.reply, c.err)
			}
		}
	}
}
