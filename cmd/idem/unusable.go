package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
)

// unusable explains why the store could not do its part. cause is what the error
// err is about, without the key.
func (t target) unusable(verb string, err, cause error) error {
	nothing := ""
	if verb == "run" {
		nothing = "; nothing was run"
	}
	code, hint := exitUnavailable, "when the cause is mended, give the same command again"
	switch damaged := errors.Is(err, idem.ErrCorrupt) || errors.Is(err, idem.ErrStoreLost); {
	case t.kind() == "postgres":
		code, hint = t.postgresTrouble(damaged, err)
	case t.kind() == "redis":
		code, hint = t.redisTrouble(damaged, err)
	case damaged:
		code, hint = exitDamaged, "the file was left as it is: restore it, or find out what has been done before you begin a new one with --store"
	case errors.Is(err, idem.ErrLocked):
		hint = "find out which process holds it and try again: fuser " + quote(t.path)
	case errors.Is(err, fs.ErrPermission):
		hint = "choose a file that you may use with --store or $IDEM_STORE"
	case errors.Is(err, fs.ErrNotExist) && missing(filepath.Dir(t.path)):
		hint = "make the folder first: mkdir -p " + quote(filepath.Dir(t.path))
	}
	return fail(code, hint, "store %s: %s%s", t.name, t.trimmed(cause), nothing)
}

// serverHint is what to do about a server that does not answer or lets nobody in.
const serverHint = "see that the server runs and that host, user, password and database in the URL are right; then give the same command again"

// slowHint is what to do about one that has not answered in time.
const slowHint = "see whether the server can be reached and is not held up, such as by an open transaction with the same key; then give the same command again"

// postgresTrouble returns the exit code for what PostgreSQL has reported, and
// what to do.
func (t target) postgresTrouble(damaged bool, err error) (code int, hint string) {
	e, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case errors.Is(err, postgres.ErrNoTable):
		return exitDamaged, "create it first: " + t.storeLine("migrate")
	case errors.Is(err, postgres.ErrOtherTable):
		return exitDamaged, "find out what the table belongs to, or name another one with idem_schema and idem_table in the URL"
	case damaged:
		return exitDamaged, "nothing was changed: find out what has written the record, and what has been done"
	case errors.Is(err, context.DeadlineExceeded):
		return exitUnavailable, slowHint
	case answered && e.Code == "42501": // the role may not do that
		return exitUnavailable, "let the owner of the table or of the database see to it, and give the same command again"
	}
	return exitUnavailable, serverHint
}

// redisTrouble does the same for Redis.
func (t target) redisTrouble(damaged bool, err error) (code int, hint string) {
	switch {
	case errors.Is(err, idem.ErrStoreLost):
		return exitDamaged, "when that is known and dealt with: " + t.storeLine("migrate", "--init")
	case isUnfit(err):
		return exitDamaged, "mend that, or use another store"
	case damaged:
		return exitDamaged, "nothing was changed: find out what has written the record, and what has been done"
	}
	return exitUnavailable, serverHint
}

func isUnfit(err error) bool {
	_, ok := errors.AsType[*unfit](err)
	return ok
}

func missing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// inOurWords says what a user of the program can do about what the libraries
// advise their callers to do.
var inOurWords = strings.NewReplacer(
	"; call Migrate, or run the SQL of Schema", "",
	"; run the SQL of Schema as its owner", "; let its owner run what idem migrate --sql prints",
	"Find out which operations were done, then call Init", "Find out which operations were done",
	"accept that with Options.AllowEviction", "accept that with idem_allow_eviction=true in the URL",
	"connect with a ClusterClient", "name a second node in the URL, as in redis://HOST:PORT?addr=HOST:PORT",
	"; see the package documentation for the rights that are needed", "",
	// pgx puts each address that it has tried on a line of its own.
	":\n\t", ": ", "\n\t", "; ",
)

// trimmed returns what err says without what stands in front of it already: the
// program, the kind of store and its file.
func (t target) trimmed(err error) string { return t.location.trimmed(err) }

func (l *location) trimmed(err error) string {
	fronts := []string{
		idem.ErrNotRecorded.Error() + ": ", idem.ErrUnavailable.Error() + ": ", idem.ErrOptions.Error() + ": ", l.kind() + ": ", "open ", l.name + ": ",
		"check: ", "migrate: ", "get: ", "swap: ", "list: ", "sweep: ", "stats: ",
	}
	s := trimmed(err)
	for {
		rest := s
		for _, front := range fronts {
			rest = strings.TrimPrefix(rest, front)
		}
		if rest == s {
			return inOurWords.Replace(s)
		}
		s = rest
	}
}
