package postgres

import (
	"database/sql/driver"
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"
)

// A column is a parameter of a batch: an array with one value of each of its calls.
// It is encoded from where the values are.
type column[T string | []byte] struct {
	calls []*call
	value func(*operation) T
}

// numbers is the parameter with ten numbers of each call.
type numbers []*call

// appendBinary appends a parameter in PostgreSQL's binary format.
func appendBinary(b []byte, arg any) ([]byte, error) {
	switch v := arg.(type) {
	case string:
		return append(b, v...), nil
	case []byte:
		return append(b, v...), nil
	case int64:
		return binary.BigEndian.AppendUint64(b, uint64(v)), nil
	case bool:
		return append(b, byte(oneIf(v))), nil
	case column[string]:
		return appendColumn(appendHead(b, pgtype.TextOID, len(v.calls)), v), nil
	case column[[]byte]:
		return appendColumn(appendHead(b, pgtype.ByteaOID, len(v.calls)), v), nil
	case numbers:
		b = appendHead(b, pgtype.Int8OID, 10*len(v))
		for _, c := range v {
			for _, n := range numbersOf(c.op) {
				b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(b, 8), uint64(n))
			}
		}
		return b, nil
	}
	return nil, fmt.Errorf("%T is no type of a parameter", arg)
}

// appendHead appends the head of an array of one dimension without NULL.
func appendHead(b []byte, element uint32, n int) []byte {
	for _, word := range [...]uint32{1, 0, element, uint32(n), 1} {
		b = binary.BigEndian.AppendUint32(b, word)
	}
	return b
}

func appendColumn[T string | []byte](b []byte, v column[T]) []byte {
	for _, c := range v.calls {
		value := v.value(c.op)
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
	}
	return b
}

// Where pgx encodes parameters, these are arrays to it.

// Dimensions, Index and IndexType implement [pgtype.ArrayGetter].
func (v column[T]) Dimensions() []pgtype.ArrayDimension { return dimension(len(v.calls)) }

func (v column[T]) Index(i int) any {
	value := v.value(v.calls[i].op)
	if b, ok := any(value).([]byte); ok {
		return orEmpty(b)
	}
	return value
}

func (v column[T]) IndexType() any {
	var none T
	return none
}

// Dimensions, Index and IndexType implement [pgtype.ArrayGetter].
func (v numbers) Dimensions() []pgtype.ArrayDimension { return dimension(10 * len(v)) }
func (v numbers) Index(i int) any                     { return numbersOf(v[i/10].op)[i%10] }
func (v numbers) IndexType() any                      { return int64(0) }

func dimension(n int) []pgtype.ArrayDimension {
	return []pgtype.ArrayDimension{{Length: int32(n), LowerBound: 1}}
}

// Value implements [driver.Valuer] for the modes of pgx that do not ask the server for
// the types of parameters.
func (v column[T]) Value() (driver.Value, error) {
	oid := uint32(pgtype.TextArrayOID)
	if _, ok := any(v).(column[[]byte]); ok {
		oid = pgtype.ByteaArrayOID
	}
	return literal(oid, v)
}

// Value implements [driver.Valuer].
func (v numbers) Value() (driver.Value, error) { return literal(pgtype.Int8ArrayOID, v) }

func literal(oid uint32, array pgtype.ArrayGetter) (driver.Value, error) {
	b, err := pgtype.NewMap().Encode(oid, pgtype.TextFormatCode, array, nil)
	return string(b), err
}
