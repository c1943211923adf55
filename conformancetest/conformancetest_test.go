package conformancetest

import (
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

func TestMemory(t *testing.T) {
	var h Harness
	h.New = func(testing.TB) idem.Backend { return memory.New() }
	h.Peer = func(_ testing.TB, b idem.Backend) idem.Backend { return b }
	Run(t, h)
}
