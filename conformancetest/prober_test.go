package conformancetest

import (
	"context"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// A prober knows which keys have been written to. It is a backend apart from the
// fake one, in which a Store would no longer meet the faults of Swap.
type prober struct {
	*memory.Backend
	probe func(stored idem.Record) bool
}

func (p prober) Probe(key string) bool {
	r, err := p.Get(context.Background(), key)
	return err == nil && p.probe(r)
}

func TestProber(t *testing.T) {
	for name, p := range map[string]struct {
		probe    func(idem.Record) bool
		caughtBy string
	}{
		"right":           {func(r idem.Record) bool { return r.Token != "" }, ""},
		"probes nothing":  {func(idem.Record) bool { return false }, "Stored"},
		"probes anything": {func(idem.Record) bool { return true }, "Absent"},
		"forgets the end": {func(r idem.Record) bool { return r.Status == idem.InProgress }, "Stored"},
	} {
		h := Harness{New: func(testing.TB) idem.Backend { return prober{memory.New(), p.probe} }}
		for _, c := range probeCases {
			if r := verdict(t, c, h); r.skipped != "" || r.failed != (c.name == p.caughtBy) {
				t.Errorf("%s: %s failed: %v, skipped: %q", name, c.name, r.failed, r.skipped)
			}
		}
	}
}
