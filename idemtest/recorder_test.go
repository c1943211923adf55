package idemtest

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testpg"
	"github.com/idem-go/idem/internal/testredis"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testpg.Stop()
	testredis.StopShared()
	os.Exit(testenv.Leaks(code))
}

// find returns the scenario with the name.
func find(t *testing.T, name string) scenario {
	t.Helper()
	i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
	if i < 0 {
		t.Fatalf("there is no scenario %s", name)
	}
	return scenarios[i]
}

// verdict plays one scenario and returns what it reported, instead of failing.
func verdict(t *testing.T, s scenario, op Operation) *recorder {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.check(r, op)
	}()
	<-done
	r.mu.Lock()
	defer r.mu.Unlock()
	return r
}

// A recorder is a testing.TB that keeps for itself how a test ended.
type recorder struct {
	testing.TB
	mu      sync.Mutex
	failed  bool
	skipped string
	said    []string
	logged  []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func (r *recorder) FailNow() { runtime.Goexit() }

func (r *recorder) Logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logged = append(r.logged, fmt.Sprintf(format, args...))
}

func (r *recorder) Skip(args ...any) {
	r.mu.Lock()
	r.skipped = fmt.Sprint(args...)
	r.mu.Unlock()
	runtime.Goexit()
}
