package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testpg"
	"github.com/idem-go/idem/internal/testredis"
)

// doctor examines a store and returns what it says, a line for each finding:
// "level check: fact -> remedy".
func (b *box) doctor(url string) string {
	b.t.Helper()
	d := b.idem("doctor", "--store", url, "--json")
	var report struct {
		Level  string
		Checks []struct{ Check, Level, Fact, Remedy string }
	}
	if err := json.Unmarshal([]byte(d.stdout), &report); err != nil || d.stderr != "" {
		b.t.Fatalf("%v: %v", err, d)
	}
	var lines []string
	worst := "ok"
	for _, f := range report.Checks {
		line := f.Level + " " + f.Check + ": " + f.Fact
		if f.Remedy != "" {
			line += " -> " + f.Remedy
		}
		lines = append(lines, line)
		if f.Level == "FAIL" || f.Level == "warn" && worst == "ok" {
			worst = f.Level
		}
		if (f.Level == "FAIL" || f.Level == "warn") && f.Remedy == "" {
			b.t.Errorf("there is no remedy for %q", line)
		}
	}
	all := strings.Join(lines, "\n") + "\n"
	if want := map[string]int{"ok": 0, "warn": 0, "FAIL": exitFindings}[worst]; d.code != want || report.Level != worst {
		b.t.Errorf("exit code %d and level %s, want %d and %s, of\n%s", d.code, report.Level, want, worst, all)
	}
	if strings.Contains(all, "secret") {
		b.t.Errorf("the report has the password:\n%s", all)
	}
	return all
}

// finds checks that the report on a store has the lines, each of them in part, and
// no other that is warn or FAIL.
func (b *box) finds(url string, want ...string) {
	b.t.Helper()
	report := b.doctor(url)
	for line := range strings.Lines(report) {
		expected := false
		for _, w := range want {
			head, part, _ := strings.Cut(w, ": ")
			expected = expected || strings.HasPrefix(line, head+": ") && strings.Contains(line, part)
		}
		if !expected && (strings.HasPrefix(line, "warn") || strings.HasPrefix(line, "FAIL")) {
			b.t.Errorf("this was not expected: %s", line)
		}
	}
	for _, w := range want {
		head, part, _ := strings.Cut(w, ": ")
		found := false
		for line := range strings.Lines(report) {
			found = found || strings.HasPrefix(line, head+": ") && strings.Contains(line, part)
		}
		if !found {
			b.t.Errorf("%q is missing in\n%s", w, report)
		}
	}
}

func TestDoctorOnAFile(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	disk := t.TempDir() // memory would be found
	path := filepath.Join(disk, "s.db")
	b.finds(path, "FAIL file: there is no such file")
	b.idem(runArgs("--key k1 --store "+path, charge...)...).expect(t, 0, "charged\n")
	b.finds(path, "ok integrity: sound", "ok records: 1 record can be read: 1 completed", "ok lock: no process holds", "ok clock: ", "ok space: ", "ok free pages: ",
		"ok permissions: -rw-------", "ok durability: ", "ok unresolved: ", "ok retention: ")
	if d := b.idem("doctor", "--store", path); !strings.HasPrefix(d.stdout, "ok\tpermissions\tthe mode is -rw-------\t\n") {
		t.Error(d)
	}
	b.idem("doctor", "--store", "mysql://u:secret@host/db").expect(t, exitUsage, "", "begins with bolt:")

	for mode, want := range map[os.FileMode]string{0o644: "warn permissions: every user may read", 0o666: "FAIL permissions: every user may change the records"} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		b.finds(path, want)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(disk, 0o777); err != nil {
		t.Fatal(err)
	}
	b.finds(path, "FAIL permissions: every user may replace the file -> chmod o-w "+disk)
	if err := os.Chmod(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	b.idem(runArgs("--key k2 --on-lapse hold --store "+path, "sh", "-c", "exit 3")...).expect(t, 3, "", "held")
	b.finds(path, "ok unresolved: 1 attempt has ended without a known outcome within the last day; see: idem list --lapsed")

	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for what, content := range map[string][]byte{"cut": whole[:9000], "empty": nil, "foreign": []byte("Dear aunt,\n"), "changed": bytes.ReplaceAll(whole, []byte("charged"), []byte("charmed"))} {
		damaged := filepath.Join(disk, what)
		if err := os.WriteFile(damaged, content, 0o600); err != nil {
			t.Fatal(err)
		}
		b.finds(damaged, "FAIL integrity: -> the file was left as it is")
	}
}

func TestDoctorOnAFileInMemory(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	if !strings.HasPrefix(b.dir, "/dev/shm/") {
		t.Skip("this system has no files in memory")
	}
	b.idem(runArgs("--key k1 --store s.db", charge...)...).expect(t, 0, "charged\n")
	b.finds("s.db", "warn durability: tmpfs, in memory")
	// Results that are kept for too long are none of this library's.
	s := b.opened(b.path("s.db"))
	odd := idem.Record{Token: "t.a", Status: idem.Completed, Attempt: 1, TTL: 30 * 24 * time.Hour}
	if _, err := s.Swap(t.Context(), "odd", "", odd); err != nil {
		t.Fatal(err)
	}
	b.finds("s.db", "warn durability: ", "warn retention: 1 record is beyond what this library allows: 1 kept for longer than 7d0h")
}

func TestDoctorOnALockedFile(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	path := filepath.Join(t.TempDir(), "s.db")
	b.idem(runArgs("--key k1 --store "+path, charge...)...).expect(t, 0, "charged\n")
	if err := os.Symlink(path, b.path("s.db")); err != nil {
		t.Fatal(err)
	}
	f := b.flock("s.db")
	defer f.Close()
	b.finds(path, "FAIL lock: locked by another process", fmt.Sprintf("ok lock: process %d (", os.Getpid()), "skip integrity: not looked at")
}

func TestDoctorOnPostgres(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	server := testpg.New(t)
	url := server.URL()
	b.finds(url, "FAIL table: there is no such table", "ok server: PostgreSQL", "ok primary: ", "ok durability: ", "ok clock: ")
	b.idem("migrate", "--store", url).expectPart(t, 0, "created")
	b.use(url)
	for _, key := range []string{"k1", "k2"} {
		b.idem(runArgs("--on-lapse hold --key "+key, "sh", "-c", "exit 3")...).expect(t, 3, "", "held")
	}
	b.idem(runArgs("--key k3", charge...)...).expect(t, 0, "charged\n")
	b.finds(url, "ok table: version 1", "ok rights: ", "ok indexes: ", "ok vacuum: ", "ok sweep: ", "ok transactions: ", "ok records: 3 records", "ok unresolved: 2 attempts")

	// Days later.
	testpg.Exec(t, url, `UPDATE idem_records SET written_at = written_at - interval '50 hours', sweep_at = sweep_at - interval '50 hours' WHERE key <> 'k2'`)
	b.finds(url, "warn sweep: 1 expired record has not been deleted, the first for 1d2h -> run the janitor in a program, or from cron: idem sweep",
		"warn unresolved: 1 attempt is without a known outcome for more than a day, the oldest for 2d2h; 2 in all, 2 of them held")
	b.idem("sweep").expect(t, 0, "1 expired records deleted\n")
	b.idem("forget", "k1", "--attempt", "1", "--yes").expectPart(t, 0, "forgotten")

	// A role that may not do everything.
	testpg.Exec(t, url, `CREATE ROLE reader LOGIN`, `GRANT SELECT ON idem_records TO reader`, `CREATE ROLE stranger LOGIN`)
	as := func(role string) string { return strings.Replace(url, "postgres@", role+"@", 1) }
	b.finds(as("reader"), "FAIL rights: lacks INSERT, UPDATE, DELETE", "skip hidden: transactions of other roles", "ok records: ")
	b.finds(as("stranger"), "FAIL rights: lacks SELECT, INSERT, UPDATE, DELETE", "skip records: ", "skip hidden: expired rows")

	standby := server.Standby(t)
	b.finds(standby.URL(), "FAIL primary: the server is a standby", "skip records: ")
	server.Kill()
	b.finds(strings.Replace(url, "postgres@", "postgres:secret@", 1), "FAIL server: connection refused")

	careless := testpg.New(t, "fsync=off", "autovacuum=off", "max_prepared_transactions=5")
	b.idem("migrate", "--store", careless.URL()).expectPart(t, 0, "created")
	// A transaction that somebody forgot.
	conn, err := pgx.Connect(t.Context(), careless.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{`BEGIN`, `UPDATE idem_records SET code = code`, `PREPARE TRANSACTION 'forgotten'`} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	b.finds(careless.URL(), "FAIL durability: fsync is off", "warn vacuum: autovacuum is off", "warn transactions: 1 transaction of a two-phase commit")
	testpg.Exec(t, careless.URL(), `ROLLBACK PREPARED 'forgotten'`)

	testpg.Exec(t, careless.URL(), `UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idem_records_sweep_at_idx'::regclass`)
	b.finds(careless.URL(), "FAIL durability: fsync is off", "warn vacuum: autovacuum is off", "FAIL indexes: idem_records_sweep_at_idx")
	testpg.Exec(t, careless.URL(), `DROP TABLE idem_records`, `CREATE TABLE idem_records (key text)`)
	b.finds(careless.URL(), "FAIL table: ", "FAIL durability: ", "warn vacuum: ", "skip records: ")
}

func TestDoctorOnRedis(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	server := testredis.Start(t, "--appendonly", "yes", "--maxmemory", "64mb")
	client := server.Client(t, nil)
	url := "redis://" + server.Addr
	b.finds(url, "FAIL epoch: nothing has been run with it yet, or it is gone", "skip records: ")
	if n, err := client.DBSize(t.Context()).Result(); n != 0 || err != nil {
		t.Errorf("looking has left %d keys, %v", n, err)
	}
	b.idem(runArgs("--key k1 --store "+url, charge...)...).expect(t, 0, "charged\n")
	b.finds(url, "ok server: is Redis", "ok clock: ", "ok primary: master, without replicas", "ok eviction: noeviction", "ok memory: of 64 MiB", "ok durability: synced every second", "ok epoch: begun", "ok records: 1 record ")

	set := func(name, value string) {
		t.Helper()
		if err := client.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set("maxmemory-policy", "allkeys-lru")
	b.finds(url, "FAIL eviction: the policy is allkeys-lru")
	b.finds(url+"?idem_allow_eviction=true", "warn eviction: which the URL allows")
	set("maxmemory-policy", "noeviction")
	set("appendfsync", "no")
	b.finds(url, "warn durability: appendfsync is no")
	set("appendonly", "no")
	b.finds(url, "warn durability: nothing is saved to disk")
	set("save", "3600 1")
	b.finds(url, "warn durability: snapshots only")
	set("maxmemory", "1mb")
	b.finds(url, "FAIL memory: of 1 MiB are in use", "warn durability: ")
	set("maxmemory", "0")

	// What the user may not ask is said.
	rules := []any{"acl", "setuser", "few", "reset", "on", ">secret", "~*", "&*", "+@all", "-info", "-config", "-dbsize"}
	if err := client.Do(t.Context(), rules...).Err(); err != nil {
		t.Fatal(err)
	}
	b.finds("redis://few:secret@"+server.Addr, "skip hidden: may not ask INFO", "skip hidden: may not ask CONFIG GET", "ok records: ")
	b.finds("redis://few:wrong-secret@"+server.Addr, "FAIL server: the user or the password is wrong")

	replica := testredis.Replica(t, server.Addr, "--appendonly", "yes")
	b.finds("redis://"+replica.Addr, "FAIL primary: it is a replica", "ok epoch: ")
	b.finds(url, "ok primary: a master with 1 replica", "warn durability: ")

	if err := client.Set(t.Context(), "idem:epoch", "lost:x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	b.finds(url, "FAIL epoch: has lost its records", "warn durability: ", "skip records: ")
	server.Kill()
	b.finds("redis://u:secret@"+server.Addr, "FAIL server: connection refused")
}

func TestDoctorOnARedisCluster(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	cluster := testredis.StartCluster(t, 3, "--appendonly", "yes")
	url := "redis://" + cluster.Nodes[0].Addr + "?addr=" + cluster.Nodes[1].Addr
	b.idem(runArgs("--key k1 --store "+url, charge...)...).expect(t, 0, "charged\n")
	want := []string{"skip epoch: put a hash tag in idem_prefix", "ok records: 1 record "}
	for _, n := range cluster.Nodes {
		want = append(want, "ok server: "+n.Addr, "ok durability: "+n.Addr)
	}
	b.finds(url, want...)
	if err := cluster.Nodes[2].Client(t, nil).ConfigSet(t.Context(), "maxmemory-policy", "volatile-ttl").Err(); err != nil {
		t.Fatal(err)
	}
	b.finds(url, "FAIL eviction: "+cluster.Nodes[2].Addr+": the policy is volatile-ttl")
}
