package idem_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/idem-go/idem"
)

func fingerprintJSON(t *testing.T, doc string) idem.Fingerprint {
	t.Helper()
	f, err := idem.FingerprintJSON([]byte(doc))
	if err != nil {
		t.Fatalf("FingerprintJSON(%q): %v", doc, err)
	}
	return f
}

// KF-3: only what JSON calls insignificant does not count.
func TestKF3_FingerprintJSON(t *testing.T) {
	equal := [][2]string{
		{`{"a":1,"b":[1,2]}`, "{ \"b\" : [1,\t2],\n\"a\":1 }"},
		{`{"x":{"a":1,"b":{"c":2,"d":3}}}`, `{"x":{"b":{"d":3,"c":2},"a":1}}`},
		{`"\u0041\u00e9\ud83d\ude00\/"`, `"Aé😀/"`},
		{`{"\u0061":1}`, `{"a":1}`},
	}
	for _, pair := range equal {
		if fingerprintJSON(t, pair[0]) != fingerprintJSON(t, pair[1]) {
			t.Errorf("%s and %s differ", pair[0], pair[1])
		}
	}
	// Each differs from every other.
	different := []string{
		`1`, `"1"`, `1.0`, `10`, `1e1`, `-1`, `0`, `-0`, `null`, `"null"`, `true`, `"true"`, `false`, `""`,
		`[]`, `{}`, `[1,2]`, `[2,1]`, `[[1],2]`, `[1,[2]]`, `[12]`, `["1","2"]`, `["12"]`, `[null]`, `[[]]`, `[{}]`,
		`{"a":null}`, `{"a":""}`, `{"a":1}`, `{"a":"1"}`, `{"a":{"b":1}}`, `{"a":{},"b":1}`, `{"A":1}`, `{"a":[]}`,
		`9007199254740993`, `9007199254740992`,
		"\"\u00e9\"", "\"e\u0301\"", `"\u0000"`, `"\\u0041"`, `"A"`,
	}
	seen := map[idem.Fingerprint]string{}
	for _, doc := range different {
		f := fingerprintJSON(t, doc)
		if before, ok := seen[f]; ok {
			t.Errorf("%s and %s have the same fingerprint", before, doc)
		}
		seen[f] = doc
	}
	if fingerprintJSON(t, `1`) == idem.FingerprintOf([]byte(`1`)) {
		t.Error("a document has the fingerprint of its bytes")
	}
	errors := map[string]string{
		``:                                      "unexpected end",
		`{`:                                     "unexpected end",
		`{"a":1}{"b":2}`:                        "after top-level value",
		`{"a":1,"a":1}`:                         `"a" stands twice`,
		`{"x":[{"a":1,"\u0061":2}]}`:            `"a" stands twice`,
		"\"\xff\"":                              "UTF-8",
		`"\ud800"`:                              "surrogate",
		`"\udc00"`:                              "surrogate",
		`"\udc00\ud800"`:                        "surrogate",
		`"\ud800\ud800"`:                        "surrogate",
		`"\ud800x"`:                             "surrogate",
		`"\ud800\n\udc00"`:                      "surrogate",
		`{"\ud83d":1}`:                          "surrogate",
		`nul`:                                   "invalid character",
		`01`:                                    "invalid character",
		`[1,]`:                                  "invalid character",
		strings.Repeat("[", 20_000):             "depth",
		`{"a":` + strings.Repeat(`[`, 20) + `}`: "invalid character",
	}
	for doc, want := range errors {
		if f, err := idem.FingerprintJSON([]byte(doc)); err == nil || !strings.Contains(err.Error(), want) || f != (idem.Fingerprint{}) {
			t.Errorf("FingerprintJSON(%.30q) = %v, %v; want an error with %q", doc, f, err, want)
		}
	}
}

// PE-15: two payloads that a checksum of 32 bits takes for one.
func TestPE15_NoCollisionOfShortChecksums(t *testing.T) {
	if fingerprintJSON(t, `{"id":120}`) == fingerprintJSON(t, `{"id":201}`) {
		t.Error("{\"id\":120} and {\"id\":201} have the same fingerprint")
	}
	if len(idem.Fingerprint{}) != 32 {
		t.Errorf("a fingerprint has %d bytes, want all 32 of SHA-256", len(idem.Fingerprint{}))
	}
	ctx := context.Background()
	s := open(t, nil, nil)
	echo := func(_ context.Context, m map[string]int) (int, error) { return m["id"], nil }
	if v, err := idem.Call(ctx, s, "k", map[string]int{"id": 120}, echo); v != 120 || err != nil {
		t.Fatal(v, err)
	}
	if v, err := idem.Call(ctx, s, "k", map[string]int{"id": 201}, echo); !errors.Is(err, idem.ErrMismatch) {
		t.Errorf("the other payload got %d, %v", v, err)
	}
}

func TestFingerprintOf(t *testing.T) {
	lists := [][]string{{}, {""}, {"", ""}, {"ab", "c"}, {"a", "bc"}, {"abc"}, {"a", "b", "c"}, {"abc", ""}, {"", "abc"}, {"\x00"}, {strings.Repeat("\x00", 8)}}
	seen := map[idem.Fingerprint][]string{}
	for _, l := range lists {
		var parts [][]byte
		for _, p := range l {
			parts = append(parts, []byte(p))
		}
		f := idem.FingerprintOf(parts...)
		if before, ok := seen[f]; ok || f == (idem.Fingerprint{}) {
			t.Errorf("%q has the fingerprint of %q", l, before)
		}
		seen[f] = l
	}
	if idem.FingerprintOf(nil) != idem.FingerprintOf([]byte{}) {
		t.Error("nil and empty parts differ")
	}
	const known = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" // SHA-256 of nothing
	if got := idem.FingerprintOf().String(); got != known {
		t.Errorf("FingerprintOf() = %s", got)
	}
}

// What a document costs depends on its size, not on its shape.
func TestFingerprintOfNestedObjects(t *testing.T) {
	const depth = 9999
	doc := []byte(strings.Repeat(`{"a":`, depth) + `"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat("}", depth))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := idem.FingerprintJSON(doc); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 50*uint64(len(doc)) {
		t.Errorf("%d bytes were allocated for a document of %d", n, len(doc))
	}
}

// Fingerprints are stored: a change of their form would turn every retry that
// is under way during an upgrade into a conflict.
func TestFingerprintsAreStable(t *testing.T) {
	for doc, want := range map[string]string{
		`{"b":[1,"x",null,true],"a":{}}`: "83c2665f3f5b9734bb7fee04a545ec33023677ce59556b7fb0d7695d1dd8097f",
	} {
		if got := fingerprintJSON(t, doc).String(); got != want {
			t.Errorf("fingerprint of %s is now %s, was %s", doc, got, want)
		}
	}
	if got, want := idem.FingerprintOf([]byte("ab"), []byte("c")).String(), "601d5476e2ccfe2c87a2bba7a322659734a05749d5b5aa781f513e4912db0d5f"; got != want {
		t.Errorf("fingerprint of two parts is now %s, was %s", got, want)
	}
}

func FuzzFingerprintJSON(f *testing.F) {
	for _, doc := range []string{`{"a":[1,2,{"b":null}]}`, `"\ud83d\ude00"`, `-0.5e+10`, `{"a":1,"a":2}`, "\"\xff\"", `[]`} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		a, err := idem.FingerprintJSON(doc)
		if err != nil {
			if a != (idem.Fingerprint{}) {
				t.Errorf("a fingerprint with the error %v", err)
			}
			return
		}
		spaced := append(append([]byte(" \n"), doc...), '\t')
		if b, err := idem.FingerprintJSON(spaced); err != nil || a != b {
			t.Errorf("white space counts: %v", err)
		}
	})
}
