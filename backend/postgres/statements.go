package postgres

import "strings"

// The SQL of the calls on records. A call is one statement, or two in one pipeline,
// and so one round trip; only what is rare takes another. Parameters are cast in
// the text, so that it means the same in pgx's extended, exec and simple modes and
// through database/sql; what a key holds never becomes part of the text.
//
// Two things are to be known about such a statement:
//
//   - All its parts see the snapshot of its beginning. A rival who commits after
//     that makes INSERT or UPDATE miss, while the SELECT beside them still shows
//     what was there before. The caller recognises such a reply and asks again.
//   - INSERT and UPDATE wait for a transaction that has written the row and is
//     still open. A connection must not wait for somebody's business
//     transaction, so everybody takes an advisory lock on the key first:
//     transactions exclusively, until they end, and single statements shared, so
//     that they do not stand in each other's way. Who does not get it comes back
//     later.
type statements struct {
	get, read, there, token, sweep, list, heal, overdue string
	claim, replace                                      writes
	insert, last                                        string // the writes of Do

	batch, batchReplaces, claims, replaces, reads string // see together
}

// writes are the variants of a statement that writes.
type writes struct {
	alone string // by itself: commits durably whatever the default is
	bound string // in the caller's transaction: tells if that does not commit durably
	piece string // by itself, and only the write: no row if it did not take place
}

// lockAlone and lockBound are the conditions under which a row may be written.
const (
	lockAlone = `pg_try_advisory_xact_lock_shared($2::bigint)`
	lockBound = `pg_try_advisory_xact_lock($2::bigint)`
)

// durably is the outcome of a write by itself. Where the session's default is to
// acknowledge commits that a crash of the server loses, it is changed for this
// transaction; the setting is looked at when the transaction commits.
const durably = `CASE WHEN current_setting('synchronous_commit') <> 'off' THEN 2
	WHEN set_config('synchronous_commit', 'on', true) IS NULL THEN 3 ELSE 2 END`

// asIs is the outcome of a write in the caller's transaction.
const asIs = `CASE WHEN current_setting('synchronous_commit') = 'off' THEN 3 ELSE 2 END`

// claimSQL stores a record where there is none.
const claimSQL = `
WITH present AS MATERIALIZED (
	SELECT {columns} AS age FROM {table} AS r WHERE r.key = $1::text
), mine AS (
	INSERT INTO {table} AS r (key, token, status, attempt, fence, fingerprint, code, meta, body, omitted, checkpoint, lease, ttl, written_at, sweep_at)
	SELECT {values}
	WHERE CASE WHEN EXISTS (SELECT FROM present) THEN false ELSE {lock} END
	ON CONFLICT (key) DO NOTHING
	RETURNING 1
)
SELECT ({outcome})::smallint, {none} FROM mine
UNION ALL
SELECT 1::smallint, r.* FROM present AS r`

// claimPieceSQL and replacePieceSQL are the writing parts of claimSQL and
// replaceSQL, and readSQL is the reading part: the record that is there, unless it
// is the one with token $2 that has been written in the same transaction just now.
const (
	claimPieceSQL = `
INSERT INTO {table} (key, token, status, attempt, fence, fingerprint, code, meta, body, omitted, checkpoint, lease, ttl, written_at, sweep_at)
SELECT {values}
WHERE {lock}
ON CONFLICT (key) DO NOTHING
RETURNING ({outcome})::smallint, NULL::text`

	replacePieceSQL = `
UPDATE {table} AS r SET {set}
WHERE {match}
RETURNING ({outcome})::smallint, {notify}`

	readSQL = `SELECT 1::smallint, {columns} FROM {table} AS r
WHERE r.key = $1::text AND (r.token <> $2::text OR r.xmin IS DISTINCT FROM pg_current_xact_id_if_assigned()::xid)`
)

// valuesSQL and setSQL are what is written, of the parameters $1 to $15.
const (
	valuesSQL = `$1::text, $3::text, $4::bigint::smallint, $5::bigint, $6::bigint, $7::bytea, $8::bigint, $9::bytea, $10::bytea, $11::boolean, $12::bytea, $13::bigint, $14::bigint,
	clock_timestamp(), clock_timestamp() + {soonest}`

	setSQL = `token = $3::text, status = $4::bigint::smallint, attempt = $5::bigint, fence = $6::bigint, fingerprint = $7::bytea,
	code = $8::bigint, meta = $9::bytea, body = $10::bytea, omitted = $11::boolean, checkpoint = $12::bytea, lease = $13::bigint, ttl = $14::bigint,
	written_at = clock_timestamp(),
	sweep_at = CASE WHEN r.sweep_at BETWEEN clock_timestamp() + {soonest} - interval '1 hour' AND clock_timestamp() + {soonest}
		THEN r.sweep_at ELSE clock_timestamp() + {soonest} END`
)

// matchSQL is the condition for the record to be replaced. Only if all else is met
// the lock is taken: in a transaction it stays until the end.
const matchSQL = `r.key = $1::text AND CASE WHEN r.token = $16::text AND (r.token <> $3::text OR NOT $17::boolean) AND ({live}) = $17::boolean THEN {lock} ELSE false END`

// insertSQL is the write of a transaction that holds the lock of the key
// exclusively and has seen no record. If there is one all the same, the
// uniqueness of the key makes it an error, which undoes the transaction. The
// planner does not look through a SELECT with a clock in it, as it does through
// VALUES; and each parameter must occur, so the lock does.
const insertSQL = `
INSERT INTO {table} AS r (key, token, status, attempt, fence, fingerprint, code, meta, body, omitted, checkpoint, lease, ttl, written_at, sweep_at)
VALUES ({values})
RETURNING (CASE WHEN $2::bigint IS NOT NULL THEN {outcome} END)::smallint, {notify}`

// replaceSQL stores a record in the place of another one.
// $16 is the token of the record that is replaced, and $17 whether it is live.
const replaceSQL = `
WITH mine AS (
	UPDATE {table} AS r SET {set}
	WHERE {match}
	RETURNING 1, {notify}
)
SELECT ({outcome})::smallint, {none} FROM mine
UNION ALL
{else}`

// What a replacement that did not take place answers with: the record that is
// there, or a division by zero, which keeps the COMMIT behind it from being run.
const (
	elsePresent = `SELECT 1::smallint, {columns} FROM {table} AS r WHERE r.key = $1::text AND NOT EXISTS (SELECT FROM mine)`
	elseFail    = `SELECT 1::smallint, {none} WHERE 1 / (SELECT count(*) FROM mine) = 0`
)

// soonest is the instant that goes into sweep_at; see [soonest].
const soonestSQL = `$15::bigint::float8 * interval '1 microsecond'`

const getSQL = `SELECT CASE WHEN pg_is_in_recovery() THEN 4::smallint ELSE 1::smallint END, {columns} FROM {table} AS r WHERE r.key = $1::text`

// standbySQL is asked where there is no record that could tell.
const standbySQL = `SELECT CASE WHEN pg_is_in_recovery() THEN 4 ELSE 0 END::smallint, ` + noColumns

// tokenSQL is what somebody who waits for another record asks again and again.
const tokenSQL = `SELECT r.token FROM {table} AS r WHERE r.key = $1::text AND {live}`

// heldSQL tells whether another transaction has written the key and is still
// open. Single statements hold the lock shared, for as long as they take.
const heldSQL = `
SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND classid = ($1::bigint)::oid AND objid = ($2::bigint)::oid
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND mode = 'ExclusiveLock' AND granted AND pid <> pg_backend_pid())`

// lockSQL takes the lock of a key for a transaction of Do, and tells whether the
// server is a standby. thereSQL tells with a row that there is a record.
const (
	lockSQL  = `SELECT pg_try_advisory_xact_lock($1::bigint), pg_is_in_recovery()`
	thereSQL = `SELECT FROM {table} AS r WHERE r.key = $1::text`
)

// freeSQL is what somebody asks who waits for a transaction that has written a
// key. The lock goes with the statement.
const freeSQL = `SELECT pg_try_advisory_xact_lock_shared($1::bigint)`

// healSQL mends the record of a clock that was set back, so that its lease lasts
// no longer than Lease from now, without changing what it says.
const healSQL = `
UPDATE {table} AS r SET written_at = clock_timestamp(), sweep_at = least(r.sweep_at, clock_timestamp() + (r.ttl / 1000)::float8 * interval '1 microsecond')
WHERE r.key = $1::text AND r.token = $2::text AND r.written_at > clock_timestamp() AND pg_try_advisory_xact_lock_shared($3::bigint)`

// sweepSQL looks at records in the order of the index, which needs an instant
// that stands still; each is judged by the clock when its row is locked, and
// nobody changes it between that and the deletion. What is damaged is not gone.
const sweepSQL = `
WITH due AS MATERIALIZED (
	SELECT r.key FROM {table} AS r
	WHERE r.sweep_at <= statement_timestamp() AND NOT ({live}) AND r.ttl >= 0
	ORDER BY r.sweep_at LIMIT $1::bigint FOR UPDATE SKIP LOCKED
), gone AS (
	DELETE FROM {table} AS r USING due WHERE r.key = due.key AND NOT ({live}) RETURNING 1
)
SELECT count(*) FROM gone`

// listSQL looks at $4 records in the order of their keys and returns those that
// are asked for, at most $5, after a row with how many it has looked at and the
// last key of them. C collation: the order of the keys is that of their bytes.
const listSQL = `
WITH looked AS MATERIALIZED (
	SELECT r.key, r.status, r.lease, r.ttl, r.written_at, {live} AS live, {age} AS age
	FROM {table} AS r WHERE r.key > $1::text AND r.key >= $2::text AND r.key < $3::text
	ORDER BY r.key LIMIT $4::bigint
), found AS MATERIALIZED (
	SELECT l.key FROM looked AS l
	WHERE l.live AND ($6::bigint = 0 OR l.status = $6::bigint)
		AND (NOT $7::boolean OR l.status = 1 AND greatest(l.age, 0) >= l.lease / 1000 + least(l.lease % 1000, 1))
	ORDER BY l.key LIMIT $5::bigint
)
(SELECT (SELECT count(*) FROM looked), (SELECT max(key) FROM looked), 0::smallint, {none})
UNION ALL
(SELECT 0::bigint, r.key, 1::smallint, {columns} FROM {table} AS r JOIN found AS f ON f.key = r.key)`

// newStatements returns the SQL for the quoted table. Where it is notifying,
// writes notify those who wait.
func newStatements(table string, notifying bool) statements {
	notify, notifyMany := "NULL::text", "NULL::text"
	if notifying {
		notify, notifyMany = notifySQL(table, "$2::bigint"), notifySQL(table, "i.lock")
	}
	sql := func(text string, more ...string) string {
		more = append(more, "{notify}", notify, "{notifyMany}", notifyMany)
		// What a replacement brings in may have places of its own.
		for range 3 {
			text = strings.NewReplacer(append(more,
				"{values}", valuesSQL, "{set}", setSQL, "{match}", matchSQL, "{table}", table, "{columns}", columns, "{none}", noColumns, "{live}", live, "{age}", age, "{soonest}", soonestSQL,
			)...).Replace(text)
		}
		return strings.TrimSpace(text)
	}
	return statements{
		get:   sql(getSQL),
		read:  sql(readSQL),
		there: sql(thereSQL),
		token: sql(tokenSQL),
		claim: writes{
			alone: sql(claimSQL, "{lock}", lockAlone, "{outcome}", durably),
			bound: sql(claimSQL, "{lock}", lockBound, "{outcome}", asIs),
			piece: sql(claimPieceSQL, "{lock}", lockAlone, "{outcome}", durably),
		},
		replace: writes{
			alone: sql(replaceSQL, "{else}", elsePresent, "{lock}", lockAlone, "{outcome}", durably),
			bound: sql(replaceSQL, "{else}", elsePresent, "{lock}", lockBound, "{outcome}", asIs),
			piece: sql(replacePieceSQL, "{lock}", lockAlone, "{outcome}", durably),
		},
		insert: sql(insertSQL, "{outcome}", durably),
		last:   sql(replaceSQL, "{else}", elseFail, "{lock}", lockBound, "{outcome}", durably, "{none}", "NULL::text"),

		batch:         sql(batchSQL, "{more}", ""),
		batchReplaces: sql(batchSQL, "{more}", moreSQL),

		claims:   sql(claimsSQL, "{input}", inputSQL),
		replaces: sql(replacesSQL, "{input}", inputSQL),
		reads:    sql(readsSQL),
		sweep:    sql(sweepSQL),
		list:     sql(listSQL),
		heal:     sql(healSQL),
		overdue:  sql(overdueSQL),
	}
}
