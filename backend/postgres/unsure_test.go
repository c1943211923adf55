package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// scripted is a source whose connections fail as they are told to.
type scripted struct {
	fail []error // of one call after the other
	last func()  // called with the last of them
}

func (s *scripted) with(context.Context, func(session) error) error {
	err := s.fail[0]
	if s.fail = s.fail[1:]; len(s.fail) == 0 {
		s.last()
	}
	return err
}

func (s *scripted) inTx(ctx context.Context, fn func(session) error) error { return s.with(ctx, fn) }

// The answer of a first try is lost, and the second is refused as the loser of a
// conflict, perhaps with the first, or has not written because the first has. When
// the caller gives up then, nobody knows what became of the first; without it, it
// is known that nothing happened.
func TestAfterALostAnswer(t *testing.T) {
	conflict := &pgconn.PgError{Code: serializationFailure, Severity: "ERROR", SeverityUnlocalized: "ERROR"}
	for _, test := range []struct {
		name     string
		fail     []error
		definite bool
	}{
		{"lost, then a conflict", []error{io.ErrUnexpectedEOF, conflict}, false},
		{"a conflict", []error{conflict}, true},
		{"lost, then nothing written", []error{io.ErrUnexpectedEOF, nil}, false},
		{"nothing written", []error{nil}, true},
	} {
		for _, alone := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, alone %v", test.name, alone), func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				b, err := newBackend(&scripted{fail: test.fail, last: cancel}, nil)
				if err != nil {
					t.Fatal(err)
				}
				swap := idem.Swap{Key: "k", New: idem.Record{Token: "a.1", Status: idem.InProgress, Attempt: 1, Lease: 1, TTL: 1}}
				if alone {
					_, err = b.Swap(ctx, swap.Key, swap.Old, swap.New)
				} else {
					err = b.SwapAll(ctx, []idem.Swap{swap})[0].Err
				}
				if !errors.Is(err, context.Canceled) {
					t.Errorf("Swap = %v", err)
				}
				if freed(t, err) != test.definite {
					t.Errorf("Swap = %v, which says that nothing happened: %v, want %v", err, !test.definite, test.definite)
				}
			})
		}
	}
}

// freed reports whether err says that nothing happened: a claim whose function
// returns it is given back.
func freed(t *testing.T, err error) bool {
	t.Helper()
	s, newErr := idem.New(memory.New(), nil)
	if newErr != nil {
		t.Fatal(newErr)
	}
	_, _ = s.Do(t.Context(), "k", idem.Fingerprint{}, func(context.Context, *idem.Claim) (idem.Result, error) { return idem.Result{}, err })
	r, _ := s.Lookup(t.Context(), "k")
	return r.Status == idem.Released
}
