package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idem-go/idem"
)

// eraseAtOnce is how many records are erased at a time: storages write them together.
const eraseAtOnce = 32

type eraseCommand struct {
	Scope []string `required:"" placeholder:"SCOPE" sep:"none" help:"Whose results, such as a tenant's: --scope tenant-7. Those of the scopes below it go too. Give it twice for a scope within a scope."`
	place
	consent
}

const eraseUsage = "idem erase --scope SCOPE [FLAGS]"

const eraseHelp = `Takes the results out of a scope's completed records: their bodies and
metadata. The records themselves stay until they would have expired anyway,
with the key, the code and the fingerprint, because without them a late
duplicate would run the operation again. It gets the code and no output. Put
nothing personal into keys.

Attempts that run, or that have no known outcome, are left alone, with what
they noted down in a checkpoint for whoever takes over. Repeat the call when
they are at an end. Results that are recorded during the call may be left too;
it says so.

The storage may keep old bytes: a file in its free pages, PostgreSQL in dead
rows until it is vacuumed, Redis in its append-only file, and all of them in
logs, snapshots, replicas and backups. The last lines of the output say what to
do.

  idem erase --scope tenant-7 --dry-run

Asks before it changes anything; without a terminal it needs --yes. It can be
interrupted and started again.

Exit codes: 0, or 1 if it was not confirmed, 2 if something was left alone, 64
for bad flags or if there is no terminal and no --yes, 66 if there is no store,
69 if the store cannot be used, 74 if the output cannot be written, 78 if the
store is damaged or not set up. The messages are on standard error and begin
with "idem:".
`

// A plan of what is to be erased, and what is in the way.
type erasure struct {
	results    int64 // completed, with something to erase
	bytes      int64
	already    int64         // completed, and there is nothing to erase
	until      time.Duration // when the last of these records expires
	running    int64
	unresolved int64
	notes      int64 // of the last two, those with a checkpoint
}

// Run erases the results of a scope.
func (c *eraseCommand) Run(s *session) error {
	t, err := where{c.Scope, c.place}.at("", s.getenv)
	if err != nil {
		return badUsage("erase", "%v", err)
	}
	if err := t.checkScope(); err != nil {
		return t.refused("erase", err)
	}
	if err := c.possible(s, "erase"); err != nil {
		return err
	}
	purpose := toOperate
	if c.DryRun {
		purpose = toRead
	}
	backend, err := t.open(s.ctx, purpose)
	if err != nil {
		return t.refused("erase", err)
	}
	defer func() { _ = backend.Close() }()
	return c.eraseIn(s, t, backend)
}

// eraseIn erases the results in a store that is open.
func (c *eraseCommand) eraseIn(s *session, t target, backend *storage) error {
	plan, err := c.plan(s, backend)
	if err != nil {
		return t.refused("erase", err)
	}
	scope := fmt.Sprintf("scope %q", scopeName(c.Scope))
	what := fmt.Sprintf("%s with %s", counted(plan.results, "result", "results"), size(plan.bytes))
	switch {
	case c.DryRun:
		if err := s.tell("%s: would erase %s; nothing was changed", scope, what); err != nil {
			return err
		}
		plan.results = 0 // they were not left alone
		return c.left(s, t, plan)
	case plan.results == 0:
		if err := s.tell("%s: there is no result to erase; %s none", scope, counted(plan.already, "completed record has", "completed records have")); err != nil {
			return err
		}
		return c.left(s, t, plan)
	}
	if err := c.given(s, fmt.Sprintf("Erase %s in %s of %s?", what, scope, t.name)); err != nil {
		return err
	}
	erased, err := c.erase(s, backend)
	if err != nil {
		s.say("%s: %s erased before this:", scope, counted(erased, "result was", "results were"))
		return t.refused("erase", err)
	}
	// Attempts may have ended since, and others begun.
	if plan, err = c.plan(s, backend); err != nil {
		return t.refused("erase", err)
	}
	if err := s.tell("%s: %s erased\nThe records stay until they expire, the last in %s.\n%s", scope, counted(erased, "result is", "results are"), brief(plan.until), t.remains()); err != nil {
		return err
	}
	return c.left(s, t, plan)
}

// plan looks what there is in the scope.
func (c *eraseCommand) plan(s *session, b idem.Lister) (p erasure, err error) {
	bar := s.progress("looking for results")
	defer bar.end()
	n := 0
	err = eachEntry(s.ctx, b, idem.Query{Prefix: idem.ScopePrefix(c.Scope...)}, func(e idem.Entry) error {
		if n++; n%listPage == 0 {
			bar.add(listPage)
		}
		r := e.Record
		switch r.Status {
		case idem.Completed:
			p.until = max(p.until, r.TTL-r.Age)
			if bytes := answerBytes(r.Result); bytes > 0 {
				p.results++
				p.bytes += bytes
			} else {
				p.already++
			}
			return nil
		case idem.InProgress:
			if r.Lapsed() {
				p.unresolved++
			} else {
				p.running++
			}
			if len(r.Checkpoint) > 0 {
				p.notes++
			}
		}
		return nil
	})
	return p, err
}

func answerBytes(r idem.Result) int64 {
	n := len(r.Body)
	for name, value := range r.Meta {
		n += len(name) + len(value)
	}
	return int64(n)
}

// erase erases every result in the scope, and returns how many it was.
func (c *eraseCommand) erase(s *session, b *storage) (int64, error) {
	bar := s.progress("erasing results")
	defer bar.end()
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	root, err := idem.New(b, nil)
	if err != nil {
		return 0, err
	}
	var erased atomic.Int64
	keys := make(chan string)
	var workers sync.WaitGroup
	for range eraseAtOnce {
		workers.Go(func() {
			for stored := range keys {
				store := root
				levels, key := idem.SplitKey(stored)
				for _, level := range levels {
					store = store.Scoped(level)
				}
				err := store.Erase(ctx, key)
				switch {
				case err == nil:
					erased.Add(1)
				case !errors.Is(err, idem.ErrInProgress) && !errors.Is(err, idem.ErrUnresolved): // begun anew in the meantime
					cancel(err)
				}
			}
		})
	}
	n := 0
	err = eachEntry(ctx, b, idem.Query{Prefix: idem.ScopePrefix(c.Scope...)}, func(e idem.Entry) error {
		if e.Record.Status != idem.Completed || answerBytes(e.Record.Result) == 0 {
			return nil
		}
		select {
		case keys <- e.Key:
		case <-ctx.Done():
			return ctx.Err()
		}
		if n++; n%listPage == 0 {
			bar.add(listPage)
		}
		return nil
	})
	close(keys)
	workers.Wait()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return erased.Load(), err
}

// left says what was left alone and why, which is not success.
func (c *eraseCommand) left(s *session, t target, p erasure) error {
	if p.running+p.unresolved+p.results == 0 {
		return nil
	}
	var parts []string
	if p.results > 0 {
		parts = append(parts, counted(p.results, "result that was recorded meanwhile", "results that were recorded meanwhile"))
	}
	if p.running > 0 {
		parts = append(parts, counted(p.running, "attempt that runs", "attempts that run"))
	}
	if p.unresolved > 0 {
		parts = append(parts, counted(p.unresolved, "attempt without a known outcome", "attempts without a known outcome"))
	}
	hint := "give the same command again"
	if p.running > 0 {
		hint += " when they are at an end"
	}
	if p.unresolved > 0 {
		hint = "decide about those without a known outcome with idem resolve or idem forget, see " + t.listing() + " --lapsed" + "; then give the same command again"
	}
	notes := ""
	if p.running+p.unresolved > 0 {
		notes = "; " + counted(p.notes, "has", "have") + " a checkpoint, which whoever takes over needs"
	}
	return fail(exitFindings, hint, "scope %q: left alone: %s%s", scopeName(c.Scope), strings.Join(parts, " and "), notes)
}

// remains says where the old bytes may still be.
func (t target) remains() string {
	const everywhere = "Replicas and backups have the results for as long as they are kept."
	switch t.kind() {
	case "postgres":
		return "PostgreSQL has the old rows until it vacuums the table, and its WAL for longer.\n" + everywhere
	case "redis":
		return "An append-only file has the old values until it is rewritten (BGREWRITEAOF), and a\nsnapshot until the next one.\n" + everywhere
	}
	return "The file may have the old bytes in free pages until those are used again. A new\nfile without them, when the writers are stopped:\n  " +
		t.storeLine("export", "--to", "bolt:new.db") + "\n" + everywhere
}
