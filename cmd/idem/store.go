package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// A place holds the flag that says which store is meant.
type place struct {
	Store string `placeholder:"URL" complete:"file" help:"Where the records are kept: --store /var/lib/idem/jobs.db for a file, or a URL, bolt:///PATH, postgres://HOST/DATABASE or redis://HOST. Else $$IDEM_STORE, else idem/idem.db in $$XDG_STATE_HOME or ~/.local/state."`
}

// A where holds the flags that say which records are meant.
type where struct {
	Scope []string `placeholder:"SCOPE" sep:"none" help:"Namespace of the key, such as a project: --scope billing. Give it twice for a scope within a scope."`
	place
}

// A target is what a subcommand is about, for opening it and for speaking of it.
type target struct {
	where
	*location
	key string
}

// at returns the target of a key, or of the whole store for the empty key.
func (w where) at(key string, getenv func(string) string) (target, error) {
	t := target{where: w, key: key}
	var err error
	switch url := getenv("IDEM_STORE"); {
	case w.Store != "":
		t.location, err = locate(w.Store)
	case url != "":
		t.location, err = locate(url)
	default:
		t.location, err = defaultLocation(getenv)
	}
	return t, err
}

// whole returns the target of the whole store.
func (p place) whole(getenv func(string) string) (target, error) {
	return where{place: p}.at("", getenv)
}

// stored returns the key under which the backend has the record.
func (t target) stored() string { return idem.ScopePrefix(t.Scope...) + t.key }

// check reports what is wrong with the key, the scope or the options, before
// there is a file. The rules are those of the library, asked on a store that
// is empty.
func (t target) check(opts *idem.Options) error {
	store, err := t.on(memory.New(), opts)
	if err != nil {
		return err
	}
	_, err = store.Lookup(context.Background(), t.key)
	return err
}

// on returns the Store of the target's scope.
func (t target) on(b idem.Backend, opts *idem.Options) (*idem.Store, error) {
	store, err := idem.New(b, opts)
	if err != nil {
		return nil, err
	}
	for _, level := range t.Scope {
		store = store.Scoped(level)
	}
	return store, nil
}

// String names the key, for messages.
func (t target) String() string {
	if len(t.Scope) == 0 {
		return fmt.Sprintf("key %q", t.key)
	}
	return fmt.Sprintf("key %q in scope %q", t.key, scopeName(t.Scope))
}

// scopeName returns the levels of a scope as one name, for people and for the
// command; only JSON tells apart levels that have slashes in them.
func scopeName(levels []string) string { return strings.Join(levels, "/") }

// commandLine returns a call of idem about the same key, to be typed in. Only a
// password in the URL has to be put in again.
func (t target) commandLine(words ...string) string {
	words = append([]string{"idem"}, words...)
	for _, level := range t.Scope {
		words = append(words, "--scope", quote(level))
	}
	words = append(words, t.storeFlag()...)
	if strings.HasPrefix(t.key, "-") {
		words = append(words, "--")
	}
	return strings.Join(append(words, quote(t.key)), " ")
}

// storeLine returns a call of idem about the whole store, to be typed in.
func (t target) storeLine(words ...string) string {
	return strings.Join(append(append([]string{"idem"}, words...), t.storeFlag()...), " ")
}

// storeFlag returns --store as it was given, if it was, without a password.
func (t target) storeFlag() []string {
	switch {
	case t.Store == "":
		return nil
	case t.path != "":
		return []string{"--store", quote(t.Store)}
	}
	return []string{"--store", quote(t.name)}
}

// quote returns s as one word of a shell.
func quote(s string) string {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_./:=@%+,", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
