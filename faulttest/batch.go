package faulttest

import (
	"time"

	"github.com/idem-go/idem"
)

// batch does with several keys in one call what the others do with one.
func (w *worker) batch() {
	policy := []idem.LapsePolicy{idem.Takeover, idem.Hold}[w.rnd.IntN(2)]
	claims := w.beginAll(w.stores[policy], w.someKeys(policy))
	if len(claims) == 0 {
		return
	}
	if w.roll(25) {
		w.sleep(w.lease + time.Duration(w.rnd.Int64N(int64(w.lease))))
		if w.roll(50) {
			w.doAll(w.stores[policy], extend, claims)
		}
	}
	if w.roll(12) {
		return // crashed
	}
	end := []op{complete, complete, release, abandon}[w.rnd.IntN(4)]
	w.doAll(w.stores[policy], end, claims)
	if w.roll(25) {
		w.doAll(w.stores[policy], end, claims)
	}
}

// someKeys returns two to nine keys of a policy, in any order.
func (w *worker) someKeys(of idem.LapsePolicy) (some []string) {
	n := 2 + w.rnd.IntN(8)
	for _, i := range w.rnd.Perm(w.keys) {
		if k := key(i); policy(k) == of && len(some) < n {
			some = append(some, k)
		}
	}
	return some
}

func (w *worker) beginAll(store *idem.Store, keys []string) (claims []*held) {
	all, notes, ctx, cancel := w.askingAll(begin, keys)
	defer cancel()
	items := make([]idem.Item, len(keys))
	for i, k := range keys {
		items[i] = idem.Item{Key: k, Fingerprint: own}
	}
	begun := store.BeginAll(ctx, items)
	now := w.now()
	for i, b := range begun {
		q := all[i]
		q.ret, q.payload = now, short(own)
		if c, _ := w.begun(q, notes[i], b.Claim, b.Done, b.Err); c != nil {
			claims = append(claims, c)
		}
	}
	return claims
}

func (w *worker) doAll(store *idem.Store, what op, claims []*held) {
	keys, texts := make([]string, len(claims)), make([]string, len(claims))
	completions, plain := make([]idem.Completion, len(claims)), make([]*idem.Claim, len(claims))
	for i, c := range claims {
		keys[i], texts[i], plain[i] = c.Key, w.text(), c.Claim
		completions[i] = idem.Completion{Claim: c.Claim, Result: resultOf(texts[i])}
	}
	all, notes, ctx, cancel := w.askingAll(what, keys)
	defer cancel()
	var errs []error
	switch what {
	case complete:
		errs = store.CompleteAll(ctx, completions)
	case release:
		errs = store.ReleaseAll(ctx, plain)
	case abandon:
		errs = store.AbandonAll(ctx, plain)
	case extend:
		errs = store.ExtendAll(ctx, plain)
	}
	now := w.now()
	for i, c := range claims {
		q := all[i]
		q.ret = now
		w.done(q, c, texts[i], notes[i], errs[i])
	}
}
