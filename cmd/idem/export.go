package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/bolt"
)

// exportAtOnce is how many records are copied at a time: storages write them together.
const exportAtOnce = 128

// How much earlier or later than in the old store a lease or a record may end in the
// new one, for a verification to pass: what a call takes under load.
const (
	endsEarlier = time.Second
	endsLater   = time.Minute
)

// exportExamples is how many keys are named for each thing that is wrong.
const exportExamples = 5

type exportCommand struct {
	To     string `required:"" placeholder:"URL" complete:"file" help:"The new store, as --store names one: --to postgres://HOST/DATABASE. A file is made if it is not there, a table by idem migrate."`
	DryRun bool   `help:"Say what would be copied, and what is in the way, and change nothing."`
	place
}

const exportUsage = "idem export --to URL [FLAGS]"

const exportHelp = `Copies all records of the store to another one, such as from a file to
PostgreSQL, so that programs can go on there as if nothing had happened:
results are replayed for as long as they would have been, attempts that run or
are unresolved stay so with what is left of their leases, and the numbers of
attempts and the fences go on. Nothing is changed in the old store, and no
record of the new one is replaced.

  1. Stop everything that writes to the old store.
  2. idem export --store /var/lib/idem/jobs.db --to postgres://localhost/shop
  3. Let the programs use the new store, and none of them the old one again.

A file is locked for the time of the copy. In PostgreSQL and Redis nothing
keeps others from writing; when all is copied, every record is read again in
both stores and compared, so that what has changed or is missing is told. It
can be interrupted and started again: what is there already is not copied
twice.

Exit codes: 0 if every record is in the new store, 2 if not, with the keys of
some; 64 for bad flags, 66 if there is no old store, 69 if a store cannot be
used, 74 if the output cannot be written, 78 if a store is damaged or not set
up. The messages are on standard error and begin with "idem:".
`

// Run copies the records.
func (c *exportCommand) Run(s *session) error {
	from, err := c.whole(s.getenv)
	if err != nil {
		return badUsage("export", "%v", err)
	}
	to, err := place{c.To}.whole(func(string) string { return "" })
	if err != nil {
		return badUsage("export", "--to: %v", err)
	}
	if sameStore(from, to) {
		return badUsage("export", "--to: %s is the store itself", to.name)
	}
	old, err := from.hold(s.ctx, toRead)
	if err != nil {
		return from.refused("export", err)
	}
	defer func() { _ = old.Close() }()
	e := &exporting{session: s, from: from, to: to, old: old}
	if err := e.count(); err != nil {
		return from.refused("export", err)
	}
	if c.DryRun {
		return e.dryRun()
	}
	if e.new, err = to.hold(s.ctx, toRun); err != nil {
		return to.refused("export", err)
	}
	defer func() { _ = e.new.Close() }()
	return e.run()
}

// sameStore reports whether two targets are one store, as far as the names tell.
func sameStore(a, b target) bool {
	if a.name == b.name {
		return true
	}
	if a.kind() != "bolt" || b.kind() != "bolt" {
		return false
	}
	x, err1 := os.Stat(a.path)
	y, err2 := os.Stat(b.path)
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

// hold opens a store like open, but keeps a file from others until it is closed.
func (l *location) hold(ctx context.Context, p purpose) (*storage, error) {
	if l.kind() != "bolt" {
		return l.open(ctx, p)
	}
	if p != toRun && missing(l.path) {
		return nil, l.absent("there is no such file")
	}
	b, err := bolt.Open(l.path, &bolt.Options{OpenTimeout: lockTimeout, MustExist: p != toRun, ReadOnly: p == toRead})
	if err != nil {
		return nil, err
	}
	return &storage{records: b, location: l, bolt: b}, nil
}

// An exporting is a copy on its way.
type exporting struct {
	session  *session
	from, to target
	old, new *storage

	total tally // of the old store, when it was counted

	mu      sync.Mutex
	wrong   map[string][]string // keys, by what is wrong with them
	wrongs  map[string]int64
	checked int64 // records that are in both stores and the same
}

// What can be wrong with a record.
const (
	inTheWay = "the new store has another record, which was left as it is: it was there before, or the old one was written to after it was copied"
	notThere = "the record is not in the new store"
	differs  = "the record in the new store is not the same"
)

func (e *exporting) note(what, stored string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.wrong == nil {
		e.wrong, e.wrongs = make(map[string][]string), make(map[string]int64)
	}
	if e.wrongs[what]++; len(e.wrong[what]) < exportExamples {
		levels, key := idem.SplitKey(stored)
		e.wrong[what] = append(e.wrong[what], target{where: where{Scope: levels}, key: key}.String())
	}
}

// count reads the old store to its end, so that damage is found before anything is
// written.
func (e *exporting) count() error {
	bar := e.session.progress("reading records")
	defer bar.end()
	n := 0
	return eachEntry(e.session.ctx, e.old, idem.Query{}, func(entry idem.Entry) error {
		e.total.add(entry)
		if n++; n%listPage == 0 {
			bar.add(listPage)
		}
		return nil
	})
}

// summary tells what kinds of records there are.
func (t *tally) summary() string {
	parts := []string{grouped(t.Completed) + " completed"}
	for _, part := range []struct {
		n    int64
		what string
	}{{t.Running, " running"}, {t.Unresolved, " without a known outcome"}, {t.Released, " released"}} {
		if part.n > 0 {
			parts = append(parts, grouped(part.n)+part.what)
		}
	}
	return counted(t.Records, "record", "records") + ", " + size(t.bytes()) + ": " + strings.Join(parts, ", ")
}

// dryRun tells what run would do.
func (e *exporting) dryRun() error {
	s := e.session
	var err error
	e.new, err = e.to.hold(s.ctx, toRead)
	if f, absent := errors.AsType[*failure](err); absent && f.code == exitAbsent {
		return s.tell("would copy %s\nfrom %s\nto   %s, which would be made", e.total.summary(), e.from.name, e.to.name)
	}
	if err != nil {
		return e.to.refused("export", err)
	}
	defer func() { _ = e.new.Close() }()
	var there atomic.Int64
	err = e.each("looking at the new store", func(ctx context.Context, entry idem.Entry, _ time.Time) error {
		got, err := e.new.Get(ctx, entry.Key)
		switch {
		case err != nil:
			return e.to.refused("export", err)
		case got.Token == entry.Record.Token:
			there.Add(1)
		case got.Status != 0:
			e.note(inTheWay, entry.Key)
		}
		return nil
	})
	if err != nil {
		return e.from.refused("export", err)
	}
	if err := s.tell("would copy %s\nfrom %s\nto   %s, which has %s of them already", e.total.summary(), e.from.name, e.to.name, grouped(there.Load())); err != nil {
		return err
	}
	return e.verdict()
}

// run copies and compares.
func (e *exporting) run() error {
	s := e.session
	if e.from.kind() != "bolt" {
		s.say("nothing may write to %s until this is done", e.from.name)
	}
	if err := e.each("copying records", e.copy); err != nil {
		s.say("not all records are copied; give the same command again to go on")
		return e.from.refused("export", err)
	}
	if err := e.each("comparing records", e.compare); err != nil {
		s.say("all records are copied, but not compared; give the same command again to do that")
		return e.from.refused("export", err)
	}
	if err := s.tell("copied %s\nfrom %s\nto   %s\ncompared: %s the same in both", e.total.summary(), e.from.name, e.to.name, counted(e.checked, "record is", "records are")); err != nil {
		return err
	}
	if n := e.total.Running; n > 0 {
		s.say("%s not ended in the old store. Whoever still runs one goes on there, and the new store lets another take it over when its lease is over: see that nobody does", counted(n, "attempt had", "attempts had"))
	}
	if err := e.verdict(); err != nil {
		return err
	}
	return s.tell("Let the programs use the new store from now on, and none of them the old one.")
}

// each calls do for the records of the old store, many at a time, with the instant
// at which they were read.
func (e *exporting) each(what string, do func(ctx context.Context, entry idem.Entry, read time.Time) error) error {
	bar := e.session.progressOf(what, e.total.Records)
	defer bar.end()
	ctx, cancel := context.WithCancelCause(e.session.ctx)
	defer cancel(nil)
	type job struct {
		idem.Entry
		read time.Time
	}
	jobs := make(chan job)
	var workers sync.WaitGroup
	for range exportAtOnce {
		workers.Go(func() {
			for j := range jobs {
				if err := do(ctx, j.Entry, j.read); err != nil {
					cancel(err)
				}
			}
		})
	}
	q := idem.Query{Limit: listPage}
	var err error
	for more := true; more && err == nil; {
		var entries []idem.Entry
		entries, q.Cursor, err = e.old.List(ctx, q)
		read := time.Now()
		for _, entry := range entries {
			select {
			case jobs <- job{entry, read}:
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		bar.add(len(entries))
		more = q.Cursor != ""
	}
	close(jobs)
	workers.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// copy stores a record in the new store, if nothing is there. A record that has been
// copied before is found by its token, and another one by the comparison.
func (e *exporting) copy(ctx context.Context, entry idem.Entry, read time.Time) error {
	r := entry.Record.Rest(time.Since(read))
	if r.TTL <= 0 {
		return nil
	}
	if _, err := e.new.Swap(ctx, entry.Key, "", r); err != nil {
		return e.to.refused("export", err)
	}
	return nil
}

// compare reads a record again in both stores.
func (e *exporting) compare(ctx context.Context, entry idem.Entry, read time.Time) error {
	got, err := e.new.Get(ctx, entry.Key)
	if err != nil {
		return e.to.refused("export", err)
	}
	want := entry.Record.Rest(time.Since(read))
	switch {
	case got.Token == want.Token:
		if !sameRecord(got.Rest(0), want) {
			e.note(differs, entry.Key)
			return nil
		}
		e.mu.Lock()
		e.checked++
		e.mu.Unlock()
	case want.TTL <= endsEarlier: // it expires
	case got.Status == 0:
		e.note(notThere, entry.Key)
	default:
		e.note(inTheWay, entry.Key)
	}
	return nil
}

// sameRecord reports whether two records guarantee the same.
func sameRecord(got, want idem.Record) bool {
	near := func(got, want time.Duration) bool { return got >= want-endsEarlier && got <= want+endsLater }
	return got.Token == want.Token && got.Status == want.Status && got.Attempt == want.Attempt && got.Fence == want.Fence &&
		got.Fingerprint == want.Fingerprint && got.Result.Code == want.Result.Code && got.Result.Omitted == want.Result.Omitted &&
		slices.Equal(got.Result.Body, want.Result.Body) && maps.Equal(got.Result.Meta, want.Result.Meta) &&
		slices.Equal(got.Checkpoint, want.Checkpoint) && (got.Lease == 0) == (want.Lease == 0) &&
		near(got.Lease, want.Lease) && near(got.TTL, want.TTL)
}

// verdict tells what is wrong, which is not success.
func (e *exporting) verdict() error {
	if len(e.wrongs) == 0 {
		return nil
	}
	var total int64
	for _, what := range []string{inTheWay, notThere, differs} {
		n := e.wrongs[what]
		total += n
		if n == 0 {
			continue
		}
		more := ""
		if n > int64(len(e.wrong[what])) {
			more = ", ..."
		}
		e.session.say("%s: %s: %s%s", counted(n, "key", "keys"), what, strings.Join(e.wrong[what], ", "), more)
	}
	hint := "do not use the new store yet: stop what writes to the old one, and copy to an empty store"
	return fail(exitFindings, hint, "%s not in the new store as in the old one", counted(total, "record is", "records are"))
}
