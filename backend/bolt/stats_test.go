package bolt

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
)

func TestStats(t *testing.T) {
	for _, shared := range []bool{false, true} {
		machine := newFakeClock()
		path := testPath(t)
		b := machine.use(open(t, path, &Options{Shared: shared}))
		fill(t, b, 100, numbered, func(i int) idem.Record { return completed(fmt.Sprintf("t%d.1", i), 10_000) })
		full, err := b.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if full.Records != 100 || full.Size != info.Size() || full.Size-full.Free < 100*10_000 || full.Ahead != 0 {
			t.Errorf("shared %v: %+v of a file of %d bytes", shared, full, info.Size())
		}
		// What is deleted becomes free, and the file does not shrink.
		machine.pass(24 * time.Hour)
		if n, err := b.Sweep(t.Context(), 100); n != 100 || err != nil {
			t.Fatalf("Sweep = %d, %v", n, err)
		}
		machine.step(-72 * time.Hour)
		swept, err := b.Stats(t.Context())
		if err != nil || swept.Records != 0 || swept.Size < full.Size || swept.Free < full.Free+900_000 {
			t.Errorf("shared %v: after the sweep %+v, before %+v, %v", shared, swept, full, err)
		}
		if swept.Ahead < 47*time.Hour || swept.Ahead > 49*time.Hour {
			t.Errorf("shared %v: the clock was set back to 48 h before the last write, and Ahead is %v", shared, swept.Ahead)
		}
	}
}

func TestStatsInATransaction(t *testing.T) {
	db := openDB(t, testPath(t))
	b := newOn(t, db, nil)
	err := db.Update(func(tx *bbolt.Tx) error {
		_, err := b.WithTx(tx).Stats(t.Context())
		return err
	})
	if err == nil {
		t.Error("no error")
	}
}
