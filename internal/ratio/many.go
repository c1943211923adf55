package main

import (
	"context"

	"github.com/idem-go/idem"
)

// manyKeys is how many keys a batch has.
const manyKeys = 500

// manyLine compares pairs in batches with pairs one by one, of a single caller.
func manyLine(store *idem.Store, pair contender) line {
	return line{name: "batch of 500 / single", c: 1, target: 5, work: pairs(store), workDoes: manyKeys, base: pair}
}

// pairs claims fresh keys and completes them, all in one call.
func pairs(store *idem.Store) contender {
	items := make([]idem.Item, manyKeys)
	completions := make([]idem.Completion, manyKeys)
	return func(int) error {
		ctx := context.Background()
		for i := range items {
			items[i] = idem.Item{Key: "order-" + idem.NewKey(), Fingerprint: payload}
		}
		for i, b := range store.BeginAll(ctx, items) {
			if b.Err != nil {
				return b.Err
			}
			completions[i] = idem.Completion{Claim: b.Claim, Result: result}
		}
		for _, err := range store.CompleteAll(ctx, completions) {
			if err != nil {
				return err
			}
		}
		return nil
	}
}
