package idem_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/idem-go/idem"
)

type payment struct {
	Account string
	Amount  int64
}

type receipt struct {
	ID     string
	Amount int64
	secret string
}

func TestCall(t *testing.T) {
	ctx := context.Background()
	s := open(t, nil, nil)
	runs := 0
	charge := func(_ context.Context, p payment) (receipt, error) {
		runs++
		return receipt{ID: "r-1", Amount: p.Amount, secret: "x"}, nil
	}
	first, err := idem.Call(ctx, s, "k", payment{"a", 100}, charge)
	if err != nil || first != (receipt{"r-1", 100, "x"}) {
		t.Errorf("%+v, %v", first, err)
	}
	again, err := idem.Call(ctx, s, "k", payment{"a", 100}, charge)
	if err != nil || again != (receipt{ID: "r-1", Amount: 100}) || runs != 1 {
		t.Errorf("%+v, %v after %d runs", again, err, runs)
	}
	// A map with the same members is the same request.
	if _, err := idem.Call(ctx, s, "k", map[string]any{"Amount": 100, "Account": "a"}, func(context.Context, map[string]any) (receipt, error) { runs++; return receipt{}, nil }); err != nil || runs != 1 {
		t.Errorf("%v after %d runs", err, runs)
	}
	if _, err := idem.Call(ctx, s, "k", payment{"a", 101}, charge); !errors.Is(err, idem.ErrMismatch) {
		t.Errorf("another amount: %v", err)
	}
	// The stored response is of another type.
	if _, err := idem.Call(ctx, s, "k", payment{"a", 100}, func(context.Context, payment) (int, error) { return 0, nil }); !errors.Is(err, idem.ErrCorrupt) {
		t.Errorf("another response type: %v", err)
	}
	if _, err := idem.Call(ctx, s, "k2", payment{}, func(context.Context, payment) (receipt, error) { return receipt{}, idem.NoEffect(errBroken) }); err != errBroken {
		t.Errorf("%v", err)
	}
	if r := lookup(t, s, "k2"); r.Status != idem.Released {
		t.Errorf("%v", r.Status)
	}
}

// RS-1: a response that looks like nothing is a response.
func TestRS1_EmptyResponses(t *testing.T) {
	ctx := context.Background()
	s := open(t, nil, nil)
	runs := 0
	for range 2 {
		if v, err := idem.Call(ctx, s, "zero", 0, func(context.Context, int) (int, error) { runs++; return 0, nil }); v != 0 || err != nil {
			t.Errorf("%v, %v", v, err)
		}
		if v, err := idem.Call(ctx, s, "nil", 0, func(context.Context, int) (*int, error) { runs++; return nil, nil }); v != nil || err != nil {
			t.Errorf("%v, %v", v, err)
		}
		if v, err := idem.Call(ctx, s, "any", 0, func(context.Context, int) (any, error) { runs++; return nil, nil }); v != nil || err != nil {
			t.Errorf("%v, %v", v, err)
		}
		if v, err := idem.Call(ctx, s, "list", 0, func(context.Context, int) ([]string, error) { runs++; return []string{}, nil }); len(v) != 0 || v == nil || err != nil {
			t.Errorf("%v, %v", v, err)
		}
	}
	if runs != 4 {
		t.Errorf("%d runs, want 4", runs)
	}
}

func TestCallThatIsErased(t *testing.T) {
	ctx := context.Background()
	s := open(t, nil, nil)
	call := func() (string, error) {
		return idem.Call(ctx, s, "k", 1, func(context.Context, int) (string, error) { return "of Anna", nil })
	}
	if v, err := call(); v != "of Anna" || err != nil {
		t.Fatalf("%q, %v", v, err)
	}
	if err := s.Erase(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	if v, err := call(); v != "" || !errors.Is(err, idem.ErrNotRecorded) || !strings.Contains(err.Error(), "is erased") {
		t.Errorf("%q, %v", v, err)
	}
}

func TestCallThatCannotBeEncoded(t *testing.T) {
	ctx := context.Background()
	s := open(t, nil, &idem.Options{MaxResult: 10})
	runs := 0
	if _, err := idem.Call(ctx, s, "k", func() {}, func(context.Context, func()) (int, error) { runs++; return 0, nil }); !errors.Is(err, idem.ErrOptions) {
		t.Errorf("a request that is a func: %v", err)
	}
	if _, err := idem.Call(ctx, s, "k", 1, func(context.Context, int) (chan int, error) { runs++; return nil, nil }); !errors.Is(err, idem.ErrOptions) {
		t.Errorf("a response that is a chan: %v", err)
	}
	if runs != 0 || lookup(t, s, "k").Status != 0 {
		t.Errorf("%d runs and a record that is %v; bad input is refused before anything happens", runs, lookup(t, s, "k").Status)
	}
	// Found out only after the effect: it counts, once.
	odd := func(context.Context, int) (any, error) { runs++; return func() {}, nil }
	if v, err := idem.Call(ctx, s, "odd", 1, odd); v == nil || !errors.Is(err, idem.ErrNotRecorded) {
		t.Errorf("%v, %v", v, err)
	}
	if _, err := idem.Call(ctx, s, "odd", 1, odd); !errors.Is(err, idem.ErrNotRecorded) || runs != 1 {
		t.Errorf("%v after %d runs", err, runs)
	}
	big := func(context.Context, int) (string, error) { runs++; return strings.Repeat("x", 20), nil }
	if v, err := idem.Call(ctx, s, "big", 1, big); len(v) != 20 || err != nil {
		t.Errorf("%v, %v", v, err)
	}
	if _, err := idem.Call(ctx, s, "big", 1, big); !errors.Is(err, idem.ErrNotRecorded) || runs != 2 {
		t.Errorf("%v after %d runs", err, runs)
	}
}
