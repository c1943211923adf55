package postgres

import (
	"context"
	"errors"
	"time"
)

type heard struct{}
type listener struct{}

func newListener(b *Backend) (*listener, error) { return nil, errors.New("not yet") }
func (l *listener) lock(key string) int64       { return 0 }
func (l *listener) hear(key string) (<-chan heard, func()) {
	return nil, func() {}
}
func (b *Backend) sleep(ctx context.Context, d time.Duration, h <-chan heard) error {
	return pause(ctx, d)
}
