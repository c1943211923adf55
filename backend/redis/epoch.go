package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
)

// The canary is a key that never expires. Its value, the epoch, is compared by
// every call with the one that the Backend has seen first: where the canary is
// gone, the records are gone with it. The kinds of epochs begin with
const (
	epochNew  = "new:"  // made by a Backend that found none
	epochInit = "init:" // made by Init, so a person has looked
	epochLost = "lost:" // left by a Backend that noticed the loss, for those that start later
)

// ErrNotInitialized is wrapped, besides [idem.ErrStoreLost], by the errors of a
// Backend with Options.MustExist that has found nothing: there has never been a
// storage, or it is gone as a whole and no other process has noticed.
var ErrNotInitialized = errors.New("the database is not initialised")

// join makes the Backend know the epoch. A storage without one is taken for a new
// storage, unless MustExist says that it cannot be one.
func (b *Backend) join(ctx context.Context) error {
	if b.canary == "" || b.epoch.Load() != nil {
		return nil
	}
	return b.promptly(ctx, "join", func(ctx context.Context) error {
		for {
			epoch, err := b.client.Get(ctx, b.canary).Result()
			switch {
			case err == goredis.Nil && b.opts.MustExist:
				return fmt.Errorf("%w (%w)", lost("%q is not there, and Options.MustExist says that it should be", b.canary), ErrNotInitialized)
			case err == goredis.Nil:
				if err := b.client.SetNX(ctx, b.canary, epochNew+rand.Text(), 0).Err(); err != nil {
					return failed("make "+b.canary, err, 0)
				}
				continue
			case err != nil:
				return failed("read "+b.canary, err, 0)
			case strings.HasPrefix(epoch, epochLost):
				return lost("another process has noticed that %q was gone", b.canary)
			}
			b.epoch.CompareAndSwap(nil, &epoch)
			return nil
		}
	})
}

// adopt deals with a canary that has another epoch, or none (""). It returns nil
// if a person has initialised the storage since.
func (b *Backend) adopt(ctx context.Context, seen, found string) error {
	if strings.HasPrefix(found, epochInit) {
		if now := b.epoch.Load(); *now == seen {
			b.epoch.CompareAndSwap(now, &found)
		}
		return nil
	}
	switch {
	case found == "":
		// Processes that start from now on must not take the storage for a new
		// one. If this fails, the next call does it.
		_ = b.promptly(ctx, "mark the loss", func(ctx context.Context) error {
			return b.client.SetNX(ctx, b.canary, epochLost+seen, 0).Err()
		})
		return lost("%q is gone", b.canary)
	case strings.HasPrefix(found, epochLost):
		return lost("%q was gone", b.canary)
	}
	return lost("%q was gone, and a process that did not know has begun anew", b.canary)
}

// lost is the error of a storage that has lost its records.
func lost(format string, args ...any) error {
	return fmt.Errorf("redis: %w: %s; it was flushed, or restarted without persistence. Find out which operations were done, then call Init",
		idem.ErrStoreLost, fmt.Sprintf(format, args...))
}

// Init initialises the storage, for the first time with Options.MustExist, or
// after the loss of its records, when a person has seen to the operations that
// were in it. Records that are there are kept. All processes go on with it; those
// that run need not be restarted.
//
// In a cluster without a hash tag in Options.Prefix there is nothing to initialise.
func (b *Backend) Init(ctx context.Context) error {
	if b.canary == "" {
		return nil
	}
	return classed("init", b.promptly(ctx, "init", func(ctx context.Context) error {
		epoch := epochInit + rand.Text()
		if err := b.client.Set(ctx, b.canary, epoch, 0).Err(); err != nil {
			return failed("init", err, 1)
		}
		b.epoch.Store(&epoch)
		return nil
	}))
}

// promptly runs fn, which asks the server something, and returns when ctx is done.
// What fn has asked by then ends by the client's timeouts.
func (b *Backend) promptly(ctx context.Context, op string, fn func(ctx context.Context) error) error {
	if ctx.Err() != nil {
		return gaveUp(ctx, op, "not asked")
	}
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	select {
	case err := <-done:
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("%w (%w)", gaveUp(ctx, op, "waiting for the answer"), err)
		}
		return err
	case <-ctx.Done():
		return gaveUp(ctx, op, "waiting for the answer")
	}
}
