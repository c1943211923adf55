package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/idem-go/idem"
)

const (
	firstAsk = 5 * time.Millisecond
	lastAsk  = 100 * time.Millisecond
)

// Watch implements [idem.Watcher]. Without Options.Listen it asks in growing
// intervals, ten times a second in the end; with it a notification wakes it. A
// Store has one such watch per key and process, however many wait.
func (b *Backend) Watch(ctx context.Context, key, token string) error {
	if b.ears != nil && token != openTx {
		heard, leave := b.ears.hear(key)
		defer leave()
		return b.watch(ctx, key, token, heard)
	}
	return b.watch(ctx, key, token, nil)
}

// watch asks until the record is another one, sooner if told so by heard.
func (b *Backend) watch(ctx context.Context, key, token string, heard <-chan heard) error {
	for delay := firstAsk; ; delay = min(2*delay, lastAsk) {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("postgres: watch: %w", err)
		}
		changed, err := b.changed(ctx, key, token)
		if err != nil || changed {
			return err
		}
		if err := b.sleep(ctx, delay, heard); err != nil {
			return fmt.Errorf("postgres: watch: %w", err)
		}
	}
}

// changed reports whether key no longer has token. The token of an open
// transaction is that of a key whose transaction has not ended.
func (b *Backend) changed(ctx context.Context, key, token string) (changed bool, err error) {
	what, args := b.sql.token, []any{key}
	if token == openTx {
		what, args = freeSQL, []any{lockOf("key", b.table, key)}
	}
	now := ""
	err = b.src.with(ctx, func(s session) error {
		return s.query(ctx, what, args, func(scan func(...any) error) error {
			if token == openTx {
				return scan(&changed)
			}
			return scan(&now)
		})
	})
	if err != nil {
		return false, b.failed(ctx, "watch", err)
	}
	return changed || token != openTx && now != token, nil
}

var _ interface {
	idem.Backend
	idem.Lister
	idem.Watcher
} = (*Backend)(nil)
