package postgres

import (
	"bytes"
	"encoding/binary"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// ScanRow implements [pgx.RowScanner]: it reads a row in PostgreSQL's binary
// format, which is what pgx gets unless it was told otherwise. To plan the scan of
// fourteen columns anew for every reply costs more than to read them, and a replay
// is little more than a reply. What is not as expected is left to pgx, and so are
// its errors.
func (s *scanTo) ScanRow(rows pgx.Rows) error {
	if s.readBinary(rows.FieldDescriptions(), rows.RawValues()) {
		return nil
	}
	return rows.Scan(s.fields()...)
}

// readBinary reads a row, or reports that it cannot.
func (s *scanTo) readBinary(fields []pgconn.FieldDescription, values [][]byte) bool {
	in := binaryRow{fields: fields, values: values}
	for _, to := range s.before {
		n, ok := to.(*int64)
		if !ok {
			return false
		}
		*n = in.int8().Int64
	}
	s.what = in.int2().Int16
	s.token = in.text()
	s.status = in.int2()
	s.attempt, s.fence = in.int8(), in.int8()
	s.fingerprint = in.bytes()
	s.code = in.int8()
	s.meta, s.body = in.bytes(), in.bytes()
	s.omitted = in.bool()
	s.note = in.bytes()
	s.lease, s.ttl, s.age = in.int8(), in.int8(), in.int8()
	return !in.bad && len(in.values) == 0
}

// A written is where the one row of a write by itself is read to.
type written struct{ outcome int16 }

// ScanRow implements [pgx.RowScanner], as that of scanTo does.
func (w *written) ScanRow(rows pgx.Rows) error {
	in := binaryRow{fields: rows.FieldDescriptions(), values: rows.RawValues()}
	w.outcome = in.int2().Int16
	if !in.bad {
		return nil
	}
	var notified *string
	return rows.Scan(&w.outcome, &notified)
}

// A binaryRow takes the columns of a row one after another. After the first that
// is not of the type asked for it is bad.
type binaryRow struct {
	fields []pgconn.FieldDescription
	values [][]byte // pgx's own, until the next row
	bad    bool
}

// take returns the next value, which is nil for NULL. One of a fixed size has it.
func (b *binaryRow) take(oid uint32, size int) []byte {
	if b.bad || len(b.values) == 0 || len(b.values) != len(b.fields) || b.fields[0].Format != pgx.BinaryFormatCode || b.fields[0].DataTypeOID != oid {
		b.bad = true
		return nil
	}
	v := b.values[0]
	b.fields, b.values = b.fields[1:], b.values[1:]
	if v != nil && size > 0 && len(v) != size {
		b.bad = true
		return nil
	}
	return v
}

func (b *binaryRow) text() pgtype.Text {
	v := b.take(pgtype.TextOID, 0)
	return pgtype.Text{String: string(v), Valid: v != nil}
}

func (b *binaryRow) bytes() []byte { return bytes.Clone(b.take(pgtype.ByteaOID, 0)) }

func (b *binaryRow) bool() (to pgtype.Bool) {
	if v := b.take(pgtype.BoolOID, 1); v != nil {
		to = pgtype.Bool{Bool: v[0] != 0, Valid: true}
	}
	return to
}

func (b *binaryRow) int2() (to pgtype.Int2) {
	if v := b.take(pgtype.Int2OID, 2); v != nil {
		to = pgtype.Int2{Int16: int16(binary.BigEndian.Uint16(v)), Valid: true}
	}
	return to
}

func (b *binaryRow) int8() (to pgtype.Int8) {
	if v := b.take(pgtype.Int8OID, 8); v != nil {
		to = pgtype.Int8{Int64: int64(binary.BigEndian.Uint64(v)), Valid: true}
	}
	return to
}
