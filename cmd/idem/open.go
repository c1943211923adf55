package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/bolt"
	"github.com/idem-go/idem/backend/postgres"
	idemredis "github.com/idem-go/idem/backend/redis"
)

const (
	// lockTimeout is how long a call waits for the store file, which other
	// processes hold for the moment of each of their operations.
	lockTimeout = 10 * time.Second

	// answerTimeout is how long a store may take to answer one request. It
	// includes the wait for a transaction that has written the key and is open.
	answerTimeout = 30 * time.Second
)

// A purpose is what a store is opened for.
type purpose int

const (
	toRun     purpose = iota // a file and a database of Redis are made if they are not there; idem migrate makes the table of PostgreSQL
	toOperate                // it has to be there, and may be changed
	toRead                   // it has to be there, and nothing is changed
)

// A records is what all three kinds of store can do.
type records interface {
	idem.Backend
	idem.Lister
	idem.Watcher
}

// A storage is a store that is open. It is a Backend, a Lister and a Watcher of
// whatever kind; every request ends after answerTimeout.
type storage struct {
	records
	location *location
	warnings []string // of Redis: what is wrong with the server, but no reason not to use it

	// One of these is set, for what only one kind can do.
	bolt     *bolt.Backend
	postgres *postgres.Backend
	redis    *idemredis.Backend

	// The connections of the last two.
	pool   *pgxpool.Pool
	client goredis.UniversalClient
}

// open opens the store. Its errors are explained by target.refused. The caller
// closes what it returns.
func (l *location) open(ctx context.Context, p purpose) (*storage, error) {
	switch {
	case l.postgres != nil:
		return l.openPostgres(ctx)
	case l.redis != nil, l.cluster != nil:
		return l.openRedis(ctx, p)
	}
	return l.openBolt(p)
}

// absent is the failure of a store that is to be there and is not.
func (l *location) absent(what string) error {
	return fail(exitAbsent,
		"if you use another store for running, name it with --store or $IDEM_STORE",
		"store %s: %s", l.name, what)
}

func (l *location) openBolt(p purpose) (*storage, error) {
	if p != toRun && missing(l.path) {
		return nil, l.absent("there is no such file; nothing has been run with it yet")
	}
	if p == toRun && l.made {
		if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
			return nil, err
		}
	}
	b, err := bolt.Open(l.path, &bolt.Options{
		OpenTimeout: lockTimeout,
		Shared:      true,
		MustExist:   p != toRun,
		ReadOnly:    p == toRead,
	})
	if err != nil {
		return nil, err
	}
	return &storage{records: b, location: l, bolt: b}, nil
}

func (l *location) openPostgres(ctx context.Context) (*storage, error) {
	s, err := l.connectPostgres(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := soon(ctx)
	defer cancel()
	if err := s.postgres.Check(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// connectPostgres returns a storage whose table need not be there.
func (l *location) connectPostgres(ctx context.Context) (*storage, error) {
	pool, err := pgxpool.NewWithConfig(ctx, l.postgres.Copy())
	if err != nil {
		return nil, err
	}
	b, err := postgres.New(pool, &l.postgresOptions)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &storage{records: b, location: l, postgres: b, pool: pool}, nil
}

func (l *location) openRedis(ctx context.Context, p purpose) (*storage, error) {
	s, err := l.connectRedis(p)
	if err != nil {
		return nil, err
	}
	ctx, cancel := soon(ctx)
	defer cancel()
	err = s.redis.Check(ctx)
	if err == nil {
		return s, nil
	}
	_ = s.Close()
	switch {
	case errors.Is(err, idemredis.ErrNotInitialized):
		return nil, l.absent("nothing has been run with it yet, or it has lost all its records")
	case errors.Is(err, idem.ErrOptions):
		return nil, &unfit{l.trimmed(err)}
	}
	return nil, err
}

// An unfit server is one that cannot be trusted with records as it is set up.
type unfit struct{ why string }

func (e *unfit) Error() string { return e.why }

// connectRedis returns a storage that has not been checked.
func (l *location) connectRedis(p purpose) (s *storage, err error) {
	goredis.SetLogger(silent{}) // what matters comes back as an error
	s = &storage{location: l, client: l.redisClient()}
	options := l.redisOptions
	options.Warn = func(warning string) { s.warnings = append(s.warnings, warning) }
	if p != toRun {
		// Who has run with a server like that wants to see what is there.
		options.AllowEviction = true
		options.MustExist = true
	}
	s.redis, err = idemredis.New(s.client, &options)
	if errors.Is(err, idem.ErrOptions) && options.MustExist {
		// In a cluster nothing may tell whether the store is there.
		options.MustExist = false
		s.redis, err = idemredis.New(s.client, &options)
	}
	if err != nil {
		_ = s.client.Close()
		return nil, err
	}
	s.records = s.redis
	return s, nil
}

// silent keeps a driver from writing to standard error by itself.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// Close closes the file or the connections.
func (s *storage) Close() error {
	switch {
	case s.pool != nil:
		s.pool.Close()
		return nil
	case s.client != nil:
		return s.client.Close()
	}
	return s.bolt.Close()
}

// soon bounds a request to the store.
func soon(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, answerTimeout, fmt.Errorf("no answer within %v", answerTimeout))
}

// Get implements [idem.Backend].
func (s *storage) Get(ctx context.Context, key string) (idem.Record, error) {
	ctx, cancel := soon(ctx)
	defer cancel()
	return s.records.Get(ctx, key)
}

// Swap implements [idem.Backend].
func (s *storage) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	ctx, cancel := soon(ctx)
	defer cancel()
	return s.records.Swap(ctx, key, old, new)
}

// Sweep implements [idem.Backend].
func (s *storage) Sweep(ctx context.Context, limit int) (int, error) {
	ctx, cancel := soon(ctx)
	defer cancel()
	return s.records.Sweep(ctx, limit)
}

// List implements [idem.Lister].
func (s *storage) List(ctx context.Context, q idem.Query) ([]idem.Entry, string, error) {
	ctx, cancel := soon(ctx)
	defer cancel()
	return s.records.List(ctx, q)
}
