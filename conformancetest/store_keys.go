package conformancetest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"unicode"

	"github.com/idem-go/idem"
)

const (
	ruleScopes  = "Keys of different scopes never meet."
	ruleAnyKey  = "Every key of 1 to 255 bytes of UTF-8 without control characters works, with every scope."
	ruleBadKey  = "A key that is empty, too long, not UTF-8 or has control characters is ErrKey, before the storage is asked."
	ruleResult  = "Every duplicate gets the stored result, byte for byte; an empty result is a result."
	ruleOmitted = "An operation whose result is too large to store is done all the same, and its record says so."
)

var keyStoreCases = []testCase{
	{name: "KF-5/Scopes", rule: ruleScopes, run: storyScopes},
	{name: "KF-5/ScopesJoin", rule: ruleScopes, run: storyScopesJoin},
	{name: "KF-5/ScopeRelease", rule: ruleReleased, run: storyScopeRelease},
	{name: "KF-6/BadKeys", rule: ruleBadKey, run: storyBadKeys},
	{name: "PE-8/HostileKeys", rule: ruleAnyKey, run: storyHostileKeys},
	{name: "PE-8/LongestKeys", rule: ruleAnyKey, run: storyLongestKeys},
}

var resultCases = []testCase{
	{name: "RS-1/Results", rule: ruleResult, run: storyResults},
	{name: "RS-2/TooLarge", rule: ruleOmitted, run: storyTooLarge},
}

func storyScopes(e *env) {
	stores := e.stores(2)
	a, b, none := stores[0].Scoped("tenant a"), stores[1].Scoped("tenant b"), stores[0]
	c := e.claim(a, "k", payload)
	// Neither tenant learns of the other's key, whatever its state.
	e.want("Lookup in another scope", e.lookup(b, "k"), idem.Record{})
	own := e.claim(b, "k", otherPayload)
	e.is("Complete", a.Complete(e.ctx, c, text("secret of a")), nil)
	e.is("Complete", b.Complete(e.ctx, own, text("secret of b")), nil)
	if r := e.lookup(b, "k"); string(r.Result.Body) != "secret of b" {
		e.errorf("Lookup in a scope returned %q", r.Result.Body)
	}
	e.replay(stores[1].Scoped("tenant a"), "k", text("secret of a"))
	e.refused(b, "k", payload, idem.ErrMismatch)
	e.want("Lookup without a scope", e.lookup(none, "k"), idem.Record{})
	e.claim(none, "k", payload)

	// A claim is of use in its own scope only.
	c = e.claim(a, "own", payload)
	for what, s := range map[string]*idem.Store{"another scope": b, "no scope": none, "a scope below": a.Scoped("x")} {
		e.is("Complete in "+what, s.Complete(e.ctx, c, text("x")), idem.ErrLost)
		e.is("Extend in "+what, s.Extend(e.ctx, c), idem.ErrLost)
		e.is("Release in "+what, s.Release(e.ctx, c), idem.ErrLost)
	}
	e.is("Complete", a.Complete(e.ctx, c, text("done")), nil)
	e.is("Resolve in another scope", b.Resolve(e.ctx, "own", 1, text("x")), idem.ErrLost)
}

// storyScopesJoin has scopes and keys that are the same when they are written
// one after the other.
func storyScopesJoin(e *env) {
	s := e.store(e.b, nil)
	own := make(map[string]*idem.Store)
	var names []string
	for _, pair := range [][2]string{
		{"", "a:b:c"},
		{"a", "b:c"},
		{"a:b", "c"},
		{"a:", "b:c"},
		{"a", ":b:c"},
		{"a:b:", "c"},
		{"a", "c"},
		{"a/b", "c"},
		{"a", "b/c"},
		{"{a}", "b"},
		{"a", "{b}"},
		{"", "a b"},
		{"a", "b"},
		{"a ", "b"},
		{"a", " b"},
		{"A", "b"},
		{"%", "b"},
		{"*", "b"},
		{"a_", "b"},
	} {
		scoped := s
		if pair[0] != "" {
			scoped = s.Scoped(pair[0])
		}
		name := pair[0] + "|" + pair[1]
		names, own[name] = append(names, name), scoped
		e.claim(scoped, pair[1], payload)
	}
	e.claim(s.Scoped("a").Scoped("b"), "c", payload)
	e.claim(s.Scoped("a b"), "c", payload)
	for _, name := range names {
		_, key, _ := strings.Cut(name, "|")
		if r := e.lookup(own[name], key); r.Attempt != 1 {
			e.errorf("the scope and key %q have %v", name, show(r))
		}
	}
}

func storyScopeRelease(e *env) {
	s := e.store(e.b, nil).Scoped("org").Scoped("ledger")
	for attempt := 1; attempt <= 3; attempt++ {
		c := e.claim(s, "k", idem.FingerprintOf([]byte(fmt.Sprint(attempt))))
		if c.Attempt != attempt || c.Key != "k" {
			e.errorf("the claim has attempt %d and the key %q, want %d and k", c.Attempt, c.Key, attempt)
		}
		e.is("Release", s.Release(e.ctx, c), nil)
	}
	e.want("Lookup of the bare key", e.lookup(e.store(e.b, nil), "k"), idem.Record{})
}

// hexText returns n random hexadecimal digits, which no storage can compress.
func hexText(n int) string {
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%016x", rand.Uint64())
	}
	return b.String()[:n]
}

func storyBadKeys(e *env) {
	f := &faulty{b: e.b}
	s := e.store(f, nil)
	longest := s.Scoped(hexText(idem.MaxScope))
	for _, key := range []string{
		"", hexText(256), hexText(3200), hexText(40_000), strings.Repeat("a", 5000), strings.Repeat("é", 128),
		"\x00", "k\x00", "\xff", "k\xff", "\xc3", "\xed\xa0\x80", "k\n", "\tk", "\x1f", "a\x1fb", "\x7f", "\u0085",
	} {
		for _, s := range []*idem.Store{s, longest} {
			e.refused(s, key, payload, idem.ErrKey)
			_, err := s.Lookup(e.ctx, key)
			e.is("Lookup with a bad key", err, idem.ErrKey)
			e.is("Resolve with a bad key", s.Resolve(e.ctx, key, 1, text("x")), idem.ErrKey)
			e.is("Forget with a bad key", s.Forget(e.ctx, key, 1), idem.ErrKey)
			_, err = s.Reclaim(e.ctx, key, 1)
			e.is("Reclaim with a bad key", err, idem.ErrKey)
			_, err = s.Do(e.ctx, key, payload, e.never)
			e.is("Do with a bad key", err, idem.ErrKey)
		}
	}
	for _, scope := range []string{"", "a\x00", "\xff", "a\x1fb", hexText(256), hexText(40_000)} {
		e.refused(s.Scoped(scope), "k", payload, idem.ErrKey)
		e.refused(s.Scoped(scope).Scoped("fine"), "k", payload, idem.ErrKey)
	}
	e.refused(longest.Scoped("x"), "k", payload, idem.ErrKey)
	if n := f.calls(); n != 0 {
		e.errorf("the storage was asked %d times about bad keys", n)
	}
}

// through takes keys through a whole life, each with its own result.
func (e *env) through(s, peer *idem.Store, keys []string) {
	e.t.Helper()
	for _, key := range keys {
		e.done(s, key, payload, text("result of "+key))
	}
	for _, key := range keys {
		e.replay(peer, key, text("result of "+key))
		if r := e.lookup(peer, key); r.Attempt != 1 {
			e.errorf("Lookup(%q) returned %v", short(key), show(r))
		}
	}
}

func storyHostileKeys(e *env) {
	stores := e.stores(2)
	seen := make(map[string]bool)
	var keys []string
	add := func(key string) {
		if !seen[key] && len(key) <= idem.MaxKey && strings.IndexFunc(key, unicode.IsControl) < 0 {
			seen[key] = true
			keys = append(keys, key)
		}
	}
	for _, key := range hostileKeys {
		add(key)
	}
	if len(keys) < 60 {
		e.fatalf("the list has %d keys that a Store takes, want 60", len(keys))
	}
	rnd := e.random()
	for range rounds(100) {
		add(randomKey(rnd))
	}
	e.through(stores[0], stores[1], keys)
	e.through(stores[0].Scoped("{tenant}'%_*\\"), stores[1].Scoped("{tenant}'%_*\\"), keys)
}

func storyLongestKeys(e *env) {
	stores := e.stores(2)
	keys := []string{"k", hexText(254), hexText(255), strings.Repeat("a", 255), strings.Repeat("é", 127), strings.Repeat("😀", 63)}
	e.through(stores[0], stores[1], keys)
	scope := hexText(idem.MaxScope)
	e.through(stores[0].Scoped(scope), stores[1].Scoped(scope), keys)
	for range 4 {
		scope = hexText(63)
		stores[0], stores[1] = stores[0].Scoped(scope), stores[1].Scoped(scope)
	}
	e.through(stores[0], stores[1], keys)
}

func storyResults(e *env) {
	stores := e.stores(2)
	for name, r := range remarkable() {
		if r.Result.Omitted {
			continue // which is up to the Store
		}
		want := r.Result
		c := e.claim(stores[0], name, payload)
		given := copyRecord(idem.Record{Result: want}).Result
		e.is("Complete with "+name, stores[0].Complete(e.ctx, c, given), nil)
		spoil(idem.Record{Result: given})
		for _, s := range stores {
			got := e.replay(s, name, want)
			if got.Status != idem.Completed || got.Attempt != 1 {
				e.errorf("with %s the record is %v", name, show(*got))
			}
			spoil(*got)
		}
		e.is("Complete again with "+name, stores[1].Complete(e.ctx, c, want), nil)
	}
}

func storyTooLarge(e *env) {
	const limit = 1024
	s := e.store(e.b, &idem.Options{MaxResult: limit})
	peer := e.store(e.peer(), nil)
	large := func(n int) idem.Result {
		return idem.Result{Code: 200, Meta: map[string]string{"Content-Type": "text/plain"}, Body: []byte(hexText(n))}
	}
	for _, n := range []int{limit - 1, limit, limit + 1, 2 * limit, 1 << 20} {
		key := fmt.Sprint(n)
		r := large(n)
		c := e.done(s, key, payload, r)
		want := r
		if n > limit {
			want.Body, want.Omitted = nil, true
		}
		e.replay(s, key, want)
		e.replay(peer, key, want)
		e.is("Complete again, with the same result", s.Complete(e.ctx, c, r), nil)
		e.refused(s, key, otherPayload, idem.ErrMismatch)
	}
	// Whatever else does not fit leaves a completed record as well.
	meta := idem.Result{Code: 200, Meta: map[string]string{"Link": hexText(2 * limit)}, Body: []byte("small")}
	e.done(s, "meta", payload, meta)
	c, done, err := peer.Begin(e.ctx, "meta", payload)
	if done == nil || !done.Result.Omitted {
		e.errorf("Begin of a key whose result had too much meta gave %s", outcome(c, done, err))
	}
	c = e.claim(s, "checkpoint", payload)
	e.is("Checkpoint at the limit", s.Checkpoint(e.ctx, c, []byte(hexText(limit))), nil)
	e.is("Checkpoint above the limit", s.Checkpoint(e.ctx, c, []byte(hexText(limit+1))), idem.ErrOptions)
	e.is("Complete", s.Complete(e.ctx, c, text("done")), nil)
}
