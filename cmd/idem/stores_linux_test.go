package main

import (
	"context"
	"crypto/rand"
	"encoding/csv"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testpg"
	"github.com/idem-go/idem/internal/testredis"
)

// stopServers stops the servers that the tests have shared.
func stopServers() {
	testpg.Stop()
	testredis.StopShared()
}

// onEachStore runs a test in boxes whose store is of each kind, empty and ready.
func onEachStore(t *testing.T, test func(t *testing.T, b *box)) {
	t.Parallel()
	for _, kind := range []string{"bolt", "postgres", "redis"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			b.use(b.emptyStore(kind))
			test(t, b)
		})
	}
}

// emptyStore returns the URL of a store of a kind that is empty and ready.
func (b *box) emptyStore(kind string) string {
	b.t.Helper()
	url := b.path(rand.Text() + ".db")
	switch kind {
	case "postgres":
		base, schema := testpg.Schema(b.t)
		url = testpg.With(base, "idem_schema", schema)
	case "redis":
		url = "redis://" + testredis.Shared(b.t) + "?idem_prefix=" + rand.Text() + ":"
	}
	if d := b.idem("migrate", "--store", url); d.code != 0 {
		b.t.Fatal(d)
	}
	return url
}

// use makes a store the one of the box.
func (b *box) use(url string) {
	b.url = url
	b.env = append(b.env, "IDEM_STORE="+url)
}

// open opens the store of the box by way of the library.
func (b *box) open() *storage {
	b.t.Helper()
	l, err := locate(b.url)
	if err != nil {
		b.t.Fatal(err)
	}
	s, err := l.open(b.t.Context(), toRun)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { s.Close() })
	return s
}

func TestStoreRunsOnce(t *testing.T) {
	onEachStore(t, func(t *testing.T, b *box) {
		b.idem(runArgs("--key k1", charge...)...).expect(t, 0, "charged\n")
		b.idem(runArgs("--key k1", charge...)...).expect(t, 0, "charged\n")
		b.wantEffects(1)
		b.idem(runArgs("--key k1", "true")...).expect(t, exitMismatch, "", "belongs to another command", "idem show k1")
		b.idem("show", "k1").expectPart(t, 0, "stdout size\t8 B\n")
		d := b.idem("show", "k1", "--body")
		d.expectPart(t, 0, "stdout\tcharged\n")
		if d := b.idem("show", "k1"); strings.Contains(d.stdout, "charged") {
			t.Errorf("output is shown without --body: %v", d)
		}
		b.idem("show", "nobody's").expect(t, exitAbsent, "", "there is no record in", "idem list")
	})
}

func TestStoreWhileTheCommandRuns(t *testing.T) {
	onEachStore(t, func(t *testing.T, b *box) {
		ready, gate := b.gate("ready"), b.gate("gate")
		p := b.start(runArgs("--key k1 --lease 1s", "sh", "-c", "echo ready > ready; read go < gate; echo done | tee -a ledger.txt")...)
		ready.wait()
		b.idem(runArgs("--key k1 --no-wait", "sh", "-c", "echo ready > ready; read go < gate; echo done | tee -a ledger.txt")...).
			expect(t, exitInProgress, "", "attempt 1 is running")
		b.idem("resolve", "k1", "--attempt", "1", "--code", "0", "--yes").expect(t, exitInProgress, "", "attempt 1 is running", "nothing was changed")
		b.idem("forget", "k1", "--attempt", "1", "--yes").expect(t, exitInProgress, "", "attempt 1 is running", "nothing was changed")
		b.idem("list").expectPart(t, 0, "k1\t-\tin-progress\t1\t")
		waiting := b.start(runArgs("--key k1 -v", "sh", "-c", "echo ready > ready; read go < gate; echo done | tee -a ledger.txt")...)
		gate.open()
		p.wait().expect(t, 0, "done\n")
		if d := waiting.wait(); d.code != 0 || d.stdout != "done\n" {
			t.Error(d)
		}
		b.wantEffects(1)
	})
}

// An attempt that was killed is taken over when its lease is over, or held.
func TestStoreKilledAttempt(t *testing.T) {
	onEachStore(t, func(t *testing.T, b *box) {
		ready, gate := b.gate("ready"), b.gate("gate")
		args := runArgs("--key k1 --lease 500ms", "sh", "-c",
			`echo $IDEM_ATTEMPT $IDEM_TAKEOVER >> ledger.txt; [ $IDEM_ATTEMPT = 1 ] && { echo ready > ready; read go < gate; }; echo done`)
		p := b.start(args...)
		ready.wait()
		p.signal(syscall.SIGKILL)
		p.wait()
		gate.open() // should the command have survived on this system
		b.idem(args...).expect(t, 0, "done\n")
		if got := b.read("ledger.txt"); got != "1 0\n2 1\n" {
			t.Errorf("the attempts were %q", got)
		}
	})
}

func TestStoreDecisions(t *testing.T) {
	onEachStore(t, func(t *testing.T, b *box) {
		b.write("out.txt", "done by hand\n")
		hold := func(key string) []string { return runArgs("--on-lapse hold --key "+key, "sh", "-c", "exit 3") }
		for _, key := range []string{"k1", "k2"} {
			b.idem(hold(key)...).expect(t, 3, "", "the key is held")
			b.idem(hold(key)...).expect(t, exitUnresolved, "", "nothing was run",
				"if it had: idem resolve --attempt 1 --code 0 "+key+"\n", "can run again: idem forget --attempt 1 "+key+"\n")
		}
		resolve := func(more ...string) []string {
			return append([]string{"resolve", "k1", "--code", "7", "--body-file", "out.txt"}, more...)
		}
		// Nobody is asked without a terminal.
		b.idem(resolve("--attempt", "1")...).expect(t, exitUsage, "", "--yes", "nothing was changed")
		b.idem("forget", "k1", "--attempt", "1").expect(t, exitUsage, "", "--yes", "nothing was changed")
		b.idem(resolve("--attempt", "1", "--dry-run")...).expect(t, 0, "key \"k1\": would record code 7 and 13 B of output as the outcome of attempt 1; nothing was changed\n")
		b.idem("forget", "k1", "--attempt", "1", "--dry-run").expect(t, 0, "key \"k1\": would free the key, as attempt 1 did not have its effect; nothing was changed\n")
		// The attempt has to be the present one.
		for _, dry := range []string{"--yes", "--dry-run"} {
			b.idem(resolve("--attempt", "2", dry)...).expect(t, exitMismatch, "", "the present attempt is 1 and not 2; nothing was changed", "idem show k1")
			b.idem("forget", "k1", "--attempt", "2", dry).expect(t, exitMismatch, "", "the present attempt is 1 and not 2; nothing was changed")
			b.idem("forget", "k9", "--attempt", "1", dry).expect(t, exitAbsent, "", "there is no record")
		}
		b.idem("list", "--lapsed").expectLines(t, 2)

		b.idem(resolve("--attempt", "1", "--yes")...).expect(t, 0, "key \"k1\": attempt 1 is recorded as completed with code 7 and 13 B of output\n")
		b.idem(resolve("--attempt", "1", "--yes")...).expect(t, 0, "key \"k1\": attempt 1 is completed with that result already; nothing was changed\n")
		b.idem(hold("k1")...).expect(t, 7, "done by hand\n")
		b.idem("resolve", "k1", "--attempt", "1", "--code", "0", "--yes").expect(t, exitMismatch, "", "with another result, which stands; nothing was changed")
		b.idem("forget", "k1", "--attempt", "1", "--yes").expect(t, exitMismatch, "", "its result stands; nothing was changed")
		b.idem("show", "k1", "--body").expectPart(t, 0, "body\tdone by hand\n")
		// It was held, so how long it would have been kept is not known.
		b.idem("show", "k1").expectPart(t, 0, "expires in\t6d23h\n")

		b.idem("forget", "k2", "--attempt", "1", "--yes").expect(t, 0, "key \"k2\": attempt 1 is forgotten and the key is free; the next call runs the operation\n")
		b.idem("forget", "k2", "--attempt", "1", "--yes").expect(t, exitMismatch, "", "attempt 1 was released", "the key is free; nothing was changed")
		b.idem(runArgs("--key k2", charge...)...).expect(t, 0, "charged\n")
		b.idem("show", "k2").expectPart(t, 0, "attempt\t2\n")
	})
}

// What was resolved by hand is what a program gets as well, and is kept for as long
// as the attempt would have been.
func TestStoreResolvedForAProgram(t *testing.T) {
	onEachStore(t, func(t *testing.T, b *box) {
		backend := b.open()
		store, err := idem.New(backend, &idem.Options{Scope: "billing", Retention: 72 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		fp := idem.FingerprintOf([]byte("payload"))
		fail := func(context.Context, *idem.Claim) (idem.Result, error) { return idem.Result{}, fmt.Errorf("timeout") }
		if _, err := store.Do(t.Context(), "k1", fp, fail); err == nil {
			t.Fatal("the attempt has not failed")
		}
		body := "\x00\xff receipt\r\n"
		cmd := b.cmd("resolve", "k1", "--scope", "billing", "--attempt", "1", "--code", "201", "--body-file", "-", "--yes")
		cmd.Stdin = strings.NewReader(body)
		if d := finish(t, cmd, nil); d.code != 0 {
			t.Fatal(d)
		}
		out, err := store.Do(t.Context(), "k1", fp, fail)
		if err != nil || !out.Replayed || !out.Result.Equal(idem.Result{Code: 201, Body: []byte(body)}) {
			t.Errorf("Do after resolve = %+v, %v", out, err)
		}
		b.idem("show", "k1", "--scope", "billing").expectPart(t, 0, "expires in\t3d0h\n") // and its lease
	})
}

func TestStoreList(t *testing.T) {
	onEachStore(t, func(t *testing.T, b *box) {
		b.fill(`k5,"quoted"`)
		for flags, want := range map[string]string{
			"":                              "k1 k2 k3 k4 k5",
			"--status completed":            "k1 k3 k5",
			"--status in-progress":          "k2 k4",
			"--lapsed":                      "k2 k4",
			"--lapsed --scope billing":      "k4",
			"--scope billing --scope eu/de": "k4",
			"--older-than 24h":              "",
			"--older-than 1us":              "k1 k2 k3 k4 k5",
		} {
			for _, format := range []string{"", "--json", "--csv"} {
				d := b.idem(append([]string{"list"}, strings.Fields(flags+" "+format)...)...)
				var found []string
				for _, key := range []string{"k1", "k2", "k3", "k4", "k5"} {
					if strings.Contains(d.stdout, key) {
						found = append(found, key)
					}
				}
				if got := strings.Join(found, " "); d.code != 0 || d.stderr != "" || got != want {
					t.Errorf("list %s %s: %q, want %q; %v", flags, format, got, want, d)
				}
			}
		}
		rows, err := csv.NewReader(strings.NewReader(b.idem("list", "--csv").stdout)).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) != 6 || !slices.Equal(rows[0], csvHeading) {
			t.Errorf("the rows are %q", rows)
		}
		for _, row := range rows[1:] {
			if row[0] == `k5,"quoted"` && (row[2] != "completed" || row[8] != "0") {
				t.Errorf("the row is %q", row)
			}
			if row[0] == "k4" && (row[1] != "billing/eu/de" || row[3] != "true" || row[7] != "never" || row[8] != "") {
				t.Errorf("the row is %q", row)
			}
		}
	})
}

// More than one page is listed, and more than one batch swept.
func TestStoreSweep(t *testing.T) {
	onEachStore(t, func(t *testing.T, b *box) {
		backend := b.open()
		swap := func(key string, ttl time.Duration) {
			t.Helper()
			r := idem.Record{Token: key + ".a", Status: idem.Completed, Attempt: 1, TTL: ttl}
			if _, err := backend.Swap(t.Context(), key, "", r); err != nil {
				t.Fatal(err)
			}
		}
		const n, live = sweepBatch + 5, 2*listPage + 5
		for i := range live {
			swap(fmt.Sprint("k", i), time.Hour)
		}
		for i := range n {
			swap(fmt.Sprint("old", i), 2*time.Second)
		}
		testredis.Until(t, "the records have expired", func() bool {
			r, err := backend.Get(t.Context(), fmt.Sprint("old", n-1))
			return err == nil && r.Status == 0
		})
		d := b.idem("sweep")
		var swept int
		switch _, err := fmt.Sscanf(d.stdout, "%d expired records deleted\n", &swept); {
		case backend.redis != nil:
			d.expect(t, 0, "nothing to do: Redis deletes expired records by itself\n")
		// Each write to a file sweeps a little as well, should some have expired by
		// then.
		case err != nil || d.code != 0 || d.stderr != "" || swept > n || swept < 1 || backend.postgres != nil && swept != n:
			t.Errorf("%d records were to be swept: %v", n, d)
		default:
			b.idem("sweep").expect(t, 0, "0 expired records deleted\n")
		}
		b.idem("list").expectLines(t, live)
	})
}

// expectLines checks that a call went well and printed so many lines.
func (d done) expectLines(t *testing.T, n int) {
	t.Helper()
	if got := strings.Count(d.stdout, "\n"); d.code != 0 || d.stderr != "" || got != n {
		t.Errorf("%d lines, want %d; exit code %d, stderr %q", got, n, d.code, d.stderr)
	}
}
