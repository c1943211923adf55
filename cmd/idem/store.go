package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/bolt"
	"github.com/idem-go/idem/backend/memory"
)

// openTimeout is how long a call waits for the store file, which other
// processes hold for the moment of each of their operations.
const openTimeout = 10 * time.Second

// A where holds the flags that say which records are meant.
type where struct {
	Scope []string `placeholder:"SCOPE" sep:"none" help:"Namespace of the key, such as a project: --scope billing. Give it twice for a scope within a scope."`
	Store string   `placeholder:"URL" help:"File that keeps the records: --store /var/lib/idem/jobs.db, or as a URL bolt:///var/lib/idem/jobs.db. Else $$IDEM_STORE, else idem/idem.db in $$XDG_STATE_HOME or ~/.local/state."`
}

// A target is what a subcommand is about, for opening it and for speaking of it.
type target struct {
	where
	key  string
	path string // of the store file
	made bool   // the path is the default one, whose folder idem makes
}

// at returns the target of a key, or of the whole store for the empty key.
func (w where) at(key string, getenv func(string) string) (target, error) {
	t := target{where: w, key: key}
	var err error
	switch url := getenv("IDEM_STORE"); {
	case w.Store != "":
		t.path, err = pathOf(w.Store)
	case url != "":
		t.path, err = pathOf(url)
	default:
		t.made = true
		t.path, err = defaultPath(getenv)
	}
	return t, err
}

// pathOf returns the file that a store's URL names: bolt:///absolute/path,
// bolt:relative/path, or just a path.
func pathOf(url string) (string, error) {
	scheme, rest, found := strings.Cut(url, ":")
	switch {
	case found && scheme == "bolt":
		path, slashes := strings.CutPrefix(rest, "//")
		if slashes && !strings.HasPrefix(path, "/") {
			return "", fmt.Errorf("store %q: after bolt:// the path has to be absolute, as in bolt:///%s; a relative one is bolt:%s", url, path, path)
		}
		if path == "" {
			return "", fmt.Errorf("store %q: there is no path in it", url)
		}
		return path, nil
	case found && strings.HasPrefix(rest, "//"):
		// The rest may have a password in it.
		return "", fmt.Errorf("store %s://...: this program keeps its records in bolt files only, as in bolt:///var/lib/idem/jobs.db", scheme)
	}
	return url, nil
}

// defaultPath follows the XDG Base Directory Specification, which has state
// that outlives restarts but is not worth a backup by the user in this place,
// and wants relative values ignored.
func defaultPath(getenv func(string) string) (string, error) {
	dir := getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(dir) {
		home := getenv("HOME")
		if home == "" {
			return "", errors.New("store: neither --store nor $IDEM_STORE, $XDG_STATE_HOME or $HOME says where to keep the records; give one, as in --store /var/lib/idem/jobs.db")
		}
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, "idem", "idem.db"), nil
}

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

// create opens the store file and makes it if there is none, and in the default
// place its folder too.
func (t target) create() (*bolt.Backend, error) {
	if t.made {
		if err := os.MkdirAll(filepath.Dir(t.path), 0o700); err != nil {
			return nil, err
		}
	}
	return bolt.Open(t.path, &bolt.Options{OpenTimeout: openTimeout, Shared: true})
}

// read opens the store file for reading, which changes nothing.
func (t target) read() (*bolt.Backend, error) {
	if missing(t.path) {
		return nil, fail(exitAbsent,
			"if you use another store for running, name it with --store or $IDEM_STORE",
			"store %s: there is no such file; nothing has been run with it yet", t.path)
	}
	return bolt.Open(t.path, &bolt.Options{OpenTimeout: openTimeout, Shared: true, MustExist: true, ReadOnly: true})
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

// commandLine returns a call of idem about the same key, to be typed in.
func (t target) commandLine(verb string) string {
	words := []string{"idem", verb}
	for _, level := range t.Scope {
		words = append(words, "--scope", quote(level))
	}
	if t.Store != "" {
		words = append(words, "--store", quote(t.Store))
	}
	if strings.HasPrefix(t.key, "-") {
		words = append(words, "--")
	}
	return strings.Join(append(words, quote(t.key)), " ")
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
