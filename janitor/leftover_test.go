package janitor

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// A janitor that never comes to the end of a listing forgets what it has decided.
func TestDecidedClaimsAreForgotten(t *testing.T) {
	ctx, b := t.Context(), memory.New()
	store, err := idem.New(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	const n = 50
	for i := range n {
		c, _, err := store.Begin(ctx, fmt.Sprint(i), idem.Fingerprint{})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Abandon(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	j, err := newJanitor(b, &Options{
		Budget:   1,
		Parallel: 1,
		Logger:   slog.New(slog.DiscardHandler),
		Recover:  func(context.Context, *idem.Claim) (idem.Result, error) { return idem.Result{}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	most, recovered := 0, 0
	for range n {
		recovered += j.run(ctx).Recovered
		most = max(most, len(j.left))
	}
	if recovered != n || most > 3 {
		t.Errorf("%d of %d claims were recovered, and %d remembered at a time", recovered, n, most)
	}
}
