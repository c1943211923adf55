package redis

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testredis"
)

func example() idem.Record {
	return idem.Record{
		Token: "abcdefghijklmnopqrstuv.abcdefghijk", Status: idem.Completed, Attempt: 3, Fence: 1_790_000_000_000_000,
		Fingerprint: fp, Checkpoint: []byte("note"), TTL: 24 * time.Hour, Lease: time.Second,
		Result: idem.Result{Code: 201, Meta: map[string]string{"a": "\xff\x00", "": "empty"}, Body: []byte("body")},
	}
}

func TestRecordRoundTrip(t *testing.T) {
	for what, change := range map[string]func(r *idem.Record){
		"as it is":         func(*idem.Record) {},
		"empty":            func(r *idem.Record) { *r = idem.Record{Token: "t", Status: idem.Released} },
		"negative numbers": func(r *idem.Record) { r.Fence, r.Attempt, r.Result.Code = -1, -2, -3 },
		"3 ns":             func(r *idem.Record) { r.TTL, r.Lease = 3, 3 },
		"longest":          func(r *idem.Record) { r.TTL, r.Lease = math.MaxInt64, math.MaxInt64 },
		"long token":       func(r *idem.Record) { r.Token = strings.Repeat("t", math.MaxUint16) },
		"omitted":          func(r *idem.Record) { r.Result = idem.Result{Omitted: true} },
		"large":            func(r *idem.Record) { r.Result.Body = bytes.Repeat([]byte{0}, 1<<20) },
	} {
		r := example()
		change(&r)
		encoded, err := encode("key", r)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		got, at, err := decode("key", string(stamp(encoded, 1_790_000_000_123_456)))
		if err != nil || at != 1_790_000_000_123_456 || !reflect.DeepEqual(got, r) {
			t.Errorf("%s: %+v at %d, %v\nwant %+v", what, got, at, err, r)
		}
	}
}

func TestRecordRefused(t *testing.T) {
	for what, change := range map[string]func(r *idem.Record){
		"no token":      func(r *idem.Record) { r.Token = "" },
		"token":         func(r *idem.Record) { r.Token = strings.Repeat("t", math.MaxUint16+1) },
		"status 0":      func(r *idem.Record) { r.Status = 0 },
		"status 4":      func(r *idem.Record) { r.Status = 4 },
		"above 512 MiB": func(r *idem.Record) { r.Result.Body = make([]byte, maxRecord) },
	} {
		r := example()
		change(&r)
		if _, err := encode("key", r); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// Row 30: damage is never taken for a record.
func TestRow30Damage(t *testing.T) {
	encoded, err := encode("key", example())
	if err != nil {
		t.Fatal(err)
	}
	good := stamp(encoded, time.Now().UnixMicro())
	if _, _, err := decode("another key", string(good)); err == nil {
		t.Error("the record of another key was accepted")
	}
	for n := range good {
		if _, _, err := decode("key", string(good[:n])); err == nil {
			t.Errorf("the first %d bytes were accepted", n)
		}
	}
	for i := range good {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			if _, _, err := decode("key", string(bad)); err == nil {
				t.Errorf("the record with the bit %d of byte %d flipped was accepted", bit, i)
			}
		}
	}
	rnd := testenv.Rand(t)
	for range 500 {
		bad := bytes.Clone(good)
		at, n := rnd.IntN(len(bad)), 1+rnd.IntN(16)
		for i := at; i < min(at+n, len(bad)); i++ {
			bad[i] = byte(rnd.Uint32())
		}
		if _, _, err := decode("key", string(bad)); err == nil && !bytes.Equal(bad, good) {
			t.Errorf("the record with %d bytes from %d on overwritten was accepted", n, at)
		}
	}
}

func FuzzDecode(f *testing.F) {
	encoded, err := encode("key", example())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(stamp(encoded, 1)))
	f.Add("")
	f.Fuzz(func(t *testing.T, v string) {
		r, at, err := decode("key", v)
		if err != nil {
			return
		}
		again, err := encode("key", r)
		if err != nil {
			t.Fatalf("what was decoded cannot be encoded: %v", err)
		}
		back, _, err := decode("key", string(stamp(again, at)))
		if err != nil || !reflect.DeepEqual(back, r) {
			t.Fatalf("%+v came back as %+v, %v", r, back, err)
		}
	})
}

func FuzzCursor(f *testing.F) {
	f.Add(cursor{node: "a:1", scan: 7, names: []string{"x", ""}}.String())
	f.Add("redis-AAAA")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := parseCursor(s)
		if err == nil && s != "" && c.String() != s {
			t.Fatalf("%q was accepted as %q", s, c.String())
		}
	})
}

// A completed record with a key of 37 bytes and a body of 256 fits into 520 bytes.
func TestMemoryOfRecord(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	b := newBackend(t, client, &Options{Prefix: "idem:", Warn: func(string) {}})
	s := newStore(t, b, nil)
	key := idem.NewKey() + "1"
	c, _, err := s.Begin(t.Context(), key, fp)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Complete(t.Context(), c, idem.Result{Code: 201, Body: make([]byte, 256)}); err != nil {
		t.Fatal(err)
	}
	n, err := client.MemoryUsage(t.Context(), b.Key(key)).Result()
	if err != nil || len(key) != 37 {
		t.Fatalf("MEMORY USAGE: %v, for a key of %d bytes", err, len(key))
	}
	if n > 520 {
		t.Errorf("the record takes %d bytes, want at most 520", n)
	}
	t.Logf("%d bytes", n)
}

// TM-3: every record has a TTL in Redis, a little later than the record's own.
func TestTM3EveryKeyHasATTL(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	b := newBackend(t, client, nil)
	ctx := t.Context()
	for _, ttl := range []time.Duration{-time.Second, -1, 0, 1, 500 * time.Microsecond, 999 * time.Microsecond, 1500 * time.Millisecond, 100 * 365 * 24 * time.Hour, math.MaxInt64} {
		key := ttl.String()
		r := idem.Record{Token: "a.1", Status: idem.InProgress, Attempt: 1, TTL: ttl}
		if _, err := b.Swap(ctx, key, "", r); err != nil {
			t.Errorf("Swap with a TTL of %v: %v", ttl, err)
			continue
		}
		left, err := client.Do(ctx, "pttl", b.Key(key)).Int64()
		want := max(0, ttl).Milliseconds()
		if err != nil || left < want || left > want+1+reclaimLate.Milliseconds() {
			t.Errorf("with a TTL of %v Redis reclaims the record in %d ms, %v", ttl, left, err)
		}
		got, err := b.Get(ctx, key)
		if alive := got.Token != ""; err != nil || ttl <= 0 && alive || ttl > time.Minute && !alive {
			t.Errorf("Get of a record with a TTL of %v: %v, %v", ttl, got, err)
		}
	}
	client.FlushDB(ctx) // the longest must not stay
	_ = b.Init(ctx)
}

func TestNames(t *testing.T) {
	seen := make(map[string]string)
	for i := range 10_000 {
		key := fmt.Sprint("key-", i)
		n := name("idem:", key)
		if other, ok := seen[n]; ok {
			t.Fatalf("%q and %q have the same name", key, other)
		}
		seen[n] = key
	}
	b := &Backend{opts: Options{Prefix: "i:"}}
	for _, key := range []string{"a", "{", "}", "{x}", "\x1f", strings.Repeat("k", idem.MaxStoredKey)} {
		if got, ok := b.keyOf(b.Key(key)); !ok || got != key {
			t.Errorf("the key of %q is %q, %v", b.Key(key), got, ok)
		}
	}
	for _, other := range []string{"", "i:", "i:{abcd}", "i:{????}a", "i:epoch", "j:{abcd}a"} {
		if key, ok := b.keyOf(other); ok {
			t.Errorf("%q passes for the record of %q", other, key)
		}
	}
}

// KF-6: the longest scope and key fit, one more byte is refused before Redis is
// asked.
func TestKF6Keys(t *testing.T) {
	b := newBackend(t, testredis.Client(t, testredis.Shared(t), nil), nil)
	r := example()
	for _, key := range []string{"x", strings.Repeat("k", idem.MaxStoredKey)} {
		if got, err := b.Swap(t.Context(), key, "", r); err != nil || got.Token != r.Token {
			t.Errorf("Swap of a key of %d bytes: %v, %v", len(key), got, err)
		}
		if got, err := b.Get(t.Context(), key); err != nil || got.Token != r.Token {
			t.Errorf("Get of a key of %d bytes: %v, %v", len(key), got, err)
		}
	}
	for _, key := range []string{"", strings.Repeat("k", idem.MaxStoredKey+1), strings.Repeat("k", 40_000)} {
		_, err := b.Swap(t.Context(), key, "", r)
		wantErr(t, fmt.Sprintf("Swap of a key of %d bytes", len(key)), err, idem.ErrKey)
		_, err = b.Get(t.Context(), key)
		wantErr(t, fmt.Sprintf("Get of a key of %d bytes", len(key)), err, idem.ErrKey)
		if !errors.Is(err, idem.ErrKey) {
			break
		}
	}
}
