package conformancetest

import (
	"fmt"

	"github.com/idem-go/idem"
)

const (
	ruleProbeTrue  = "Probe is true for a key with a record that has lately been stored through this Backend."
	ruleProbeFalse = "Probe is false for most keys that have no record."
)

var probeCases = []testCase{
	{name: "Stored", rule: ruleProbeTrue, needs: needProber, run: testProbeStored},
	{name: "Absent", rule: ruleProbeFalse, needs: needProber, run: testProbeAbsent},
}

func testProbeStored(e *env) {
	p := e.b.(idem.Prober)
	for i := range 100 {
		key := fmt.Sprint("k", i)
		now := e.put(key, newRecord(idem.InProgress))
		for _, s := range []idem.Status{idem.InProgress, idem.Completed, idem.Released} {
			if !p.Probe(key) {
				e.fatalf("Probe of a key with a record that is %v is false", now.Status)
			}
			next := newRecord(s)
			e.want("Swap", e.swap(e.b, key, now.Token, next), next)
			now = next
		}
		if !p.Probe(key) {
			e.fatalf("Probe of a key with a record that is %v is false", now.Status)
		}
	}
}

func testProbeAbsent(e *env) {
	e.put("k", newRecord(idem.InProgress))
	maybe := 0
	const keys = 200
	for i := range keys {
		if e.b.(idem.Prober).Probe(fmt.Sprint("absent", i)) {
			maybe++
		}
	}
	if maybe > keys/2 {
		e.errorf("Probe is true for %d of %d keys without a record", maybe, keys)
	}
}
