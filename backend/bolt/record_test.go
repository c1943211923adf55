package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

// randomRecord returns a record with anything in its fields.
func randomRecord(rnd *rand.Rand) idem.Record {
	text := func(n int) []byte {
		b := make([]byte, rnd.IntN(n))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		return b
	}
	r := idem.Record{
		Token:      "t" + string(text(80)),
		Status:     idem.Status(1 + rnd.IntN(3)),
		Attempt:    int(rnd.Int64() >> rnd.IntN(64)),
		Fence:      int64(rnd.Uint64()),
		Checkpoint: text(100),
		Lease:      time.Duration(rnd.Int64() >> rnd.IntN(64)),
		TTL:        time.Duration(rnd.Int64() >> rnd.IntN(64)),
		Result:     idem.Result{Code: int(int32(rnd.Uint32())), Body: text(300), Omitted: rnd.IntN(2) == 0},
	}
	binary.NativeEndian.PutUint64(r.Fingerprint[:], rnd.Uint64())
	for range rnd.IntN(4) {
		if r.Result.Meta == nil {
			r.Result.Meta = make(map[string]string)
		}
		r.Result.Meta[string(text(20))] = string(text(50))
	}
	return r
}

func sameRecord(a, b idem.Record) bool {
	return a.Token == b.Token && a.Status == b.Status && a.Attempt == b.Attempt && a.Fence == b.Fence &&
		a.Fingerprint == b.Fingerprint && bytes.Equal(a.Checkpoint, b.Checkpoint) && a.Lease == b.Lease && a.TTL == b.TTL &&
		a.Result.Code == b.Result.Code && a.Result.Omitted == b.Result.Omitted &&
		bytes.Equal(a.Result.Body, b.Result.Body) && maps.Equal(a.Result.Meta, b.Result.Meta)
}

// RS-1: what looks empty comes back as it was, and so does everything else.
func TestRS1_RecordsComeBack(t *testing.T) {
	rnd := testenv.Rand(t)
	for i := range 5000 {
		r := randomRecord(rnd)
		key := strings.Repeat("k", 1+rnd.IntN(idem.MaxStoredKey))
		v, err := encode(key, r)
		if err != nil {
			t.Fatal(err)
		}
		at := place{logOf(r), rnd.Uint64N(maxSeq)}
		seal(v, at, 1000)
		got, err := decode(v, at, 1000+int64(i))
		if err != nil || !sameRecord(got, r) || got.Age != time.Duration(i) || string(keyOf(v)) != key {
			t.Fatalf("stored %+v\nread   %+v, key %q, %v", r, got, keyOf(v), err)
		}
	}
}

func TestDamagedRecordIsNoRecord(t *testing.T) {
	rnd := testenv.Rand(t)
	for range 50 {
		r := randomRecord(rnd)
		v, err := encode("key", r)
		if err != nil {
			t.Fatal(err)
		}
		at := place{logOf(r), 7}
		seal(v, at, 1000)
		for i := range v {
			damaged := bytes.Clone(v)
			damaged[i] ^= 1 << rnd.IntN(8)
			if got, err := decode(damaged, at, 1000); err == nil {
				t.Fatalf("byte %d of %d was changed, and decode returned %+v", i, len(v), got)
			}
			_ = keyOf(damaged)
		}
		for n := range v {
			if got, err := decode(v[:n], at, 1000); err == nil {
				t.Fatalf("only %d of %d bytes were left, and decode returned %+v", n, len(v), got)
			}
			_ = keyOf(v[:n])
		}
		if got, err := decode(v, place{at.log, 8}, 1000); err == nil {
			t.Fatalf("the record was in another place, and decode returned %+v", got)
		}
		other := at
		binary.BigEndian.PutUint64(other.log[1:], uint64(at.log.ttl())+1)
		if got, err := decode(v, other, 1000); err == nil {
			t.Fatalf("the record was in another log, and decode returned %+v", got)
		}
	}
}

// A checksum proves only that the bytes are those that were written. What another
// program wrote is not believed either.
func FuzzDecode(f *testing.F) {
	v, err := encode("key", completed("a.1", 10))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(v)
	f.Add(append(v, 0))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, v []byte) {
		at := place{logOf(idem.Record{Status: idem.Completed, TTL: time.Hour + time.Duration(len(v)%2)}), 7}
		if len(v) >= keyAt+checksumLen {
			binary.BigEndian.PutUint32(v[len(v)-checksumLen:], checksum(v, at))
		}
		r, err := decode(v, at, 1000)
		if err == nil && (r.Token == "" || r.Status < idem.InProgress || r.Status > idem.Released || r.Age < 0) {
			t.Fatalf("decode returned %+v", r)
		}
	})
}

// A head whose checksum is right comes back as it was written, whatever is in it;
// one whose length or checksum is not is refused.
func FuzzHead(f *testing.F) {
	f.Add(head{id: [16]byte{1}, seq: 7, stamp: 1 << 60, records: 3, sum: 1 << 40}.encode())
	f.Add([]byte{formatVersion})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := decodeHead(b); err == nil && !bytes.Equal(h.encode(), b) {
			t.Errorf("%x was accepted as %+v", b, h)
		}
		if len(b) == headLen {
			b = bytes.Clone(b)
			b[0] = formatVersion
			binary.BigEndian.PutUint32(b[headLen-checksumLen:], crc32.Checksum(b[:headLen-checksumLen], castagnoli))
			if h, err := decodeHead(b); err != nil || !bytes.Equal(h.encode(), b) {
				t.Errorf("%x came back as %+v, %v", b, h, err)
			}
		}
	})
}

func FuzzCursor(f *testing.F) {
	f.Add(cursor(7))
	f.Add("bolt-0000000000000007-00000000")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		if after, err := parseCursor(s); err == nil && s != "" && cursor(after) != s {
			t.Errorf("%q was accepted as the cursor after %d", s, after)
		}
	})
}

func TestEncodeRefusesWhatItCannotStore(t *testing.T) {
	for name, change := range map[string]func(key *string, r *idem.Record){
		"no key":         func(key *string, _ *idem.Record) { *key = "" },
		"long key":       func(key *string, _ *idem.Record) { *key = strings.Repeat("k", idem.MaxStoredKey+1) },
		"no token":       func(_ *string, r *idem.Record) { r.Token = "" },
		"no status":      func(_ *string, r *idem.Record) { r.Status = 0 },
		"unknown status": func(_ *string, r *idem.Record) { r.Status = 9 },
	} {
		key, r := "key", completed("a.1", 10)
		change(&key, &r)
		if _, err := encode(key, r); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	b := open(t, testPath(t), nil)
	if _, err := b.Swap(t.Context(), "", "", completed("a.1", 10)); !errors.Is(err, idem.ErrKey) {
		t.Errorf("Swap of the empty key: %v, want an error that is ErrKey", err)
	}
}

func TestCursorsOfOthersAreRefused(t *testing.T) {
	for _, n := range []uint64{0, 1, 77, math.MaxUint64} {
		if got, err := parseCursor(cursor(n)); err != nil || got != n {
			t.Errorf("cursor of %d: %d, %v", n, got, err)
		}
	}
	good := cursor(77)
	for _, bad := range []string{"1", "after:key", good + "0", good[1:], good[:len(good)-1], strings.ToUpper(good), " " + good, strings.Replace(good, "4d", "4e", 1)} {
		if n, err := parseCursor(bad); err == nil {
			t.Errorf("cursor %q was taken for %d", bad, n)
		}
	}
}

// The checksum of a place is the standard one.
func TestPlaceChecksum(t *testing.T) {
	for _, at := range []place{{}, {logOf(idem.Record{TTL: 25 * time.Hour}), 1}, {logName{'D', 1, 2, 3, 4, 5, 6, 7, 8}, 1<<48 - 1}} {
		want := crc32.Checksum(append(slices.Clone(at.log[:]), seqKey(at.seq)...), castagnoli)
		if got := placeChecksum(at); got != want {
			t.Errorf("%v has the checksum %#x, want %#x", at, got, want)
		}
	}
}
