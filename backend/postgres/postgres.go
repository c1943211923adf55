package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem"
)

// DB is a *pgxpool.Pool or a *pgx.Conn. With a single connection the calls take
// turns.
type DB interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Options configure a Backend. Nil Options and zero fields stand for the
// defaults.
type Options struct {
	// Schema and Table name the table; "public" and "idem_records" by default.
	// Letters, digits and underscores, up to 63, not beginning with a digit.
	// Upper case letters are not folded.
	Schema, Table string

	// TxOptions are those of the transactions that Do begins, and their
	// isolation that of DoSQL's. The zero value is the default of the database.
	TxOptions pgx.TxOptions

	// AllowAsyncCommit allows a claim or a result to be written in a
	// transaction of the caller's that commits with synchronous_commit = off. A
	// crash of the server can then lose the commit after it was acknowledged,
	// together with the business change. Without it such a write is an error.
	AllowAsyncCommit bool

	// Listen makes those who wait learn of a change by notification instead of
	// asking again and again. It is a connection string; the Backend opens a
	// connection of its own with it while somebody waits, which must lead to
	// the server directly and not through a transaction pooler. Set it in all
	// programs that write to the table, or in none: a change made without it
	// notifies nobody and is found by asking.
	Listen string
}

// Backend implements [idem.Backend], [idem.Lister], [idem.Watcher], [idem.Prober]
// and [idem.Batcher] on a table of PostgreSQL. It is safe for concurrent use.
type Backend struct {
	opts          Options
	table         string // quoted
	sql           statements
	src           source
	pgx           *pgxSource // nil with database/sql
	reads, writes *lanes     // nil with database/sql
	waits         waits
	known         known
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// New returns a Backend on db, which the caller owns and closes. It does not
// touch the database.
func New(db DB, opts *Options) (*Backend, error) {
	src, err := newPgxSource(db)
	if err != nil {
		return nil, fmt.Errorf("postgres: new: %w: %w", idem.ErrOptions, err)
	}
	b, err := newBackend(src, opts)
	if err != nil {
		return nil, err
	}
	b.pgx = src
	b.reads, b.writes = newLanes(b, forReads), newLanes(b, forWrites)
	return b, nil
}

// NewSQL returns a Backend on db, which the caller owns and closes. Any driver
// will do whose errors have a method SQLState() string; that of pgx is
// github.com/jackc/pgx/v5/stdlib.
func NewSQL(db *sql.DB, opts *Options) (*Backend, error) {
	if db == nil {
		return nil, fmt.Errorf("postgres: new: %w: the *sql.DB is nil", idem.ErrOptions)
	}
	return newBackend(sqlSource{db}, opts)
}

func newBackend(src source, opts *Options) (*Backend, error) {
	b := &Backend{src: src}
	if opts != nil {
		b.opts = *opts
	}
	if b.opts.Schema == "" {
		b.opts.Schema = "public"
	}
	if b.opts.Table == "" {
		b.opts.Table = "idem_records"
	}
	for _, name := range []string{b.opts.Schema, b.opts.Table} {
		if !identifier.MatchString(name) {
			return nil, fmt.Errorf("postgres: new: %w: %q is not a name of letters, digits and underscores", idem.ErrOptions, name)
		}
	}
	b.table = quote(b.opts.Schema, b.opts.Table)
	b.sql = newStatements(b.table, b.opts.Listen != "")
	if b.opts.Listen != "" {
		var err error
		if b.waits.ears, err = newListener(&b.waits, b.opts.Listen, b.table); err != nil {
			return nil, fmt.Errorf("postgres: new: %w: Listen: %w", idem.ErrOptions, err)
		}
	}
	return b, nil
}

func quote(schema, table string) string { return `"` + schema + `"."` + table + `"` }

// Get implements [idem.Backend].
func (b *Backend) Get(ctx context.Context, key string) (idem.Record, error) {
	rep, err := b.ask(ctx, "get", &operation{kind: get, key: key})
	if err != nil {
		return idem.Record{}, err
	}
	return unexpired(rep), nil
}

// Probe implements [idem.Prober], from memory of the last thousands of keys with a
// record. What this process has not seen lately is claimed at once.
func (b *Backend) Probe(key string) bool { return b.known.has(key) }

// unexpired returns the record of a reply that is present and not expired.
func unexpired(rep reply) idem.Record {
	if rep.outcome != present || rep.record.Expired() {
		return idem.Record{}
	}
	return *rep.record
}

// Swap implements [idem.Backend].
//
// While a transaction that has written the key is open, what it will leave
// behind is unknown: Swap waits for its end, until ctx is done, without holding a
// connection.
func (b *Backend) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	if err := checkKey(key); err != nil {
		return idem.Record{}, err
	}
	sw := b.newSwap(key, old, new)
	sw.look = old == "" && b.known.has(key) // in case the caller did not ask Probe
	writes := 0
	for delay := time.Duration(0); ; {
		op := sw.next()
		if op.kind != get {
			if writes++; writes > 1 {
				// The second time it is more likely that a rival was quicker.
				if err := pause(ctx, delay); err != nil {
					return idem.Record{}, op.notDone(fmt.Errorf("postgres: swap: a transaction that has written the key is still open: %w", err))
				}
				delay = min(2*delay+time.Millisecond, 100*time.Millisecond)
			}
		}
		rep, err := b.ask(ctx, "swap", op)
		if err != nil {
			return idem.Record{}, err
		}
		if got, ok := sw.settle(rep); ok {
			return got, nil
		}
	}
}

// pause waits for about d, or until ctx is done, which is an error.
func pause(ctx context.Context, d time.Duration) error {
	if d > 0 {
		t := time.NewTimer(jitter(d))
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// mostTries is how often an operation is sent that a broken connection gets in the
// way of.
const mostTries = 3

// ask runs an operation by itself.
func (b *Backend) ask(ctx context.Context, what string, op *operation) (reply, error) {
	if err := ctx.Err(); err != nil {
		return reply{}, op.notDone(fmt.Errorf("postgres: %s: %w", what, err))
	}
	rep, err := b.send(ctx, op)
	for tries := 1; err != nil && lostConnection(err) && ctx.Err() == nil && tries < mostTries; tries++ {
		// A pool may have connections that are dead, and the next call gets the
		// next of them. Whatever became of the first try, its token tells.
		op.failedTry(err)
		rep, err = b.send(ctx, op)
	}
	return b.finish(ctx, what, op, rep, err)
}

// finish brings an operation to its end that has been sent, and mends what a clock
// that was set back has left behind.
func (b *Backend) finish(ctx context.Context, what string, op *operation, rep reply, err error) (reply, error) {
	if err != nil && conflict(err) {
		rep, err = b.byItself(ctx, op, err)
	}
	switch {
	case err != nil && op.mayBeDone():
		return reply{}, b.explain(ctx, what, err)
	case err != nil:
		return reply{}, b.failed(ctx, what, err)
	}
	if rep.outcome == standby {
		return reply{}, op.notDone(errStandby(what))
	}
	if rep.future {
		// If that fails, the next one who looks does it.
		b.heal(ctx, op, rep.record.Token)
	}
	switch rep.outcome {
	case present, stored:
		b.known.note(op.key)
	case nothing:
		b.known.forget(op.key) // it was swept, and the next claim need not look
	}
	if rep.outcome == stored {
		b.waits.wake(op.lock)
	}
	return rep, nil
}

// byItself runs an operation that rivals were in the way of, until they are not. The
// default isolation is a stricter one, at which rivals are errors, or two batches met:
// by itself and at READ COMMITTED no statement needs more than this.
func (b *Backend) byItself(ctx context.Context, op *operation, err error) (rep reply, _ error) {
	for delay := time.Duration(0); err != nil && conflict(err) && pause(ctx, delay) == nil; delay = min(2*delay+time.Millisecond, 100*time.Millisecond) {
		err = b.src.inTx(ctx, func(s session) error {
			var err error
			rep, err = b.query(ctx, s, op)
			return err
		})
	}
	return rep, err
}

// heal mends the record with token.
func (b *Backend) heal(ctx context.Context, op *operation, token string) {
	_ = b.src.with(ctx, func(s session) error { return exec(ctx, s, b.sql.heal, op.key, token, lockOf("key", b.table, op.key)) })
}

// send runs an operation, together with others if there are many.
func (b *Backend) send(ctx context.Context, op *operation) (reply, error) {
	switch {
	case b.pgx == nil:
		return b.alone(ctx, op)
	case op.kind == get:
		return b.reads.ask(ctx, op)
	}
	return b.writes.ask(ctx, op)
}

// jitter returns about d: those who wait together do not come back together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// sweepBatch bounds one statement of Sweep. Larger ones hold locks for so long
// that others notice.
const sweepBatch = 1000

// Sweep implements [idem.Backend]. It deletes in statements of up to 1,000
// records; several may run at once, and skip each other's records.
func (b *Backend) Sweep(ctx context.Context, limit int) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("postgres: sweep: %w", err)
	}
	swept := 0
	for swept < limit {
		n := int64(0)
		batch := min(limit-swept, sweepBatch)
		err := b.src.inTx(ctx, func(s session) error {
			return s.query(ctx, b.sql.sweep, []any{int64(batch)}, func(scan func(...any) error) error { return scan(&n) })
		})
		if err != nil {
			if conflict(err) && ctx.Err() == nil {
				continue
			}
			return swept, b.failed(ctx, "sweep", err)
		}
		swept += int(n)
		if n < int64(batch) {
			break
		}
	}
	return swept, nil
}
