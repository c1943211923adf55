package conformancetest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"unicode/utf8"

	"github.com/idem-go/idem"
)

const (
	ruleKeys   = "Keys are distinct if their bytes are: no folding, trimming or normalising, and no character is a pattern."
	ruleStored = "Every key of 1 to MaxStoredKey bytes of valid UTF-8 without NUL can be stored."
)

var keyCases = []testCase{
	{name: "Keys", rule: ruleKeys, run: testKeys},
	{name: "KeyPatterns", rule: ruleKeys, run: testKeyPatterns},
	{name: "KeysRandom", rule: ruleKeys, run: testKeysRandom},
	{name: "KeyLengths", rule: ruleStored, run: testKeyLengths},
	{name: "KeyCharacters", rule: ruleStored, run: testKeyCharacters},
}

// hostileKeys are keys that are easily taken for one another, for nothing, or
// for code.
var hostileKeys = []string{
	"k", "K", " k", "k ", "k\t", "k\n", "\u00a0k", "k\u200b", // case and blanks
	"é", "e\u0301", "É", "ß", "ss", "SS", "ẞ", "ı", "i", "I", "İ", "ſ", "s", "Å", "\u212b", "ﬁ", "fi", // folding and normalising
	"k*", "k?", "k%", "k_", "k.", "k[a]", "[k]", "^k", "k$", "*", "%", "_", "?", ".*", "kk", "ka", // patterns
	"{k}", "{k}x", "{", "}", "{}", "}{", "a{b}c{d}", // hash tags
	"'", "''", "\"", "k'--", "'; drop table idem; --", "$1", "$$", ":k", "?1", "@k", "\\", "\\\\", "\\0", "\\x00", "%00", "%s", "%d", // code
	"/", "k/", "/k", "../k", "k//x", "k/x", ".", "..", // paths
	"a:b", "a", "b", "a\x1fb", "a\x1f", "\x1fb", "\x1f", "a|b", "a,b", "a b", // separators
	"0", "00", "0.0", "-0", "1e3", "1000", "null", "NULL", "nil", "true", "undefined", "NaN", // values
	"\x01", "\x7f", "\u0085", "\u2028", "\ufeff", "\ufeffk", "\ufffd", "\U0010ffff", "😀", "😀k", "א", "\u202ek", // characters
}

// bounded returns keys that differ in their last bytes only, at the limit.
func bounded() []string {
	long := strings.Repeat("x", idem.MaxStoredKey-1)
	return []string{long, long + "a", long + "b", long + "A", long[1:] + "a", long[:254], long[:255], long[:256], long[:257]}
}

func testKeys(e *env) { storeApart(e, append(bounded(), hostileKeys...)) }

// storeApart stores every second key, expects the others to be absent, stores
// those and expects each key to have its own record.
func storeApart(e *env, keys []string) {
	own := make(map[string]idem.Record)
	for half := range 2 {
		for i, key := range keys {
			if i%2 == half {
				own[key] = newRecord(idem.InProgress)
				e.want(fmt.Sprintf("Swap of the absent key %q", short(key)), e.swap(e.b, key, "", own[key]), own[key])
			}
		}
		for _, key := range keys {
			e.wantStored(key, own[key])
		}
	}
	for _, key := range keys {
		next := newRecord(idem.Completed)
		e.want(fmt.Sprintf("Swap of %q", short(key)), e.swap(e.b, key, own[key].Token, next), next)
		own[key] = next
	}
	for _, key := range keys {
		e.wantStored(key, own[key])
	}
	l, ok := e.b.(idem.Lister)
	if !ok {
		return
	}
	listed := make(map[string]idem.Record)
	for _, entry := range e.list(l, idem.Query{Limit: 100}) {
		listed[entry.Key] = entry.Record
	}
	for _, key := range keys {
		e.want(fmt.Sprintf("List: the entry of %q", short(key)), listed[key], own[key])
		delete(listed, key)
	}
	for key := range listed {
		e.errorf("List returned the key %q, which was not stored", short(key))
	}
}

// testKeyPatterns stores one key and asks for others that could match it.
func testKeyPatterns(e *env) {
	e.put("invoice-17", newRecord(idem.Completed))
	for _, key := range []string{
		"*", "%", "_", "?", ".", ".*", "invoice-*", "invoice-%", "invoice-1_", "invoice-1?", "invoice-[0-9]7", "invoice-1[7]", "^invoice-17$",
		"invoice-17*", "invoice-17%", "invoice", "invoice-", "invoice-1", "invoice-170", "nvoice-17", "Invoice-17", "INVOICE-17", " invoice-17", "invoice-17 ",
		"invoice-17\x1f", "\x1finvoice-17", "{invoice-17}", "'invoice-17'", "invoice-17' or '1'='1",
	} {
		e.want(fmt.Sprintf("Get(%q) where only %q is stored", key, "invoice-17"), e.get(e.b, key), idem.Record{})
		e.want(fmt.Sprintf("Swap(%q) with an old token where only %q is stored", key, "invoice-17"), e.swap(e.b, key, "no.such", newRecord(idem.InProgress)), idem.Record{})
	}
}

func testKeysRandom(e *env) {
	rnd := e.random()
	seen := make(map[string]bool)
	var keys []string
	for len(keys) < rounds(200) {
		if key := randomKey(rnd); !seen[key] {
			seen[key] = true
			keys = append(keys, key)
		}
	}
	storeApart(e, keys)
}

// randomKey returns a key from a small alphabet of dangerous characters, or of
// any characters at all.
func randomKey(rnd *rand.Rand) string {
	const dangerous = "aAäÄ :{}*?[]%_'\"\\/.\x1f\x01$ß\u0301😀"
	alphabet := []rune(dangerous)
	var b strings.Builder
	any := rnd.IntN(2) == 0
	for n := 1 + rnd.IntN(12); n > 0; n-- {
		r := alphabet[rnd.IntN(len(alphabet))]
		if any {
			r = rune(1 + rnd.IntN(utf8.MaxRune))
		}
		if utf8.ValidRune(r) {
			b.WriteRune(r)
		}
	}
	if b.Len() == 0 {
		return "a"
	}
	return b.String()
}

// testKeyLengths stores keys of every length near a limit. They are random, so
// that no compression hides one.
func testKeyLengths(e *env) {
	rnd := e.random()
	own := make(map[string]idem.Record)
	for _, n := range []int{1, 2, 31, 32, 63, 64, 127, 128, 191, 192, 254, 255, 256, 257, 510, 511, idem.MaxStoredKey} {
		for _, alphabet := range []string{"0123456789abcdef", "äöüßéè", "漢字仮名交", "😀😁😂🤣"} {
			letters := []rune(alphabet)
			var b strings.Builder
			for b.Len() < n {
				r := letters[rnd.IntN(len(letters))]
				if b.Len()+utf8.RuneLen(r) > n {
					r = 'x'
				}
				b.WriteRune(r)
			}
			key := b.String()
			if _, ok := own[key]; !ok {
				own[key] = e.put(key, newRecord(idem.Completed))
			}
		}
	}
	for key, r := range own {
		e.wantStored(key, r)
	}
}

// testKeyCharacters stores a key with each character of the first planes' low
// end, where controls, blanks and letters of one or two bytes are.
func testKeyCharacters(e *env) {
	own := make(map[string]idem.Record)
	for c := rune(1); c < 0x180; c++ {
		key := "k" + string(c)
		own[key] = e.put(key, newRecord(idem.InProgress))
	}
	for key, r := range own {
		e.wantStored(key, r)
	}
}
