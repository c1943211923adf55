package postgres

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idem-go/idem"
)

// A reply is the one row with which the server answers a Get or a Swap, or that
// there was none.
type reply struct {
	outcome outcome
	record  *idem.Record // what is in the way, if outcome is present
	future  bool         // the record was written in the future: the server's clock was set back
}

type outcome int16

const (
	nothing   outcome = iota // there is no record, or none that the statement has seen
	present                  // a record is there, expired or not
	stored                   // the new record is stored
	unsafely                 // it is stored, in a transaction that commits with synchronous_commit = off
	standby                  // the server is a standby: what it has may be old
	unwritten                // nothing is stored, and what there is has not been read
)

// columns are those of a record as every statement returns them, after the
// outcome. Instants do not leave the server; what comes back is an age in
// microseconds, which does not depend on the session's time zone or date style.
const columns = `r.token, r.status, r.attempt, r.fence, r.fingerprint, r.code, r.meta, r.body, r.omitted, r.checkpoint, r.lease, r.ttl, ` + age

// noColumns has the types of columns, for rows that are no record.
const noColumns = `NULL::text, NULL::smallint, NULL::bigint, NULL::bigint, NULL::bytea, NULL::bigint, NULL::bytea, NULL::bytea, NULL::boolean, NULL::bytea, NULL::bigint, NULL::bigint, NULL::bigint`

// age is that of the record r in microseconds. It is negative for a record from
// the future. clock_timestamp, because the time of now() stands still in a
// transaction.
const age = `(date_part('epoch', clock_timestamp() - r.written_at) * 1000000)::bigint`

// live says of the record r that it is not expired: what Record.Expired says,
// in units of microseconds, and so that it cannot overflow.
const live = `greatest(` + age + `, 0) < r.ttl / 1000 + least(r.ttl % 1000, 1)`

// scanReply reads a row of an outcome and columns, after the columns before.
func scanReply(scan func(...any) error, before ...any) (reply, error) {
	to := scanTo{before: before}
	if err := scan(&to); err != nil {
		return reply{}, err
	}
	rep := reply{outcome: outcome(to.what)}
	if rep.outcome != present {
		return rep, nil
	}
	var err error
	rep.record, rep.future, err = to.record()
	return rep, err
}

// A row has the columns of a record. NULL is told from zero: a table that was
// repaired by hand must not turn a missing lease into one that is over.
type row struct {
	token                                 pgtype.Text
	status                                pgtype.Int2
	attempt, fence, code, lease, ttl, age pgtype.Int8
	fingerprint, meta, body, note         []byte
	omitted                               pgtype.Bool
}

// A scanTo is where a row of an outcome and columns is read to, the one thing that
// a query's scan is given. See binary.go for how pgx reads it.
type scanTo struct {
	before []any // destinations of the columns before the outcome
	what   int16
	row
}

// fields returns the destinations of a row.
func (s *scanTo) fields() []any {
	r := &s.row
	dest := append(make([]any, 0, 16), s.before...)
	return append(dest, &s.what, &r.token, &r.status, &r.attempt, &r.fence, &r.fingerprint, &r.code, &r.meta, &r.body,
		&r.omitted, &r.note, &r.lease, &r.ttl, &r.age)
}

// record returns the record, and whether it is from the future.
func (r *row) record() (rec *idem.Record, future bool, err error) {
	valid := r.token.Valid && r.status.Valid && r.attempt.Valid && r.fence.Valid && r.code.Valid && r.omitted.Valid &&
		r.lease.Valid && r.ttl.Valid && r.age.Valid && r.fingerprint != nil && r.meta != nil && r.body != nil && r.note != nil
	status := idem.Status(r.status.Int16)
	switch {
	case !valid:
		return nil, false, fmt.Errorf("postgres: %w: a column of the record is NULL", idem.ErrCorrupt)
	case r.token.String == "":
		return nil, false, fmt.Errorf("postgres: %w: the record has no token", idem.ErrCorrupt)
	case r.status.Int16 < int16(idem.InProgress) || r.status.Int16 > int16(idem.Released):
		return nil, false, fmt.Errorf("postgres: %w: the status of the record is %d", idem.ErrCorrupt, r.status.Int16)
	case len(r.fingerprint) != len(idem.Fingerprint{}):
		return nil, false, fmt.Errorf("postgres: %w: the fingerprint of the record has %d bytes", idem.ErrCorrupt, len(r.fingerprint))
	case r.attempt.Int64 < 0 || r.lease.Int64 < 0 || r.ttl.Int64 < 0:
		return nil, false, fmt.Errorf("postgres: %w: a number of the record is negative", idem.ErrCorrupt)
	}
	meta, err := decodeMeta(r.meta)
	if err != nil {
		return nil, false, err
	}
	return &idem.Record{
		Token:       r.token.String,
		Status:      status,
		Attempt:     int(r.attempt.Int64),
		Fence:       r.fence.Int64,
		Fingerprint: idem.Fingerprint(r.fingerprint),
		Result:      idem.Result{Code: int(r.code.Int64), Meta: meta, Body: orNil(r.body), Omitted: r.omitted.Bool},
		Checkpoint:  orNil(r.note),
		Lease:       time.Duration(r.lease.Int64),
		TTL:         time.Duration(r.ttl.Int64),
		Age:         microseconds(r.age.Int64),
	}, r.age.Int64 < 0, nil
}

// microseconds returns us microseconds, at least 0 and at most what a Duration
// can hold.
func microseconds(us int64) time.Duration {
	const most = int64(1<<63-1) / 1000
	return time.Duration(min(max(us, 0), most)) * time.Microsecond
}

func orNil(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}

func orEmpty(b []byte) []byte {
	if b == nil {
		return []byte{} // nil would be NULL
	}
	return b
}

// lockOf returns the number of the advisory lock that stands for a key of this
// table. A cryptographic hash, so that nobody finds keys that share one.
func lockOf(use, table, key string) int64 {
	h := make([]byte, 0, 256)
	h = append(h, use...)
	h = append(h, 0)
	h = append(h, table...)
	h = append(h, 0)
	h = append(h, key...)
	sum := sha256.Sum256(h)
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// metaFormat begins every encoded Meta, so that another encoding can follow one
// day.
const metaFormat = 1

// encodeMeta packs a map whose strings may have any bytes, which JSON could not
// keep. The empty map is no bytes at all.
func encodeMeta(meta map[string]string) []byte {
	if len(meta) == 0 {
		return []byte{}
	}
	b := []byte{metaFormat}
	for _, k := range slices.Sorted(maps.Keys(meta)) {
		b = binary.AppendUvarint(b, uint64(len(k)))
		b = append(b, k...)
		b = binary.AppendUvarint(b, uint64(len(meta[k])))
		b = append(b, meta[k]...)
	}
	return b
}

func decodeMeta(b []byte) (map[string]string, error) {
	if len(b) == 0 {
		return nil, nil
	}
	rest, ok := bytes.CutPrefix(b, []byte{metaFormat})
	meta := make(map[string]string)
	var k, v string
	for ok && len(rest) > 0 {
		if k, rest, ok = cutText(rest); !ok {
			break
		}
		if v, rest, ok = cutText(rest); ok {
			meta[k] = v
		}
	}
	if !ok || len(meta) == 0 {
		return nil, fmt.Errorf("postgres: %w: the meta of the record is not in this package's format", idem.ErrCorrupt)
	}
	return meta, nil
}

// cutText takes a text that is preceded by its length off the front of b.
func cutText(b []byte) (text string, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return "", nil, false
	}
	return string(b[size : size+int(n)]), b[size+int(n):], true
}
