package memory

import (
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/conformancetest"
)

// The storage is the Backend itself, so that every process has its own: there
// is no other handle on it, no transaction, and nothing that can fail.
var harness = conformancetest.Harness{
	New:  func(testing.TB) idem.Backend { return New() },
	Peer: func(_ testing.TB, b idem.Backend) idem.Backend { return b },
	Advance: func(_ testing.TB, b idem.Backend, d time.Duration) {
		m := b.(*Backend)
		m.mu.Lock()
		defer m.mu.Unlock()
		now := m.now
		m.now = func() time.Time { return now().Add(d) }
	},
}

func TestConformance(t *testing.T) { conformancetest.Run(t, harness) }

func BenchmarkConformance(b *testing.B) { conformancetest.Bench(b, harness) }
