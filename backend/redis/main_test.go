package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testredis"
)

func TestMain(m *testing.M) {
	goredis.SetLogger(silent{}) // the faults are on purpose
	code := m.Run()
	testredis.StopShared()
	os.Exit(testenv.Leaks(code))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// fp is the fingerprint of most tests.
var fp = idem.FingerprintOf([]byte("payload"))

// own returns options with a prefix that no other test uses.
func own() *Options { return &Options{Prefix: "t" + rand.Text()[:8] + ":", Warn: func(string) {}} }

// newBackend returns a backend on a client, with a storage of its own.
func newBackend(t testing.TB, client goredis.UniversalClient, opts *Options) *Backend {
	t.Helper()
	if opts == nil {
		opts = own()
	}
	b, err := New(client, opts)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// newStore returns a Store on a backend.
func newStore(t testing.TB, b idem.Backend, opts *idem.Options) *idem.Store {
	t.Helper()
	s, err := idem.New(b, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// within returns a context that bounds what could hang.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func wantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: the error is %v, want one that is %q", what, err, want)
	}
}
