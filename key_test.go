package idem_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/internal/testenv"
)

func randomHex(r *rand.Rand, n int) string {
	b := make([]byte, (n+1)/2)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return hex.EncodeToString(b)[:n]
}

// KF-6, PE-8: one limit for all backends, checked before the storage is asked.
func TestKF6_Keys(t *testing.T) {
	r := testenv.Rand(t)
	tests := []struct {
		key  string
		want string // in the error; "" = accepted
	}{
		{"", "the key is empty"},
		{"k", ""},
		{" ", ""},
		{randomHex(r, 255), ""},
		{strings.Repeat("é", 127), ""},
		{randomHex(r, 256), "the key has 256 bytes, the limit is 255"},
		{strings.Repeat("é", 128), "256 bytes"},
		{randomHex(r, 3200), "3200 bytes"},
		{randomHex(r, 40_000), "40000 bytes"},
		{"a\x00b", "control character U+0000 at byte 1"},
		{"a\x1fb", "control character U+001F"},
		{"tab\t", "control character U+0009"},
		{"line\n", "control character U+000A"},
		{"\x7f", "control character U+007F"},
		{"\u0085", "control character U+0085"},
		{"\xff", "not valid UTF-8"},
		{"a\xc3", "not valid UTF-8"},
		{"\xed\xa0\x80", "not valid UTF-8"}, // a surrogate
		{"'; drop table idem; --", ""},
		{"%_*?[a]{x}$1\\", ""},
	}
	ctx := context.Background()
	for _, scope := range []string{"", "s", strings.Repeat("s", 255)} {
		b := newFaulty(memory.New(), nil)
		s := open(t, b, &idem.Options{Scope: scope})
		for _, tt := range tests {
			before := b.count("Swap") + b.count("Get")
			c, _, err := s.Begin(ctx, tt.key, payloadA)
			if tt.want == "" {
				if err != nil || c.Key != tt.key {
					t.Errorf("Begin(%q) = %v, %v", tt.key, c, err)
				}
				continue
			}
			if !errors.Is(err, idem.ErrKey) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Begin(%.20q) = %v, want ErrKey with %q", tt.key, err, tt.want)
			}
			_, lookup := s.Lookup(ctx, tt.key)
			_, reclaim := s.Reclaim(ctx, tt.key, 1)
			_, do := s.Do(ctx, tt.key, payloadA, succeed)
			_, call := idem.Call(ctx, s, tt.key, 1, func(context.Context, int) (int, error) { return 0, nil })
			for _, err := range []error{lookup, reclaim, do, call, s.Wait(ctx, tt.key), s.Forget(ctx, tt.key, 1), s.Resolve(ctx, tt.key, 1, result1)} {
				if !errors.Is(err, idem.ErrKey) {
					t.Errorf("%.20q: %v, want ErrKey", tt.key, err)
				}
			}
			if n := b.count("Swap") + b.count("Get") - before; n != 0 {
				t.Errorf("%.20q: the storage was asked %d times", tt.key, n)
			}
		}
	}
}

// A control character, or a byte that is not UTF-8, is found wherever it is and
// whatever is beside it.
func TestKeyBytesAnywhere(t *testing.T) {
	s := open(t, memory.New(), nil)
	for _, fill := range []byte{' ', '~', 'x'} {
		for length := 1; length <= 20; length++ {
			for at := range length {
				for b := range 256 {
					key := bytes.Repeat([]byte{fill}, length)
					key[at] = byte(b)
					_, err := s.Lookup(t.Context(), string(key))
					if good := b >= ' ' && b < 0x7f; good != (err == nil) || !good && !errors.Is(err, idem.ErrKey) {
						t.Fatalf("%q: %v", key, err)
					}
				}
			}
		}
	}
}

func TestScopes(t *testing.T) {
	ctx := context.Background()
	s := open(t, nil, nil)
	long := strings.Repeat("x", 127)
	for name, bad := range map[string]*idem.Store{
		"empty":                 s.Scoped(""),
		"empty below":           s.Scoped("a").Scoped(""),
		"below a bad one":       s.Scoped("").Scoped("a"),
		"with the separator":    s.Scoped("a\x1fb"),
		"not UTF-8":             s.Scoped("\xff"),
		"too long":              s.Scoped(strings.Repeat("x", 256)),
		"too long together":     s.Scoped(long).Scoped(long).Scoped("x"),
		"bad, in a transaction": s.Scoped("").With(memory.New()),
	} {
		if _, _, err := bad.Begin(ctx, "k", payloadA); !errors.Is(err, idem.ErrKey) {
			t.Errorf("%s: %v", name, err)
		}
		if err := bad.Complete(ctx, begin(t, s, idem.NewKey(), payloadA), result1); !errors.Is(err, idem.ErrKey) {
			t.Errorf("%s: Complete: %v", name, err)
		}
	}
	if _, _, err := s.Scoped(long).Scoped(long).Begin(ctx, "k", payloadA); err != nil { // 127+1+127
		t.Errorf("255 bytes together: %v", err)
	}
}

// KF-5 (c), reliability row 32: scopes and keys are joined so that no two pairs
// meet. A small alphabet finds what long random names never would.
func TestKF5_ScopesNeverMeet(t *testing.T) {
	r := testenv.Rand(t)
	b := memory.New()
	s := open(t, b, nil)
	pieces := []string{"a", ":", "b", "/", " ", "a:", ":a", "\u241f", "ab"}
	pick := func() string {
		name := pieces[r.IntN(len(pieces))]
		for r.IntN(2) == 0 {
			name += pieces[r.IntN(len(pieces))]
		}
		return name
	}
	seen := map[string][]string{} // stored key -> levels and key
	for range 20_000 {
		path := []string{}
		scoped := s
		for range r.IntN(4) {
			path = append(path, pick())
			scoped = scoped.Scoped(path[len(path)-1])
		}
		key := pick()
		c := idem.Claim{}
		claim, _, err := scoped.Begin(context.Background(), key, payloadA)
		if err == nil {
			if err := scoped.Release(context.Background(), claim); err != nil {
				t.Fatal(err)
			}
			c.Key = claim.Key
		} else if !errors.Is(err, idem.ErrKey) {
			t.Fatal(err)
		}
		stored := idem.ScopePrefix(path...) + key
		whole := append(path, key)
		if before, ok := seen[stored]; ok && !slices.Equal(before, whole) {
			t.Fatalf("%q and %q are both stored as %q", before, whole, stored)
		}
		seen[stored] = whole
		if levels, k := idem.SplitKey(stored); k != key || !slices.Equal(levels, path) {
			t.Fatalf("SplitKey(%q) = %q, %q; want %q, %q", stored, levels, k, path, key)
		}
		if got, err := b.Get(context.Background(), stored); err != nil || got.Status != idem.Released {
			t.Fatalf("%q is not stored as %q: %v, %v", whole, stored, got.Status, err)
		}
	}
}

// A key does not hold on to the request it was cut out of, and does not change
// with it.
func TestKeysAreCopied(t *testing.T) {
	s := open(t, nil, nil)
	c := begin(t, s, "order-1", payloadA)
	if child := c.ChildKey("charge"); len(child) != 32 || child != c.ChildKey("charge") || child == c.ChildKey("refund") {
		t.Errorf("ChildKey = %q", child)
	}
	other := begin(t, s.Scoped("tenant"), "order-1", payloadA)
	if other.ChildKey("charge") == c.ChildKey("charge") {
		t.Error("two tenants send the same key to another system")
	}
	if err := s.Abandon(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	if next := begin(t, s, "order-1", payloadA); next.ChildKey("charge") != c.ChildKey("charge") {
		t.Error("the next attempt sends another key")
	}
}

// A new key is a UUID of version 7, which begins with the time.
func TestNewKey(t *testing.T) {
	form := regexp.MustCompile(`^([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := make(map[string]bool)
	for range 1000 {
		before := time.Now().UnixMilli()
		key := idem.NewKey()
		after := time.Now().UnixMilli()
		parts := form.FindStringSubmatch(key)
		if parts == nil || seen[key] {
			t.Fatalf("NewKey = %q, seen before: %v", key, seen[key])
		}
		seen[key] = true
		ms, err := strconv.ParseInt(parts[1]+parts[2], 16, 64)
		if err != nil || ms < before || ms > after {
			t.Fatalf("NewKey = %q, of the time %d (%v), made from %d to %d", key, ms, err, before, after)
		}
	}
}

// A stored key is taken apart into what it was joined from, and no scope's prefix
// takes in a key of another.
func FuzzSplitKey(f *testing.F) {
	f.Add("tenant", "orders", "4711", "4711\x1forders")
	f.Add("a", "b:c", "d", "")
	f.Add("", "\x1f", "k", "\x1f\x1f")
	f.Fuzz(func(t *testing.T, outer, inner, key, any string) {
		scope, k := idem.SplitKey(any)
		if back := idem.ScopePrefix(scope...) + k; back != any {
			t.Errorf("%q came apart into %q and %q, which are %q", any, scope, k, back)
		}
		b := memory.New()
		s, err := idem.New(b, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, levels := range [][]string{nil, {outer}, {outer, inner}} {
			store := s
			for _, level := range levels {
				store = store.Scoped(level)
			}
			c, _, err := store.Begin(t.Context(), key, payloadA)
			if errors.Is(err, idem.ErrKey) {
				continue
			}
			if err != nil {
				t.Fatalf("the key %q in %q: %v", key, levels, err)
			}
			stored := idem.ScopePrefix(levels...) + key
			if scope, k := idem.SplitKey(stored); k != key || !slices.Equal(scope, levels) || !slices.Equal(c.Scope(), levels) {
				t.Errorf("SplitKey(%q) is %q, %q, and the claim's scope %q; want %q, %q", stored, scope, k, c.Scope(), levels, key)
			}
			if len(stored) > idem.MaxStoredKey {
				t.Errorf("%q has %d bytes", stored, len(stored))
			}
			if r, err := b.Get(t.Context(), stored); err != nil || r.Status != idem.InProgress {
				t.Errorf("under %q there is %v, %v", stored, r.Status, err)
			}
		}
	})
}
