package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// results are those of the statements of a batch, one after another. It is what is
// used of [pgx.BatchResults].
type results interface {
	Query() (pgx.Rows, error)
	Close() error // also of the commit, of which there are no rows
}

// eachRow reads the rows of the next statement of a batch.
func eachRow(results results, each func(scan func(...any) error) error) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// readReply reads the reply of the next statement of a batch.
func readReply(results results) (rep reply, err error) {
	err = eachRow(results, func(scan func(...any) error) error {
		var err error
		rep, err = scanReply(scan)
		return err
	})
	return rep, err
}

// readWrite reads what a write by itself returns.
func readWrite(results results) (rep reply, err error) {
	rep.outcome = unwritten
	err = eachRow(results, func(scan func(...any) error) error {
		var to written
		err := scan(&to)
		rep.outcome = outcome(to.outcome)
		return err
	})
	return rep, err
}

// send sends a batch, whose statements run as one transaction.
//
// Where a connection prepares statements and nobody traces them, that is done one
// level below [pgx.Conn.SendBatch], on the same pipeline. pgx encodes arrays element
// by element, into buffers that begin at 256 bytes for every statement: with the
// garbage that is a third of all that a batch of claims costs this program.
func send(ctx context.Context, conn *pgx.Conn, batch *pgx.Batch) results {
	if w := wireOf(conn); w.direct {
		return w.send(ctx, conn, batch)
	}
	return conn.SendBatch(ctx, batch)
}

// A wire is kept with its connection.
type wire struct {
	direct   bool
	prepared map[string]*pgconn.StatementDescription // by their SQL

	// Of the batch that is being sent.
	params []byte
	values [][]byte // parts of params
}

// wireOf returns the wire of a connection, which is made from the connection's own
// configuration: a pool's may say something else.
func wireOf(conn *pgx.Conn) *wire {
	const name = "github.com/idem-go/idem/backend/postgres"
	data := conn.PgConn().CustomData()
	w, ok := data[name].(*wire)
	if !ok {
		config := conn.Config()
		w = &wire{
			direct:   config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && config.StatementCacheCapacity > 0 && config.Tracer == nil,
			prepared: make(map[string]*pgconn.StatementDescription),
		}
		data[name] = w
	}
	return w
}

// Parameters and results are all in binary format.
var inBinary = []int16{pgx.BinaryFormatCode}

func (w *wire) send(ctx context.Context, conn *pgx.Conn, batch *pgx.Batch) results {
	r := &wireResults{wire: w, conn: conn, batch: batch}
	statements := make([]*pgconn.StatementDescription, len(batch.QueuedQueries))
	for i, q := range batch.QueuedQueries {
		var err error
		if statements[i], err = w.prepare(ctx, conn, q.SQL); err != nil {
			r.err = &unprepared{err}
			return r
		}
	}
	defer w.sent()
	if r.err = w.encode(batch); r.err != nil {
		return r
	}
	if len(statements) == 1 {
		r.only = conn.PgConn().ExecStatement(ctx, statements[0], w.values, inBinary, inBinary)
		return r
	}
	r.pipeline = conn.PgConn().StartPipeline(ctx)
	if conn.PgConn().IsBusy() { // with this pipeline; otherwise it is closed
		conn.PgConn().Frontend().Send(room(len(w.params) + 4*len(w.values) + 128*len(statements)))
	}
	values := w.values
	for i, q := range batch.QueuedQueries {
		n := len(q.Arguments)
		r.pipeline.SendQueryStatement(statements[i], values[:n], inBinary, inBinary)
		values = values[n:]
	}
	r.err = r.pipeline.Sync()
	return r
}

// prepare returns a prepared statement. Its name is none that pgx gives: what pgx finds
// under the SQL itself it takes for everything, and keeps when it has gone bad.
func (w *wire) prepare(ctx context.Context, conn *pgx.Conn, sql string) (*pgconn.StatementDescription, error) {
	if s := w.prepared[sql]; s != nil {
		return s, nil
	}
	sum := sha256.Sum256([]byte(sql))
	s, err := conn.Prepare(ctx, "idem_"+hex.EncodeToString(sum[:24]), sql)
	if err == nil {
		w.prepared[sql] = s
	}
	return s, err
}

// forget gives a prepared statement up. It is prepared anew when it is needed next.
func (w *wire) forget(ctx context.Context, conn *pgx.Conn, sql string) {
	if s := w.prepared[sql]; s != nil {
		delete(w.prepared, sql)
		_ = conn.Deallocate(ctx, s.Name)
	}
}

// An unprepared error is that of a statement's preparation: nothing has been run.
type unprepared struct{ err error }

func (e *unprepared) Error() string     { return e.err.Error() }
func (e *unprepared) Unwrap() error     { return e.err }
func (e *unprepared) SafeToRetry() bool { return true }

// mostKept is how much room for parameters a connection keeps.
const mostKept = 256 << 10

// encode encodes the parameters of all statements.
func (w *wire) encode(batch *pgx.Batch) (err error) {
	if w.params == nil {
		w.params = make([]byte, 0, 4<<10) // parts of nil would be NULL
	}
	for _, q := range batch.QueuedQueries {
		for _, arg := range q.Arguments {
			start := len(w.params)
			if w.params, err = appendBinary(w.params, arg); err != nil {
				return err
			}
			// Should params have to grow, what is there already stays where it is.
			w.values = append(w.values, w.params[start:len(w.params):len(w.params)])
		}
	}
	return nil
}

// sent forgets the parameters, which pgx has copied.
func (w *wire) sent() {
	clear(w.values)
	w.params, w.values = w.params[:0], w.values[:0]
	if cap(w.params) > mostKept {
		w.params, w.values = nil, nil
	}
}

// room is no message, but makes room for those that follow it, which pgx puts into a
// buffer of 1 KiB that would have to grow many times.
type room int

// Frontend, Decode and Encode implement [pgproto3.FrontendMessage].
func (room) Frontend()                           {}
func (room) Decode([]byte) error                 { return nil }
func (r room) Encode(dst []byte) ([]byte, error) { return slices.Grow(dst, int(r)), nil }

// wireResults are the results of a batch that a wire has sent.
type wireResults struct {
	wire     *wire
	conn     *pgx.Conn
	batch    *pgx.Batch
	only     *pgconn.ResultReader // of the only statement, which needs no pipeline
	pipeline *pgconn.Pipeline
	last     pgx.Rows
	err      error
}

func (r *wireResults) Query() (pgx.Rows, error) {
	r.failed()
	if r.err != nil {
		return nil, r.err
	}
	reader := r.only
	if reader == nil {
		got, err := r.pipeline.GetResults()
		if err != nil {
			r.err = err
			return nil, err
		}
		var ok bool
		if reader, ok = got.(*pgconn.ResultReader); !ok {
			r.err = fmt.Errorf("the server's answer is a %T", got)
			return nil, r.err
		}
	}
	r.last = pgx.RowsFromResultReader(r.conn.TypeMap(), reader)
	return r.last, nil
}

// failed takes the error of the last rows for that of the batch.
func (r *wireResults) failed() {
	if r.err == nil && r.last != nil {
		r.err = r.last.Err()
	}
}

func (r *wireResults) Close() error {
	if r.only != nil {
		if _, err := r.only.Close(); r.err == nil {
			r.err = err
		}
	}
	r.failed()
	if r.pipeline != nil {
		if err := r.pipeline.Close(); r.err == nil {
			r.err = err
		}
	}
	if state := sqlState(r.err); state == unknownStatement || state == changedResult {
		// Somebody has taken the prepared statements away, or the table has changed.
		ctx, cancel := context.WithTimeout(context.Background(), cleanUp)
		defer cancel()
		for _, q := range r.batch.QueuedQueries {
			r.wire.forget(ctx, r.conn, q.SQL)
		}
	}
	return r.err
}
