package bolt

import (
	"context"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/conformancetest"
	"github.com/idem-go/idem/internal/testenv"
)

// A rig is what the conformance suite knows about one backend.
type rig struct {
	clock *fakeClock
	peer  func(t testing.TB) *Backend
}

// harness returns the harness for one way to open a backend.
func harness(open func(t testing.TB) (*Backend, func(t testing.TB) *Backend)) conformancetest.Harness {
	rigs := make(map[idem.Backend]rig)
	return conformancetest.Harness{
		New: func(t testing.TB) idem.Backend {
			b, peer := open(t)
			r := rig{newFakeClock(), peer}
			rigs[r.clock.use(b)] = r
			return b
		},
		Peer: func(t testing.TB, b idem.Backend) idem.Backend {
			r := rigs[b]
			return r.clock.use(r.peer(t))
		},
		Advance: func(_ testing.TB, b idem.Backend, d time.Duration) {
			if d < 0 {
				rigs[b].clock.step(d)
			} else {
				rigs[b].clock.pass(d)
			}
		},
		InTx: func(_ testing.TB, b idem.Backend, fn func(tx idem.Backend) error) error {
			backend := b.(*Backend)
			db, err := backend.acquire(context.Background(), writing)
			if err != nil {
				return err
			}
			defer backend.release()
			backend.snapshots.pause()
			defer backend.snapshots.resume()
			return db.Update(func(tx *bbolt.Tx) error { return fn(backend.WithTx(tx)) })
		},
		Break: func(_ testing.TB, b idem.Backend) (restore func()) {
			c := b.(*Backend).core
			c.poison(syscall.EIO, false)
			return func() { c.poisoned.Store(nil) }
		},
		Writes: func(t testing.TB, b idem.Backend) (n uint64) {
			c := b.(*Backend).core
			err := c.view(t.Context(), func(t table) error {
				n = uint64(t.tx.ID())
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return n
		},
	}
}

func TestConformanceOpen(t *testing.T) {
	conformancetest.Run(t, harness(func(t testing.TB) (*Backend, func(testing.TB) *Backend) {
		b := open(t, testPath(t), nil)
		return b, func(testing.TB) *Backend { return b } // nobody else can open the file
	}))
}

func TestConformanceTwoHandles(t *testing.T) {
	conformancetest.Run(t, harness(func(t testing.TB) (*Backend, func(testing.TB) *Backend) {
		db := openDB(t, testPath(t))
		return newOn(t, db, nil), func(t testing.TB) *Backend { return newOn(t, db, nil) }
	}))
}

// All keys have one of four hashes, so that the index's hints are often wrong.
func TestConformanceCollidingHashes(t *testing.T) {
	if testenv.Race {
		t.Skip("not tested with the race detector: it is about what is found, and TestConformanceTwoHandles has the same races")
	}
	conformancetest.Run(t, harness(func(t testing.TB) (*Backend, func(testing.TB) *Backend) {
		db := openDB(t, testPath(t))
		colliding := func(t testing.TB) *Backend {
			b := newOn(t, db, nil)
			b.index.mu.Lock()
			defer b.index.mu.Unlock()
			b.index.mask = 3
			b.index.seq, b.index.txid = 0, unknownTx // build it again
			return b
		}
		return colliding(t), colliding
	}))
}

func TestConformanceShared(t *testing.T) {
	conformancetest.Run(t, harness(func(t testing.TB) (*Backend, func(testing.TB) *Backend) {
		path := testPath(t)
		shared := func(t testing.TB) *Backend {
			return open(t, path, &Options{Shared: true, OpenTimeout: 30 * time.Second})
		}
		return shared(t), shared
	}))
}
