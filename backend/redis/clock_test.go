package redis

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testredis"
)

// Row 25 and TM-1: the server's clock is set ahead or back by minutes. The stamps
// are moved for that, the other way.
func TestRow25ClockIsSet(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	for _, set := range []time.Duration{5 * time.Minute, time.Hour, 24 * time.Hour} {
		t.Run(fmt.Sprintf("ahead by %v", set), func(t *testing.T) {
			o := own()
			s := newStore(t, newBackend(t, client, o), nil)
			c1, _, err := s.Begin(t.Context(), "k", fp)
			if err != nil {
				t.Fatal(err)
			}
			age(t, client, o.Prefix, set)
			c2, _, err := s.Begin(t.Context(), "k", fp)
			if err != nil || !c2.Takeover {
				t.Fatalf("Begin: %v", err)
			}
			wantErr(t, "Complete by the first holder", s.Complete(t.Context(), c1, idem.Result{}), idem.ErrLost)
		})
		t.Run(fmt.Sprintf("back by %v", set), func(t *testing.T) {
			const lease = 300 * time.Millisecond
			o := own()
			s := newStore(t, newBackend(t, client, o), &idem.Options{Lease: lease})
			if _, _, err := s.Begin(t.Context(), "k", fp); err != nil {
				t.Fatal(err)
			}
			age(t, client, o.Prefix, -set)
			start := time.Now()
			testredis.Until(t, "the lease is over", func() bool {
				c, _, err := s.Begin(t.Context(), "k", fp)
				if e, ok := errors.AsType[*idem.Error](err); ok && errors.Is(err, idem.ErrInProgress) {
					if left := e.RetryAfter(); left <= 0 || left > lease {
						t.Fatalf("RetryAfter is %v, with a lease of %v", left, lease)
					}
					return false
				}
				if err != nil {
					t.Fatal(err)
				}
				return c.Takeover
			})
			if took := time.Since(start); took < lease/2 {
				t.Errorf("the lease of %v was over after %v", lease, took)
			}
		})
	}
}

// The memory for records from the future is bounded.
func TestAheadIsBounded(t *testing.T) {
	var a ahead
	for i := range 3 * aheadMost {
		if d := a.age(fmt.Sprint(i)); d != 0 {
			t.Fatalf("the age at first sight is %v", d)
		}
	}
	if len(a.first) > aheadMost {
		t.Errorf("%d records are kept, the limit is %d", len(a.first), aheadMost)
	}
}
