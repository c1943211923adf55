package redis

import (
	"context"
	"errors"
	"fmt"

	"github.com/idem-go/idem"
)

// SwapAll implements [idem.Batcher], in one round trip or a few, of up to 512
// swaps. In a cluster the client sends to each node what is there.
func (b *Backend) SwapAll(ctx context.Context, swaps []idem.Swap) []idem.Swapped {
	return idem.InTurn(swaps, func(swaps []idem.Swap) []idem.Swapped { return b.swapAll(ctx, swaps) })
}

// swapAll does swaps of distinct keys.
func (b *Backend) swapAll(ctx context.Context, swaps []idem.Swap) []idem.Swapped {
	const op = "swap"
	swapped := make([]idem.Swapped, len(swaps))
	var gets, writes []int
	likely := b.replays.likely()
	for i, s := range swaps {
		if err := checkKey(s.Key); err != nil {
			swapped[i].Err = idem.NoEffect(fmt.Errorf("redis: %s: %w", op, err))
			continue
		}
		// As in Swap: what is only looked for, or is likely to be there.
		if s.Old == s.New.Token || s.Old == "" && likely {
			gets = append(gets, i)
		} else {
			writes = append(writes, i)
		}
	}
	answers, errs := b.askAll(ctx, "get", len(gets), func(n int) *request { return &request{name: b.Key(swaps[gets[n]].Key)} })
	for n, i := range gets {
		r, err := idem.Record{}, errs[n]
		if err == nil && answers[n].kind == present {
			r, err = b.open(swaps[i].Key, answers[n])
		}
		missed := err == nil && (r.Token == "" || r.Expired())
		switch {
		case missed && swaps[i].Old == swaps[i].New.Token:
		case missed:
			writes = append(writes, i)
		default:
			swapped[i] = idem.Swapped{Record: r, Err: err}
			b.noteReplay(swaps[i], err)
		}
	}
	requests := make([]*request, len(writes))
	answers, errs = b.askAll(ctx, op, len(writes), func(n int) *request {
		i := writes[n]
		r, err := b.newSwap(swaps[i].Key, swaps[i].Old, swaps[i].New)
		if err != nil {
			swapped[i].Err = idem.NoEffect(fmt.Errorf("redis: %s: %w", op, err))
			return nil
		}
		requests[n] = r
		return r
	})
	for n, i := range writes {
		switch {
		case swapped[i].Err != nil:
		case errs[n] != nil:
			swapped[i].Err = errs[n]
		default:
			swapped[i].Record, swapped[i].Err = b.swapped(swaps[i].Key, requests[n], answers[n], swaps[i].New)
		}
	}
	return swapped
}

// noteReplay notes what became of a Get in the place of a Swap.
func (b *Backend) noteReplay(s idem.Swap, err error) {
	switch {
	case s.Old != "":
	case err != nil:
		b.replays.score.Store(0) // see Swap
	default:
		b.replays.note(true)
	}
}

// part is how many requests are made before they are sent: the server begins with
// them while the next are made.
const part = 2 * maxScript

// askAll is ask for many requests. Those that are nil are passed by.
func (b *Backend) askAll(ctx context.Context, op string, n int, next func(i int) *request) ([]answer, []error) {
	answers, errs := make([]answer, n), make([]error, n)
	if n == 0 {
		return answers, errs
	}
	err := ctx.Err()
	if err != nil {
		err = gaveUp(ctx, op, "not asked")
	} else {
		err = b.join(ctx)
	}
	if err != nil {
		for i := range errs {
			errs[i] = idem.NoEffect(err)
		}
		return answers, errs
	}
	sent, of := make([]*request, 0, n), make([]int, 0, n)
	begin := 0
	for i := range n {
		if r := next(i); r != nil {
			r.prepare(op)
			r.queued(ctx)
			sent, of = append(sent, r), append(of, i)
		}
		if len(sent)-begin == part || i == n-1 && len(sent) > begin {
			b.start(sent[begin:])
			begin = len(sent)
		}
	}
	for k, err := range b.await(ctx, sent) {
		r, i := sent[k], of[k]
		if errs[i] = err; err != nil {
			continue
		}
		answers[i] = r.answer
		if r.answer.kind == otherEpoch {
			// A person has initialised the storage meanwhile.
			r.refused()
			if err := b.adopt(ctx, r.epoch, r.answer.value); err != nil {
				errs[i] = idem.NoEffect(err)
				continue
			}
			answers[i], errs[i] = b.ask(ctx, op, r)
		}
	}
	return answers, errs
}

// SwapAll implements [idem.Batcher]: it watches and reads all keys in one go.
func (t *bound) SwapAll(ctx context.Context, swaps []idem.Swap) []idem.Swapped {
	swapped := make([]idem.Swapped, len(swaps))
	if err := t.lookAll(ctx, "swap", swaps); err != nil {
		for i := range swapped {
			swapped[i].Err = idem.NoEffect(err)
		}
		return swapped
	}
	for i, s := range swaps {
		swapped[i].Record, swapped[i].Err = t.Swap(ctx, s.Key, s.Old, s.New)
	}
	return swapped
}

// lookAll is look for many keys. What is wrong with one of them shows when that
// one is looked at.
func (t *bound) lookAll(ctx context.Context, op string, swaps []idem.Swap) error {
	var keys []string
	for _, s := range swaps {
		if _, seen := t.seen[s.Key]; !seen && checkKey(s.Key) == nil {
			keys = append(keys, s.Key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return gaveUp(ctx, op, "not asked")
	}
	if err := t.b.join(ctx); err != nil {
		return err
	}
	records, err := t.watch(ctx, op, keys...)
	if err != nil {
		return err
	}
	for i, record := range records {
		r, err := t.open(op, keys[i], record)
		if err == nil {
			t.seen[keys[i]] = r
		} else if !errors.Is(err, idem.ErrCorrupt) {
			return err
		}
	}
	return nil
}

var (
	_ idem.Batcher = (*Backend)(nil)
	_ idem.Batcher = (*bound)(nil)
)
