package idem

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// An Item is one operation of a batch: what Begin is asked about.
type Item struct {
	Key         string
	Fingerprint Fingerprint
}

// Begun is what BeginAll has to say about one item. One of the three is set, as
// Begin returns it.
type Begun struct {
	Claim *Claim
	Done  *Record
	Err   error
}

// A Completion is a claim and the result that CompleteAll records for it.
type Completion struct {
	Claim  *Claim
	Result Result
}

// BeginAll asks for many keys, in one round trip where the storage has a way to
// (see [Batcher]). Each item is answered as Begin would answer it, in the order
// of the items: one that is refused, or fails, keeps no other from its claim. Of
// items with the same key the first one asks; those after it are told what is
// true then, which is ErrInProgress if it got the claim.
//
// Two batches with the same keys never wait for each other. Each gets what the
// other has not.
//
// All leases have begun when BeginAll was called: a batch has to be done within
// the lease, or call ExtendAll. DoAll does.
func (s *Store) BeginAll(ctx context.Context, items []Item) []Begun {
	start := time.Now()
	begun := s.beginAll(ctx, items)
	for i, b := range begun {
		s.observe(ctx, "begin", items[i].Key, start, b.Claim, b.Done, b.Err)
	}
	return begun
}

// A queued is an asking among others.
type queued struct {
	asking
	before *queued // asks for the same key, and has to be answered first
	rounds int
	ended  bool
}

func (s *Store) beginAll(ctx context.Context, items []Item) []Begun {
	begun := make([]Begun, len(items))
	all := make([]queued, len(items))
	last := make(map[string]*queued, len(items))
	for i, item := range items {
		q := &all[i]
		stored, err := s.stored(item.Key)
		if err != nil {
			begun[i].Err, q.ended = s.fail("begin", item.Key, Record{}, err), true
			continue
		}
		q.asking = asking{stored: stored, key: item.Key, fp: item.Fingerprint}
		q.before, last[stored] = last[stored], q
	}
	for {
		var asks []*asking
		var of []int
		for i := range all {
			q := &all[i]
			if q.ended || q.before != nil && !q.before.ended {
				continue
			}
			if q.before != nil {
				q.present, q.before = q.before.present.Clone(), nil
			}
			if q.rounds++; q.rounds > 1000 {
				begun[i].Err, q.ended = s.fail("begin", q.key, q.present, errKeptChanging), true
				continue
			}
			if done, err := s.ask(&q.asking); done != nil || err != nil {
				begun[i].Done, begun[i].Err, q.ended = done, err, true
				continue
			}
			asks, of = append(asks, &q.asking), append(of, i)
		}
		if len(asks) == 0 {
			return begun
		}
		s.swapClaims(ctx, asks)
		s.repeatClaims(ctx, asks)
		for n, a := range asks {
			q, b := &all[of[n]], &begun[of[n]]
			switch {
			case a.err != nil:
				b.Err, q.ended = s.fail("begin", a.key, Record{}, a.err), true
				q.present = Record{} // as far as the next one with the key knows
			case a.granted():
				b.Claim, q.ended = a.c, true
			}
		}
	}
}

// CompleteAll is Complete for many claims, in one round trip where the storage
// has a way to. It returns an error, or nil, for each of them, in their order:
// one that is lost, or fails, keeps no other from being recorded. [errors.Join]
// of them is nil if all are recorded.
func (s *Store) CompleteAll(ctx context.Context, completions []Completion) []error {
	claims := make([]*Claim, len(completions))
	for i, c := range completions {
		claims[i] = c.Claim
	}
	return s.updateAll(ctx, claims, "complete", func(i int) step { return s.toComplete(completions[i].Result) })
}

// ReleaseAll is Release for many claims, as CompleteAll is Complete.
func (s *Store) ReleaseAll(ctx context.Context, claims []*Claim) []error {
	return s.updateAll(ctx, claims, "release", func(i int) step { return s.toRelease(claims[i]) })
}

// AbandonAll is Abandon for many claims, as CompleteAll is Complete.
func (s *Store) AbandonAll(ctx context.Context, claims []*Claim) []error {
	return s.updateAll(ctx, claims, "abandon", func(int) step { return s.toAbandon() })
}

// ExtendAll is Extend for many claims, as CompleteAll is Complete.
func (s *Store) ExtendAll(ctx context.Context, claims []*Claim) []error {
	return s.updateAll(ctx, claims, "extend", func(int) step { return s.toRenew("extend", nil) })
}

// updateAll takes a step of each claim.
func (s *Store) updateAll(ctx context.Context, claims []*Claim, op string, do func(i int) step) []error {
	if len(claims) == 1 {
		return []error{s.update(ctx, claims[0], do(0))}
	}
	start := time.Now()
	errs := s.writeAll(ctx, claims, do)
	for i, c := range claims {
		if errs[i] != nil {
			errs[i] = s.fail(op, keyOf(c), Record{}, errs[i])
		}
		s.observe(ctx, op, keyOf(c), start, c, nil, errs[i])
	}
	return errs
}

// writeAll is write for many claims.
func (s *Store) writeAll(ctx context.Context, claims []*Claim, do func(i int) step) []error {
	errs := make([]error, len(claims))
	all := make([]writing, len(claims))
	open := make([]int, 0, len(claims))
	for i, c := range claims {
		if errs[i] = s.checkClaim(c); errs[i] != nil {
			continue
		}
		if all[i] = newWriting(c, do(i)); !all[i].over {
			open = append(open, i)
		}
	}
	for range 1000 { // see errKeptChanging
		open = slices.DeleteFunc(open, func(i int) (ended bool) {
			if ctx.Err() != nil {
				errs[i] = notAsked(ctx)
				return true
			}
			ended, errs[i] = s.prepare(&all[i])
			return ended
		})
		if len(open) == 0 {
			return errs
		}
		swaps := make([]exchange, len(open))
		for n, i := range open {
			w := &all[i]
			swaps[n] = exchange{stored: w.c.stored, old: w.now.Token, new: w.next}
		}
		s.swapAll(ctx, swaps)
		n := 0
		open = slices.DeleteFunc(open, func(i int) (ended bool) {
			x := swaps[n]
			n++
			ended, errs[i] = s.settle(&all[i], x.got, x.err)
			return ended
		})
	}
	for _, i := range open {
		errs[i] = errKeptChanging
	}
	return errs
}

// An exchange is one of many Swaps, and what came of it.
type exchange struct {
	stored, old string
	new         Record

	got Record
	err error
}

// swapsAtOnce is how many Swaps of a batch run side by side where the storage
// takes them one by one.
const swapsAtOnce = 64

// swapAll does the Swaps, in the order of their keys where it is a transaction
// that does: so no two of them wait for each other.
func (s *Store) swapAll(ctx context.Context, swaps []exchange) {
	switch b, ok := s.backend.(Batcher); {
	case len(swaps) == 0:
	case len(swaps) == 1:
		s.swapOne(ctx, &swaps[0])
	case ctx.Err() != nil:
		for i := range swaps {
			swaps[i].err = NoEffect(notAsked(ctx))
		}
	case ok:
		s.swapBatch(ctx, b, inOrder(swaps))
	case s.bound:
		var failed error // what comes after it in the transaction may only hide the reason
		for _, x := range inOrder(swaps) {
			if x.err = failed; failed == nil {
				s.swapOne(ctx, x)
				failed = x.err
			}
		}
	default:
		s.swapSideBySide(ctx, inOrder(swaps))
	}
}

// inOrder returns the Swaps in the order of their keys.
func inOrder(swaps []exchange) []*exchange {
	order := make([]*exchange, len(swaps))
	for i := range swaps {
		order[i] = &swaps[i]
	}
	slices.SortStableFunc(order, func(x, y *exchange) int { return cmp.Compare(x.stored, y.stored) })
	return order
}

func (s *Store) swapOne(ctx context.Context, x *exchange) {
	x.got, x.err = s.swap(ctx, x.stored, x.old, x.new)
}

func (s *Store) swapBatch(ctx context.Context, b Batcher, order []*exchange) {
	swaps := make([]Swap, len(order))
	for i, x := range order {
		swaps[i] = Swap{Key: x.stored, Old: x.old, New: x.new}
	}
	swapped := b.SwapAll(ctx, swaps)
	for i, x := range order {
		if i >= len(swapped) {
			x.err = errNotSwapped
			continue
		}
		x.got, x.err = swapped[i].Record.normal(), swapped[i].Err
	}
}

// errNotSwapped is what a Swap ends with that a Batcher says nothing about.
var errNotSwapped = errors.New("the backend has not said what became of it")

func (s *Store) swapSideBySide(ctx context.Context, order []*exchange) {
	var next sync.Mutex
	var all sync.WaitGroup
	for range min(len(order), swapsAtOnce) {
		all.Go(func() {
			for {
				next.Lock()
				if len(order) == 0 {
					next.Unlock()
					return
				}
				x := order[0]
				order = order[1:]
				next.Unlock()
				s.swapOne(ctx, x)
			}
		})
	}
	all.Wait()
}
