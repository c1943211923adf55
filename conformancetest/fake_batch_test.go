package conformancetest

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"

	"github.com/idem-go/idem"
)

func (h *handle) SwapAll(ctx context.Context, swaps []idem.Swap) []idem.Swapped {
	swapped := make([]idem.Swapped, len(swaps))
	all := func(err error) []idem.Swapped {
		for i := range swapped {
			swapped[i] = idem.Swapped{Err: err}
		}
		return swapped
	}
	if h.is("swaps many without a context") {
		ctx = context.WithoutCancel(ctx)
	}
	if h.is("locks many keys as they come") {
		unlock, err := h.lockKeys(ctx, swaps)
		defer unlock()
		if err != nil {
			return all(err)
		}
	}
	unlock, err := h.lockWriter(ctx)
	if err != nil {
		return all(err)
	}
	defer unlock()
	if err := h.begin(ctx); err != nil {
		return all(err)
	}
	defer h.mu.Unlock()
	if h.is("writes many through transactions") {
		outside := *h
		outside.tx = nil
		h = &outside
	}
	before := make(map[string]idem.Record)
	for _, s := range swaps {
		before[s.Key] = h.live(s.Key)
	}
	refused := slices.ContainsFunc(swaps, func(s idem.Swap) bool { return before[s.Key].Token != s.Old })
	if h.is("swaps all of many or none") && refused {
		for i, s := range swaps {
			swapped[i].Record = h.out(before[s.Key])
		}
		return swapped
	}
	stopped := false
	for i, s := range swaps {
		if stopped {
			swapped[i].Err = errors.New("fake: one before it was refused")
			continue
		}
		present := before[s.Key]
		switch {
		case h.is("judges many by what was there before") && present.Token == s.Old:
			h.write(s.Key, present, s.New)
			swapped[i].Record = h.out(s.New)
			continue
		case h.is("repeats nothing of many") && h.live(s.Key).Token == s.New.Token:
			swapped[i].Err = errors.New("fake: duplicate key")
			continue
		}
		swapped[i].Record, swapped[i].Err = h.swap(s.Key, s.Old, s.New)
		stopped = h.is("stops many at the first refusal") && swapped[i].Record.Token != s.New.Token
	}
	if h.is("answers many in the order of their keys") {
		order := make([]int, len(swaps))
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, func(x, y int) int { return cmp.Compare(swaps[x].Key, swaps[y].Key) })
		mixed := slices.Clone(swapped)
		for i, n := range order {
			mixed[i] = swapped[n]
		}
		return mixed
	}
	if h.is("answers too few of many") && len(swapped) > 500 {
		return swapped[:500]
	}
	return swapped
}

// lockKeys takes a lock on each key, in the order of the swaps.
func (h *handle) lockKeys(ctx context.Context, swaps []idem.Swap) (unlock func(), err error) {
	var held []chan struct{}
	unlock = func() {
		for _, l := range held {
			<-l
		}
	}
	for _, s := range swaps {
		h.mu.Lock()
		if h.locks == nil {
			h.locks = make(map[string]chan struct{})
		}
		l, ok := h.locks[s.Key]
		if !ok {
			l = make(chan struct{}, 1)
			h.locks[s.Key] = l
		}
		h.mu.Unlock()
		if slices.Contains(held, l) {
			continue
		}
		select {
		case l <- struct{}{}:
			held = append(held, l)
		case <-ctx.Done():
			return unlock, ctx.Err()
		case <-h.closed:
			return unlock, errors.New("fake: closed")
		}
		runtime.Gosched()
	}
	return unlock, nil
}
