package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testpg"
)

// The test binary is also the program, so that its consumers can be killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "consume" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// Every order published twice, and a consumer killed ten times in the middle of its
// work: one entry for each order, and none lost.
func TestTenThousandOrdersKilledTenTimes(t *testing.T) {
	runDemo(t, settings{
		ledger:  filepath.Join(testenv.Dir(t), "ledger"),
		orders:  10_000,
		workers: 8,
		ackWait: 2 * time.Second,
		kills:   10,
		procs:   1,
	})
}

// The same with three consumers at once on one PostgreSQL.
func TestConsumersOnPostgresKilled(t *testing.T) {
	runDemo(t, settings{
		ledger:  testpg.New(t).URL(),
		orders:  2_000,
		workers: 4,
		ackWait: 2 * time.Second,
		kills:   10,
		procs:   3,
	})
}

func runDemo(t *testing.T, s settings) {
	t.Helper()
	if testing.Short() {
		s.orders, s.kills = s.orders/10, 3
	}
	t.Setenv("TMPDIR", testenv.Dir(t)) // for what the broker stores
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	var out bytes.Buffer
	err := demo(ctx, s, &out)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	t.Log(out.String())
	if kills := strings.Count(out.String(), "kill -9"); kills != s.kills {
		t.Errorf("consumers were killed %d times, want %d", kills, s.kills)
	}
	if !strings.Contains(out.String(), "broker: 0 messages left, 0 dead letters") {
		t.Error("the broker is not done")
	}
	if got := completed(t, s.ledger); got != s.orders {
		t.Errorf("%d records are completed, want %d", got, s.orders)
	}
}

// completed returns how many records there are, all of which have to be completed.
func completed(t *testing.T, at string) (n int) {
	t.Helper()
	l, err := openLedger(context.Background(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	for q, end := (idem.Query{}), false; !end; end = q.Cursor == "" {
		var some []idem.Entry
		some, q.Cursor, err = l.backend().(idem.Lister).List(context.Background(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range some {
			if n++; e.Record.Status != idem.Completed {
				t.Errorf("the record of %q is %v", e.Key, e.Record.Status)
			}
		}
	}
	return n
}
