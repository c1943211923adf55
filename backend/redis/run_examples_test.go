package redis_test

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/idem-go/idem/internal/testredis"
)

// The examples need a server, so they are run from here.
func TestExamples(t *testing.T) {
	addr = testredis.Start(t, "--appendonly", "yes").Addr // so that there is nothing to warn of
	for _, e := range []struct {
		run  func()
		want string
	}{
		{ExampleBackend_Init, "initialised: <nil>\n"},
		{Example, "shipped false <nil>\n"},
		{Example, "shipped true <nil>\n"},
		{ExampleBackend_WithTx, "booked\n"},
		{ExampleBackend_WithTx, "done before: booked\n"},
	} {
		if got := printed(t, e.run); !strings.HasSuffix(got, e.want) {
			t.Errorf("an example printed %q, want %q", got, e.want)
		}
	}
}

// printed returns what fn prints.
func printed(t *testing.T, fn func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = stdout }()
	fn()
	_ = w.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
