package bolt

import (
	"math"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

func TestTM1_ClockNeverGoesBack(t *testing.T) {
	var wall, mono int64 = 1_000_000, 0
	c := clock{now: func() (int64, int64) { return wall, mono }}
	want := func(what string, want int64) {
		t.Helper()
		if got := c.read(); got != want {
			t.Fatalf("%s: the clock reads %d, want %d", what, got, want)
		}
	}
	want("at first", 1_000_000)
	wall, mono = wall+100, mono+100
	want("later", 1_000_100)
	wall = 500_000
	want("set back", 1_000_100)
	wall, mono = wall+50, mono+50
	want("set back, and later", 1_000_150)
	wall = 2_000_000
	want("set ahead", 2_000_000)
	c.learn(3_000_000)
	want("a stamp of the future", 3_000_000)
	wall, mono = wall+10, mono+10
	want("a stamp of the future, and later", 3_000_010)
	c.learn(1)
	want("a stamp of the past", 3_000_010)
}

// TM-1: setting the clock back frees no live claim, and makes no lease longer than
// it is, whether the process runs or is started again.
func TestTM1_ClockSetBack(t *testing.T) {
	path := testPath(t)
	machine := newFakeClock()
	b := open(t, path, nil)
	machine.use(b)
	swap(t, b, "k", "", running("a.1"))
	machine.pass(20 * time.Second)

	machine.step(-time.Hour)
	if r := get(t, b, "k"); r.LeaseLeft() > 40*time.Second || r.LeaseLeft() < 39*time.Second {
		t.Errorf("after the clock was set back %v of the lease are left, want 40s", r.LeaseLeft())
	}
	machine.pass(30 * time.Second)
	if r := get(t, b, "k"); r.LeaseLeft() > 10*time.Second {
		t.Errorf("30s later %v of the lease are left, want 10s", r.LeaseLeft())
	}
	swap(t, b, "other", "", running("b.1"))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}

	again := open(t, path, nil)
	machine.use(again)
	if r := get(t, again, "k"); r.LeaseLeft() <= 0 || r.LeaseLeft() > 10*time.Second {
		t.Errorf("in the next process %v of the lease are left, want 10s", r.LeaseLeft())
	}
	if r := get(t, again, "other"); r.Age < 0 || r.LeaseLeft() > time.Minute || r.LeaseLeft() < 59*time.Second {
		t.Errorf("of the last record's lease %v are left at the age of %v, want 1m", r.LeaseLeft(), r.Age)
	}
	machine.pass(time.Minute)
	if r := get(t, again, "other"); !r.Lapsed() {
		t.Errorf("a minute later %v of the lease are left, want none", r.LeaseLeft())
	}
}

// TM-1: a jump ahead is believed, as the package says.
func TestTM1_ClockSetAhead(t *testing.T) {
	machine := newFakeClock()
	b := machine.use(open(t, testPath(t), nil))
	swap(t, b, "k", "", running("a.1"))
	machine.step(time.Hour)
	if r := get(t, b, "k"); !r.Lapsed() {
		t.Errorf("an hour ahead %v of the lease are left, want none", r.LeaseLeft())
	}
	machine.step(-time.Hour)
	if r := get(t, b, "k"); !r.Lapsed() {
		t.Errorf("the lease came back to life with %v", r.LeaseLeft())
	}
}

// TM-3: durations of every size are stored as they are; what is over is over to
// the nanosecond.
func TestTM3_Durations(t *testing.T) {
	var wall int64 = 1_700_000_000_000_000_000
	b := open(t, testPath(t), nil)
	b.clock.now = func() (int64, int64) { return wall, wall }
	for _, d := range []time.Duration{1, 500 * time.Microsecond, 999 * time.Microsecond, 1500 * time.Millisecond, 100 * 365 * 24 * time.Hour, math.MaxInt64} {
		key := d.String()
		r := running(key + ".1")
		r.Lease, r.TTL = d, d
		swap(t, b, key, "", r)
		if got := get(t, b, key); got.Lease != d || got.TTL != d || got.Age != 0 {
			t.Errorf("%v: lease %v, TTL %v, age %v", d, got.Lease, got.TTL, got.Age)
		}
		stored := wall
		wall += int64(d) - 1
		if wall < stored {
			break // the end of time
		}
		if got := get(t, b, key); got.Age != d-1 || got.LeaseLeft() != 1 {
			t.Errorf("%v: 1ns before the end: age %v, %v of the lease left", d, got.Age, got.LeaseLeft())
		}
		wall++
		if got := get(t, b, key); got.Token != "" {
			t.Errorf("%v: the record is there at the age of %v", d, got.Age)
		}
	}
}

// PE-13: the fence of a key never goes down, not even after the record is gone.
func TestPE13_FenceAfterRetention(t *testing.T) {
	machine := newFakeClock()
	b := machine.use(open(t, testPath(t), nil))
	store := newStore(t, b, nil)
	ctx := t.Context()
	var last int64
	for round := range 6 {
		c, _, err := store.Begin(ctx, "k", fp)
		if err != nil {
			t.Fatal(err)
		}
		if c.Fence <= last {
			t.Fatalf("round %d: fence %d after %d", round, c.Fence, last)
		}
		last = c.Fence
		switch round % 3 {
		case 0:
			err = store.Release(ctx, c)
		case 1:
			err = store.Complete(ctx, c, idem.Result{})
			machine.pass(25 * time.Hour)
		case 2:
			machine.pass(49 * time.Hour) // lease and retention
			_, err = b.Sweep(ctx, 10)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// PE-7: the zone of the program has no part in any age.
func TestPE7_Zones(t *testing.T) {
	before := time.Local
	defer func() { time.Local = before }()
	path := testPath(t)
	machine := newFakeClock()
	for i, zone := range []*time.Location{time.FixedZone("JST", 9*3600), time.FixedZone("EST", -5*3600), time.UTC} {
		time.Local = zone
		b := machine.use(open(t, path, nil))
		if i == 0 {
			swap(t, b, "k", "", running("a.1"))
		}
		if r := get(t, b, "k"); r.Lapsed() || r.LeaseLeft() > time.Minute-time.Duration(i)*time.Second || r.LeaseLeft() < 50*time.Second {
			t.Errorf("in the zone %v %v of the lease are left after %d seconds", zone, r.LeaseLeft(), i)
		}
		machine.pass(time.Second)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
