package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

// The test binary is also the program, so that it can be killed.
func TestMain(m *testing.M) {
	if os.Getenv("RECOVERY_RUN") != "" {
		main()
		return
	}
	os.Exit(testenv.Leaks(m.Run()))
}

const lease = time.Second

func testStage(t *testing.T) *stage {
	t.Helper()
	st, err := newStage(filepath.Join(testenv.Dir(t), "orders.db"), lease, func(args ...string) *exec.Cmd {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), "RECOVERY_RUN=1", "GORACE=atexit_sleep_ms=0")
		return cmd
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.close)
	return st
}

func (st *stage) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := st.run(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func rounds() int {
	if testing.Short() {
		return 3
	}
	return 20
}

func number(i int) string { return fmt.Sprintf("order-%d", i) }

// settled charges the orders again, as their customers do, and wants one charge for
// each, of which the shop and the provider say the same. It returns how many of them
// had been charged before.
func (st *stage) settled(t *testing.T, orders int) (replayed int) {
	t.Helper()
	for i := range orders {
		again := st.must(t, "charge", number(i), "4999")
		if strings.HasSuffix(again, "replayed=true") {
			replayed++
		}
	}
	if n := len(st.provider.booked("")); n != orders {
		t.Errorf("%d charges for %d orders", n, orders)
	}
	want := fmt.Sprintf("%d orders and %[1]d charges: they agree", orders)
	if got := st.must(t, "compare"); got != want {
		t.Errorf("compare: %q, want %q", got, want)
	}
	return replayed
}

// Killed at each step, every order has one charge in the end, and the orders agree
// with the provider.
func TestKilledAtEachStep(t *testing.T) {
	n := rounds()
	freed, done, nothing := fmt.Sprintf("0 completed, %d freed", n), fmt.Sprintf("%d completed, 0 freed", n), "0 completed, 0 freed"
	for _, tt := range []struct {
		step
		recovered string
		replayed  int
	}{
		{claimed, freed, 0},
		{checkpointed, freed, 0},
		{lost, freed, 0},
		{late, done, n},
		{unanswered, done, n},
		{charged, done, n},
		{completed, nothing, n},
	} {
		t.Run(string(tt.step), func(t *testing.T) {
			t.Parallel()
			st := testStage(t)
			for i := range n {
				if err := st.kill(tt.step, number(i), "4999"); err != nil {
					t.Fatal(err)
				}
			}
			if got := st.must(t, "recover"); got != tt.recovered {
				t.Errorf("the janitor says %q, want %q", got, tt.recovered)
			}
			if got := st.settled(t, n); got != tt.replayed {
				t.Errorf("%d of %d orders had been charged before, want %d", got, n, tt.replayed)
			}
		})
	}
}

// Killed anywhere, and the recovery as well.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	rnd := testenv.Rand(t)
	st := testStage(t)
	kill := func(within time.Duration, args ...string) {
		cmd := st.start(args...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rnd.Int64N(int64(within)))) // where it hits is up to chance
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for i := range rounds() {
		kill(lease/4, "charge", number(i), "4999")
	}
	for range rounds() / 3 {
		kill(lease, "recover")
	}
	st.must(t, "recover")
	st.settled(t, rounds())
}

// A call that times out, before the effect or after it, is an outcome that nobody
// knows; no try charges again before the janitor has asked.
func TestTimeout(t *testing.T) {
	for at, replayed := range map[step]int{lost: 0, late: 1, unanswered: 1} {
		t.Run(string(at), func(t *testing.T) {
			t.Parallel()
			st := testStage(t)
			out, err := st.run("-hang-at", string(at), "-timeout", "200ms", "charge", number(0), "4999")
			if err == nil || !strings.Contains(err.Error(), "Client.Timeout") {
				t.Fatalf("%q, %v; want a timeout", out, err)
			}
			if out, err := st.run("charge", number(0), "4999"); err == nil || !strings.Contains(err.Error(), idem.ErrUnresolved.Error()) {
				t.Fatalf("%q, %v; want ErrUnresolved", out, err)
			}
			st.must(t, "recover")
			if n := st.settled(t, 1); n != replayed {
				t.Errorf("%d orders had been charged before, want %d", n, replayed)
			}
		})
	}
}

// What the provider does not say is not guessed.
func TestFindOut(t *testing.T) {
	ctx := context.Background()
	st := testStage(t)
	s, err := openShop(st.args[1], options{provider: st.args[3], lease: lease, timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	c := &idem.Claim{Key: "order", Checkpoint: []byte("reference")}
	if _, err := s.findOut(ctx, c); err == errNotFound || !errors.Is(err, errNotFound) {
		t.Errorf("no charge: %v, want NoEffect", err)
	}
	st.provider.begin("reference")
	if _, err := s.findOut(ctx, c); err != errPending {
		t.Errorf("a request is pending: %v, want it left open", err)
	}
	booked := st.provider.book(charge{Reference: "reference", Cents: 1})
	if r, err := s.findOut(ctx, c); err != nil || string(r.Body) != booked.Receipt {
		t.Errorf("a charge: %+v, %v", r, err)
	}
	st.provider.book(charge{Reference: "reference", Cents: 1})
	if r, err := s.findOut(ctx, c); err == nil || !strings.Contains(err.Error(), "2 charges") {
		t.Errorf("two charges: %+v, %v; want it left to a person", r, err)
	}
	if err := s.compare(ctx, io.Discard); err == nil || !strings.Contains(err.Error(), "of which no order knows") {
		t.Errorf("compare: %v", err)
	}
	st.close()
	if _, err := s.findOut(ctx, c); err == nil || errors.Is(err, errNotFound) {
		t.Errorf("the provider is down: %v, want it left open", err)
	}
	if _, err := s.findOut(ctx, &idem.Claim{Key: "order"}); err == nil {
		t.Error("without a checkpoint it has a result")
	}
}

func TestUsage(t *testing.T) {
	orders := filepath.Join(testenv.Dir(t), "orders.db")
	for _, args := range []string{"dance", "charge order", "charge order x", "charge order -1", "-hang-at nowhere recover"} {
		var out bytes.Buffer
		if err := run(t.Context(), append([]string{"-orders", orders}, strings.Fields(args)...), &out, &out); err == nil || out.Len() > 0 {
			t.Errorf("%q: %v, %q", args, err, out.String())
		}
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-h"}, &out, &out); err == nil || !strings.Contains(out.String(), "-hang-at") {
		t.Errorf("-h: %v, %q", err, out.String())
	}
}
