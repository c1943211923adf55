package idem_test

import (
	"context"
	"errors"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// A probing backend says the same of every key.
type probing struct {
	*faulty
	may bool
}

func (p probing) Probe(string) bool { return p.may }

// A replay over a Prober reads, and a claim costs what it costs without.
func TestProbe(t *testing.T) {
	for _, may := range []bool{false, true} {
		b := newFaulty(memory.New(), nil)
		s := open(t, probing{b, may}, nil)
		if err := s.Complete(t.Context(), begin(t, s, "k", payloadA), result1); err != nil {
			t.Fatal(err)
		}
		gets, swaps := b.count("Get"), b.count("Swap")
		if _, done, err := s.Begin(t.Context(), "k", payloadA); err != nil || done == nil || !done.Result.Equal(result1) {
			t.Fatalf("probed %v: the replay is %v, %v", may, done, err)
		}
		if _, _, err := s.Begin(t.Context(), "k", payloadB); !errors.Is(err, idem.ErrMismatch) {
			t.Errorf("probed %v: another payload gave %v", may, err)
		}
		gets, swaps = b.count("Get")-gets, b.count("Swap")-swaps
		if may && (gets != 2 || swaps != 0) || !may && (gets != 0 || swaps != 2) {
			t.Errorf("probed %v: two duplicates cost %d Gets and %d Swaps", may, gets, swaps)
		}
	}
}

// What Probe and the Get after it say is a beginning; what is true, Swap knows.
func TestProbeIsAHint(t *testing.T) {
	failing := func(method string, _ int, _ idem.Record) fate {
		if method == "Get" {
			return lost
		}
		return fine
	}
	for _, sc := range []script{nil, failing} {
		b := newFaulty(memory.New(), sc)
		s := open(t, probing{b, true}, nil)
		c := begin(t, s, "k", payloadA)
		if _, _, err := s.Begin(t.Context(), "k", payloadA); !errors.Is(err, idem.ErrInProgress) {
			t.Errorf("a duplicate gave %v", err)
		}
		if err := s.Release(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if again := begin(t, s, "k", payloadB); again.Attempt != 2 || again.Takeover {
			t.Errorf("the next claim is attempt %d, takeover %v", again.Attempt, again.Takeover)
		}
	}
}

// A transaction has one connection and its own view: it is not probed.
func TestProbeNotInATransaction(t *testing.T) {
	b := newFaulty(memory.New(), nil)
	s := open(t, b, nil).With(probing{b, true})
	begin(t, s, "k", payloadA)
	if n := b.count("Get"); n != 0 {
		t.Errorf("a claim in a transaction read %d times", n)
	}
}

// A caller who is gone is told so, and nothing is asked.
func TestProbeContextDone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := newFaulty(memory.New(), nil)
	s := open(t, probing{b, true}, nil)
	if _, _, err := s.Begin(ctx, "k", payloadA); !errors.Is(err, context.Canceled) || b.count("Swap") != 0 {
		t.Errorf("Begin returned %v after %d Swaps", err, b.count("Swap"))
	}
}
