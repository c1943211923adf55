package main

import (
	"errors"
	"io"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
)

type migrateCommand struct {
	place
	SQL  bool `name:"sql" help:"PostgreSQL: print the SQL that creates the table, for a migration tool or the owner of the database, and connect to nothing: idem migrate --sql --store postgres://HOST/DATABASE | psql"`
	Init bool `help:"Redis: initialise the storage, for programs that insist on that, or after it was lost and somebody has found out which operations were done."`
	consent
}

const migrateUsage = "idem migrate [FLAGS]"

const migrateHelp = `PostgreSQL: creates the table, and its schema, if they are not there; the role
needs the right to do so. It can be repeated, by several at once.
Files: there is nothing to do, idem run makes them.
Redis: there is nothing to do either, but for --init, which asks before it does.

  idem migrate --store postgres://localhost/shop

Exit codes: 0, also if there was nothing to do, or 1 if --init was not
confirmed, 64 for bad flags, 69 if the store cannot be used, 74 if the output
cannot be written, 78 if the table is another one, or Redis has lost the
records. The messages are on standard error and begin with "idem:".
`

// Run prepares the store.
func (c *migrateCommand) Run(s *session) error {
	t, err := c.whole(s.getenv)
	if err != nil {
		return badUsage("migrate", "%v", err)
	}
	kind := t.kind()
	switch {
	case c.SQL && kind != "postgres":
		return badUsage("migrate", "--sql: the store %s is not one of PostgreSQL", t.name)
	case c.Init && kind != "redis":
		return badUsage("migrate", "--init: the store %s is not one of Redis", t.name)
	case kind == "redis":
		return c.redis(s, t)
	case kind == "postgres":
		return c.postgres(s, t)
	}
	return c.bolt(s, t)
}

func (c *migrateCommand) bolt(s *session, t target) error {
	backend, err := t.open(s.ctx, toRead)
	if f, ok := errors.AsType[*failure](err); ok && f.code == exitAbsent {
		return s.tell("store %s: there is nothing to do; the first idem run makes the file", t.name)
	}
	if err != nil {
		return t.refused("migrate", err)
	}
	defer func() { _ = backend.Close() }()
	return s.tell("store %s: there is nothing to do; the file is sound and of the present format", t.name)
}

func (c *migrateCommand) postgres(s *session, t target) error {
	if c.SQL {
		sql, err := postgres.Schema(t.postgresOptions.Schema, t.postgresOptions.Table)
		if err == nil {
			_, err = io.WriteString(s.stdout, sql)
		}
		return s.wrote(err)
	}
	backend, err := t.connectPostgres(s.ctx)
	if err != nil {
		return t.refused("migrate", err)
	}
	defer func() { _ = backend.Close() }()
	ctx, cancel := soon(s.ctx)
	defer cancel()
	switch err := backend.postgres.Check(ctx); {
	case err == nil:
		return s.tell("store %s: there is nothing to do; the table is there and as it should be", t.name)
	case !errors.Is(err, postgres.ErrNoTable):
		return t.refused("migrate", err)
	case c.DryRun:
		return s.tell("store %s: would create the table; idem migrate --sql shows how", t.name)
	}
	if err := backend.postgres.Migrate(ctx); err != nil {
		return t.refused("migrate", err)
	}
	return s.tell("store %s: the table is created", t.name)
}

func (c *migrateCommand) redis(s *session, t target) error {
	if c.Init {
		return c.initRedis(s, t)
	}
	backend, err := t.open(s.ctx, toOperate)
	if f, ok := errors.AsType[*failure](err); ok && f.code == exitAbsent {
		return s.tell("store %s: there is nothing to do; the first run initialises it. Where programs insist that it is initialised (MustExist), do it now: %s",
			t.name, t.storeLine("migrate", "--init"))
	}
	if err != nil {
		return t.refused("migrate", err)
	}
	defer func() { _ = backend.Close() }()
	for _, warning := range backend.warnings {
		s.say("store %s: %s", t.name, warning)
	}
	return s.tell("store %s: there is nothing to do; it is in use already, or needs no preparation", t.name)
}

// initRedis initialises a storage, whether it was lost or never there.
func (c *migrateCommand) initRedis(s *session, t target) error {
	if err := c.possible(s, "migrate"); err != nil {
		return err
	}
	// Whatever else there is to say about the server has to be said first.
	backend, err := t.open(s.ctx, toOperate)
	if err == nil {
		_ = backend.Close()
		return s.tell("store %s: there is nothing to do; it is in use already, or needs no preparation", t.name)
	}
	f, ok := errors.AsType[*failure](err)
	fresh := ok && f.code == exitAbsent
	if !fresh && !errors.Is(err, idem.ErrStoreLost) {
		return t.refused("migrate", err)
	}
	plan := "initialise the store " + t.name
	if !fresh {
		plan += ", which has lost its records: every operation that was in it could run again"
	}
	if c.DryRun {
		return s.tell("would %s; nothing was changed", plan)
	}
	if err := c.given(s, upper(plan)+"?"); err != nil {
		return err
	}
	if backend, err = t.connectRedis(toOperate); err != nil {
		return t.refused("migrate", err)
	}
	defer func() { _ = backend.Close() }()
	ctx, cancel := soon(s.ctx)
	defer cancel()
	if err := backend.redis.Init(ctx); err != nil {
		return t.refused("migrate", err)
	}
	return s.tell("store %s: initialised", t.name)
}
