package idem

import (
	"context"
	"time"
)

// An Ending is how DoAll ended for one item: what Do would have returned for it.
type Ending struct {
	Outcome
	Err error
}

// DoAll is Do for many keys, for consumers that fetch a batch of messages and for
// imports: it asks for all keys in one round trip, where the storage has a way to,
// extends all claims in one, and records all results in one. It returns how each
// item ended, in their order.
//
// fn gets the items whose operation is to run, each with its claim, and calls
// [Task.End] for each: with what the function of Do would return. What fn itself
// returns is the end of those that it has not called End for, so that a
// transaction around all of them that was rolled back is one NoEffect of an error.
// After a nil error their outcome is unknown, as it is after a panic or a call of
// runtime.Goexit, which goes on; those that have ended are recorded even so.
//
//   - Items whose operation is completed get the stored result; fn does not see
//     them, and is not called where there is nothing to run.
//   - DoAll waits for the running duplicates of others only after its own tasks
//     have ended and their claims with them: two batches never wait for each other.
//     It then runs fn again for those that have been released or have lapsed.
//     With Options.NoWait, and in a transaction, they are ErrInProgress.
//   - In a transaction no claim is given back: of a task that has no result the
//     claim stays in progress if the transaction commits. Roll back, or Release it.
//   - Items with the same key and fingerprint are one operation, and end as it
//     does; those after the first are replays.
//   - An error of one item, such as [ErrMismatch] or [ErrKey], is that item's
//     alone.
//
// When one of the claims is lost, or can no longer be known to be held, fn's
// context is cancelled; the others are extended until it returns. All else is as
// with Do. Results are recorded when fn returns: if the process dies before, the
// outcome of all tasks is unknown. So where effects go to other systems keep
// batches small.
func (s *Store) DoAll(ctx context.Context, items []Item, fn func(context.Context, []*Task) error) []Ending {
	start := time.Now()
	b := &batch{s: s, items: items, ends: make([]Ending, len(items)), late: make(map[int]int)}
	first := make(map[Item]int, len(items))
	var open []int
	for i, item := range items {
		if _, ok := first[item]; !ok {
			first[item] = i
			open = append(open, i)
		}
		if fn == nil {
			b.ends[i].Err = s.fail("do", item.Key, Record{}, errNoFunction)
		}
	}
	for fn != nil && len(open) > 0 {
		open = b.round(ctx, open, fn)
	}
	for i, item := range items {
		if f := first[item]; f != i {
			end := b.ends[f]
			end.Result, end.Replayed = end.Result.Clone(), end.Err == nil
			b.ends[i] = end
		}
		s.observeDo(ctx, "do", item.Key, start, b.ends[i].Outcome, b.ends[i].Err)
	}
	return b.ends
}

// A batch is a DoAll on its way.
type batch struct {
	s     *Store
	items []Item
	ends  []Ending
	late  map[int]int // how often an item's claim came after the end of its lease
}

// round asks for the keys of items that have not ended, runs what there is to run,
// and waits for the first of those that others run. It returns which are to be
// asked for again.
func (b *batch) round(ctx context.Context, open []int, fn func(context.Context, []*Task) error) (again []int) {
	s := b.s
	asked := make([]Item, len(open))
	for n, i := range open {
		asked[n] = b.items[i]
	}
	var tasks []*Task
	var late []*Claim
	var waiting []int
	running := make(map[int]Record)
	for n, begun := range s.BeginAll(ctx, asked) {
		i := open[n]
		refused, _ := begun.Err.(*Error)
		switch {
		case begun.Claim != nil && !s.bound && begun.Claim.leaseLeft() == 0:
			late = append(late, begun.Claim) // as in do
			if b.late[i]++; b.late[i] == lateMost {
				b.ends[i].Err = s.tooLate(b.items[i].Key)
				continue
			}
			again = append(again, i)
		case begun.Claim != nil:
			tasks = append(tasks, &Task{Item: i, Claim: begun.Claim})
		case begun.Done != nil:
			b.replay(i, begun.Done)
		case refused.Err == ErrInProgress:
			waiting, running[i] = append(waiting, i), refused.Record
		default:
			b.ends[i].Err = begun.Err
		}
	}
	s.clean(ctx, late, s.ReleaseAll)
	if len(tasks) > 0 {
		s.runAll(ctx, "do", tasks, fn)
	}
	for _, t := range tasks {
		b.ends[t.Item].Outcome, b.ends[t.Item].Err = t.outcome()
	}
	for n, i := range waiting {
		if len(again) > 0 {
			return append(again, waiting[n:]...)
		}
		after, err := s.await(ctx, "do", b.items[i].Key, running[i])
		if err != nil {
			b.ends[i].Err = err
			continue
		}
		// As in do: what ended the wait is the answer. The others may have ended
		// with it.
		if done, _ := s.judge(after, b.items[i].Fingerprint); done {
			b.replay(i, &after)
			return waiting[n+1:]
		}
		return waiting[n:]
	}
	return again
}

func (b *batch) replay(i int, done *Record) {
	b.ends[i].Outcome = Outcome{Result: done.Result, Replayed: true, Attempt: done.Attempt}
}
