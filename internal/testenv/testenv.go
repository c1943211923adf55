// Package testenv has what this module's tests need of the machine they run on.
package testenv

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Seed returns the seed for a test's random choices and prints it. The
// environment variable IDEM_SEED sets it, to repeat a run.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("IDEM_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("IDEM_SEED=%q is not a number: %v", s, err)
		}
	}
	t.Logf("IDEM_SEED=%d repeats this run", seed)
	return seed
}

// Rand returns a source of random choices with the seed of Seed.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	seed := Seed(t)
	return rand.New(rand.NewPCG(seed, seed))
}

// Dir returns a directory for a test's files, in memory where that is possible,
// and removes it after the test. Tests that need a real disk use t.TempDir.
func Dir(t testing.TB) string {
	t.Helper()
	const memory = "/dev/shm"
	if info, err := os.Stat(memory); err != nil || !info.IsDir() {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(memory, "idem-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("clean-up: %v", err)
		}
	})
	return dir
}

// Skip skips a test that cannot run here and says why. What it needs has a short
// name, such as "root" or "strace". The environment variable IDEM_REQUIRE, a list
// of such names separated by commas, makes their absence a failure.
func Skip(t testing.TB, need, format string, args ...any) {
	t.Helper()
	reason := fmt.Sprintf(format, args...)
	if slices.Contains(strings.Split(os.Getenv("IDEM_REQUIRE"), ","), need) {
		t.Fatalf("IDEM_REQUIRE has %q, but: %s", need, reason)
	}
	t.Skipf("not tested, needs %s: %s", need, reason)
}
