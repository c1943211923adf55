package main

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
)

// How long something may take in PostgreSQL before somebody should know.
const (
	longOpen    = 10 * time.Minute // a transaction
	longUnswept = time.Hour        // an expired record
	manyDead    = 10_000           // rows
)

// postgres examines a table.
func (d *diagnosis) postgres() {
	backend, err := d.target.connectPostgres(d.session.ctx)
	if err != nil {
		d.unopened("server", err)
		return
	}
	defer func() { _ = backend.Close() }()
	ctx, cancel := d.ask()
	defer cancel()
	st, err := backend.postgres.Stats(ctx)
	if err != nil {
		d.unopened("server", err)
		return
	}
	d.add(ok, "server", "", "it answers, and is PostgreSQL %s", strings.Fields(st.Server + " ?")[0])
	if st.Standby {
		d.add(bad, "primary", "name the primary in the URL, or several with target_session_attrs=read-write", "the server is a standby: it takes no claims, and what it has may be old")
	} else {
		d.add(ok, "primary", "", "the server is no standby")
	}
	err = backend.postgres.Check(ctx)
	sound := err == nil
	if err != nil && !(st.Standby && errors.Is(err, idem.ErrUnavailable)) {
		d.unopened("table", err)
	} else if st.Table && sound {
		d.add(ok, "table", "", "it is as version %d of this program creates it", postgres.Version)
	}
	d.durability(st)
	d.clock("", st.ClockAhead)
	if !st.Table {
		return
	}
	d.table(st)
	for _, what := range st.Hidden {
		d.add(skip, "hidden", "", "this role may not see: %s", what)
	}
	if !sound || slices.Contains(st.MissingRights, "SELECT") {
		d.add(skip, "records", "", "not looked at, for what is said above")
		return
	}
	d.records(backend)
}

func (d *diagnosis) durability(st postgres.Stats) {
	switch {
	case !st.Fsync:
		d.add(bad, "durability", "set fsync = on", "fsync is off: a crash of the machine can lose records, or damage the database")
	case !st.FullPageWrites:
		d.add(bad, "durability", "set full_page_writes = on, unless the file system cannot tear pages", "full_page_writes is off: a crash of the machine can damage the database")
	case st.SynchronousCommit == "off":
		d.add(warn, "durability", "set synchronous_commit = on for the transactions that complete a claim, or for all",
			"synchronous_commit is off by default: calls by themselves wait for the disk all the same, and a completion in a transaction is refused unless that is allowed")
	default:
		d.add(ok, "durability", "", "fsync and full_page_writes are on, synchronous_commit is %s", st.SynchronousCommit)
	}
}

func (d *diagnosis) table(st postgres.Stats) {
	if len(st.MissingRights) > 0 {
		d.add(bad, "rights", "let the owner grant them on the table, with USAGE on its schema", "this role lacks %s", strings.Join(st.MissingRights, ", "))
	} else {
		d.add(ok, "rights", "", "this role may read, write and delete records")
	}
	if len(st.InvalidIndexes) > 0 {
		d.add(bad, "indexes", "REINDEX INDEX CONCURRENTLY, for each of them", "not valid: %s", strings.Join(st.InvalidIndexes, ", "))
	} else {
		d.add(ok, "indexes", "", "all are valid")
	}
	vacuumed := "never vacuumed"
	if st.Vacuumed >= 0 {
		vacuumed = "vacuumed " + brief(st.Vacuumed) + " ago"
	}
	switch {
	case !st.Autovacuum:
		d.add(warn, "vacuum", "turn autovacuum on, for the server and the table", "autovacuum is off; %s dead, %s, %s", counted(st.Dead, "row is", "rows are"), size(st.Size), vacuumed)
	case st.Dead > manyDead && st.Dead > st.Live:
		d.add(warn, "vacuum", "end what keeps it from working, such as a transaction that is open for long; then VACUUM the table", "%s dead, and %s live; %s, %s",
			counted(st.Dead, "row is", "rows are"), grouped(st.Live), size(st.Size), vacuumed)
	default:
		d.add(ok, "vacuum", "", "about %s and %s dead; %s, %s", counted(st.Live, "row", "rows"), grouped(st.Dead), size(st.Size), vacuumed)
	}
	if st.OverdueFor > longUnswept {
		d.add(warn, "sweep", "run the janitor in a program, or from cron: "+d.target.storeLine("sweep"), "%s not been deleted, the first for %s", overdueHave(st.Overdue), brief(st.OverdueFor))
	} else {
		d.add(ok, "sweep", "", "%s to be deleted", overdue(st.Overdue))
	}
	switch {
	case st.Prepared > 0:
		d.add(warn, "transactions", "COMMIT PREPARED or ROLLBACK PREPARED them; see pg_prepared_xacts", "%s of a two-phase commit with records of this table, the oldest open for %s: their keys wait",
			counted(int64(st.Prepared), "transaction", "transactions"), brief(st.Oldest))
	case st.Oldest > longOpen:
		d.add(warn, "transactions", "find it in pg_stat_activity and end it", "a transaction has used the table and been open for %s: its keys wait, and nothing is vacuumed", brief(st.Oldest))
	default:
		d.add(ok, "transactions", "", "none has been open for long")
	}
}

func overdueHave(n int64) string {
	if n == 1 {
		return "1 expired record has"
	}
	return overdue(n) + " have"
}
