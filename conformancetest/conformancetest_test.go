package conformancetest

import (
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

func TestMemory(t *testing.T) {
	Run(t, Harness{
		New:  func(testing.TB) idem.Backend { return memory.New() },
		Peer: func(_ testing.TB, b idem.Backend) idem.Backend { return b },
	})
}

// A backend without a fault has none, with either kind of transaction.
func TestFake(t *testing.T) { Run(t, harness("")) }

func TestFakeOptimistic(t *testing.T) { Run(t, harness("", optimistic)) }
