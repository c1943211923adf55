//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/idem-go/idem/idemtest"
)

// A command under idem run is repeated in every way that needs nothing but its
// being started.
func TestRunIsIdempotent(t *testing.T) {
	idemtest.Run(t, idemtest.Operation{
		Setup: func(testing.TB, *idemtest.Env) idemtest.Subject {
			b := newBox(t)
			return idemtest.Subject{
				Send: func(ctx context.Context, r idemtest.Request) (string, error) {
					cmd := exec.CommandContext(ctx, program, "run", "--key", r.Key, "--scope", r.Tenant, "--",
						"sh", "-c", `echo "charged $1" | tee -a ledger.txt`, "sh", string(r.Payload))
					cmd.Dir, cmd.Env = b.dir, b.env
					var errs bytes.Buffer
					cmd.Stderr = &errs
					answer, err := cmd.Output()
					if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == exitMismatch {
						return "", idemtest.ErrConflict
					}
					if err != nil {
						return "", fmt.Errorf("%w: %s", err, errs.Bytes())
					}
					return string(answer), nil
				},
				Effects: func() int {
					ledger, _ := os.ReadFile(b.path("ledger.txt"))
					return strings.Count(string(ledger), "\n")
				},
			}
		},
		Payload: func(n int) []byte { return fmt.Append(nil, 100+n) },
		Tenants: []string{"alice", "bob"},
	})
}
