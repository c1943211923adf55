package postgres

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idem-go/idem"
)

// Parameters are encoded here as pgx encodes them.
func TestParametersAsPgxEncodesThem(t *testing.T) {
	var calls []*call
	for i := range 20 {
		r := &idem.Record{
			Token: fmt.Sprint("token ", i), Status: idem.Completed, Attempt: i, Fence: int64(-i), Fingerprint: idem.FingerprintOf([]byte{byte(i)}),
			Result: idem.Result{Code: -i, Body: bytes.Repeat([]byte{0, 255}, i), Omitted: i%2 == 0}, Lease: time.Duration(i), TTL: time.Hour,
		}
		calls = append(calls, &call{op: &operation{
			kind: replace, key: fmt.Sprint("ä, \"{}\\", i), lock: int64(i) << 58, new: r, old: "before", live: i%3 == 0,
			meta: encodeMeta(map[string]string{"k": fmt.Sprint(i)}),
		}})
	}
	pg := pgtype.NewMap()
	oids := []uint32{pgtype.TextArrayOID, pgtype.TextArrayOID, pgtype.TextArrayOID, pgtype.ByteaArrayOID, pgtype.ByteaArrayOID, pgtype.ByteaArrayOID, pgtype.ByteaArrayOID, pgtype.Int8ArrayOID}
	same := func(oid uint32, arg any) {
		t.Helper()
		want, err := pg.Encode(oid, pgx.BinaryFormatCode, arg, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := appendBinary([]byte("before"), arg)
		if err != nil || !bytes.Equal(got, append([]byte("before"), want...)) {
			t.Errorf("%T for the type %d is %x, %v; to pgx it is %x", arg, oid, got, err, want)
		}
	}
	for i, arg := range inputOf(calls) {
		same(oids[i], arg)
	}
	for i, arg := range calls[1].op.args() {
		oid := uint32(pgtype.Int8OID)
		switch arg.(type) {
		case string:
			oid = pgtype.TextOID
		case []byte:
			oid = pgtype.ByteaOID
		case bool:
			oid = pgtype.BoolOID
		case int64:
		default:
			t.Fatalf("parameter %d is a %T", i, arg)
		}
		same(oid, arg)
	}
	if _, err := appendBinary(nil, 3.14); err == nil {
		t.Error("a float64 is a parameter")
	}
}
