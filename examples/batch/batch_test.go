package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/idem-go/idem/internal/testenv"
)

// The test binary is also the program, so that it can be killed.
func TestMain(m *testing.M) {
	if os.Getenv("BATCH_RUN") != "" {
		main()
		return
	}
	os.Exit(testenv.Leaks(m.Run()))
}

func program(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "BATCH_RUN=1")
	return cmd
}

// want has what the ledger has to contain: of each payment the first row.
func want(t *testing.T, file string) map[string]entry {
	rows, err := csv.NewReader(strings.NewReader(file)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	first := map[string]entry{}
	for _, row := range rows[1:] {
		p, err := parse(row)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := first[p.id]; !ok {
			first[p.id] = entry{p.id, p.account, p.cents}
		}
	}
	return first
}

// checkLedger proves that each payment is booked once, and as it was first sent.
func checkLedger(t *testing.T, ledger string, want map[string]entry) {
	t.Helper()
	im, err := openLedger(ledger)
	if err != nil {
		t.Fatal(err)
	}
	defer im.db.Close()
	booked := map[string]int{}
	if err := im.readEntries(func(e entry) {
		if booked[e.Payment]++; e != want[e.Payment] {
			t.Errorf("booked %+v, want %+v", e, want[e.Payment])
		}
	}); err != nil {
		t.Fatal(err)
	}
	for id := range want {
		if booked[id] != 1 {
			t.Errorf("payment %s is booked %d times", id, booked[id])
		}
	}
	if len(booked) != len(want) {
		t.Errorf("%d payments are booked, want %d", len(booked), len(want))
	}
}

// 10,000 rows with duplicates and conflicts, killed three times: one effect for
// each key.
func TestKilledThreeTimesAndStartedAgain(t *testing.T) {
	seed := testenv.Seed(t)
	dir := testenv.Dir(t)
	var file bytes.Buffer
	if err := generate(&file, 10_000, seed); err != nil {
		t.Fatal(err)
	}
	payments := filepath.Join(dir, "payments.csv")
	if err := os.WriteFile(payments, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	ledger := ""
	killed := false
	for try := 0; try < 20 && !killed; try++ {
		ledger = filepath.Join(dir, fmt.Sprintf("ledger%d.db", try))
		// A program that was faster than the signal was not killed in the
		// middle; that try does not count.
		killed = killAfter(t, ledger, payments, 1000) && killAfter(t, ledger, payments, 3000) && killAfter(t, ledger, payments, 5000)
	}
	if !killed {
		t.Fatal("the program could not be killed in the middle, 20 times")
	}
	expected := want(t, file.String())
	for run := range 2 { // the second run is the whole file sent again
		var stdout bytes.Buffer
		err := run10k(t, ledger, payments, &stdout)
		if !errors.Is(err, errNeedsAPerson) {
			t.Fatalf("run %d: %v", run, err)
		}
		checkLedger(t, ledger, expected)
		if run == 1 && !strings.Contains(stdout.String(), "booked     0 ") {
			t.Errorf("the file was sent again, and:\n%s", stdout.String())
		}
	}
}

func run10k(t *testing.T, ledger, payments string, stdout *bytes.Buffer) error {
	t.Helper()
	return run(context.Background(), []string{"import", "-ledger", ledger, payments}, stdout, &bytes.Buffer{})
}

// killAfter runs the import and kills it when it tells that it has done so many
// rows. It reports whether the program died of that.
func killAfter(t *testing.T, ledger, payments string, rows int) bool {
	t.Helper()
	cmd := program("import", "-ledger", ledger, payments)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	for lines.Scan() && lines.Text() != fmt.Sprintf("batch: %d rows done", rows) {
	}
	_ = cmd.Process.Kill()
	err = cmd.Wait()
	exit, ok := errors.AsType[*exec.ExitError](err)
	return ok && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}

func TestReportNamesWhatIsWrong(t *testing.T) {
	dir := testenv.Dir(t)
	payments := filepath.Join(dir, "payments.csv")
	write := func(text string) {
		if err := os.WriteFile(payments, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ledger := filepath.Join(dir, "ledger.db")
	write("payment,account,cents\nP1,A,100\nP1,A,100\nP1,A,200\nP2,B,x\nP3,,5\nP4\n" + strings.Repeat("p", 300) + ",A,5\nP5,C,7\n")
	var out bytes.Buffer
	if err := run10k(t, ledger, payments, &out); !errors.Is(err, errNeedsAPerson) {
		t.Errorf("%v", err)
	}
	for _, text := range []string{
		"line 4: P1 is booked with another account or amount: ask the sender",
		`line 5: "P2" is not booked: "x" is no amount in cents`,
		`line 6: "P3" is not booked: the account is missing`,
		`line 7: "" is not booked: `,
		"the key has 308 bytes, the limit is 255",
		"8 rows", "booked  2  amount 1.07", "replayed  1 ", "conflicts  1 ", "rejected  4 ",
	} {
		if !strings.Contains(out.String(), text) {
			t.Errorf("the report lacks %q:\n%s", text, out.String())
		}
	}
	out.Reset()
	if err := run(context.Background(), []string{"balance", "-ledger", ledger}, &out, &out); err != nil || !strings.Contains(out.String(), "all         2    1.07") {
		t.Errorf("%v\n%s", err, out.String())
	}
	// Bad input is refused before anything is booked.
	for text, want := range map[string]string{"id,amount\nP9,1\n": "first line", "": "first line", "payment,account,cents\nP9,\"A,1\n": "line 2"} {
		write(text)
		if err := run10k(t, ledger, payments, &out); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	checkLedger(t, ledger, map[string]entry{"P1": {"P1", "A", 100}, "P5": {"P5", "C", 7}})
}
