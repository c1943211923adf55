package faulttest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/internal/testenv"
)

// lossier is where a fault that needs another to show has its chance.
var lossier = faults{loseRequest: 10, loseReply: 40, delayRequest: 5, transit: 20 * time.Millisecond, delay: 2 * time.Second}

// The check notices every fault, in ten histories of ten, and none where there is
// none.
func TestMutants(t *testing.T) {
	seed := testenv.Seed(t)
	noticed := func(t *testing.T, fault string, histories int) int {
		n := 0
		for i := range uint64(histories) {
			h, err := inMemory(t, lossier, seed+i, func(rnd *rand.Rand) idem.Backend {
				return newMutant(memory.New(), fault, 50*time.Millisecond, rnd)
			})
			switch verdict := h.check(); {
			case verdict == porcupine.Unknown:
				t.Errorf("the check of history %d took more than %v", i, checkFor)
			case verdict == porcupine.Illegal || err != nil:
				n++
			}
		}
		return n
	}
	histories := times(10)
	t.Run("none", func(t *testing.T) {
		if n := noticed(t, "", histories); n > 0 {
			t.Errorf("a storage without a fault was refused in %d histories of %d", n, histories)
		}
	})
	missed := 0
	for _, fault := range mutants {
		t.Run(strings.ReplaceAll(fault, " ", "-"), func(t *testing.T) {
			if n := noticed(t, fault, histories); n < histories {
				missed += histories - n
				t.Errorf("a storage that %s was noticed in %d histories of %d only", fault, n, histories)
			}
		})
	}
	reportRounds(fmt.Sprintf("%d kinds of storages that are wrong on purpose", len(mutants)), "memory", histories*len(mutants), missed)
}
