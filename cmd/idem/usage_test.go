//go:build unix

package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/idem-go/idem/internal/testenv"
)

func TestBadCallsWriteNothing(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	long := strings.Repeat("x", 256)
	for _, tc := range []struct {
		args []string
		want string // in the message
	}{
		{nil, "idem --help"},
		{[]string{"jog"}, "jog"},
		{[]string{"run", "--", "true"}, "--key"},
		{[]string{"run", "--key", "k"}, "there is no command"},
		{[]string{"run", "--key", "k", "true"}, "run: unexpected argument true; the command comes after --"},
		{[]string{"run", "--key", "k", "--"}, "there is no command"},
		{[]string{"run", "--key", "k", "--", ""}, "there is no command"},
		{runArgs("--kye k", "true"), "--kye"},
		{[]string{"run", "--key", "", "--", "true"}, "the key is empty"},
		{[]string{"run", "--key", long, "--", "true"}, "256 bytes"},
		{[]string{"run", "--key", "a\nb", "--", "true"}, "control character"},
		{[]string{"run", "--key", "\xff", "--", "true"}, "UTF-8"},
		{[]string{"run", "--key", "k", "--scope", "", "--", "true"}, "the scope is empty"},
		{[]string{"run", "--key", "k", "--scope", "a\x1fb", "--", "true"}, "control character"},
		{runArgs("--key k --scope "+long[:200]+" --scope "+long[:55], "true"), "limit is 255"},
		{runArgs("--key k --retention 1h", "true"), "retention 1h0m0s is below 24h0m0s"},
		{runArgs("--key k --retention 200h", "true"), "above 168h"},
		{runArgs("--key k --retention week", "true"), "week"},
		{runArgs("--key k --lease -1s", "true"), "lease"},
		{runArgs("--key k --lease 200h", "true"), "lease"},
		{runArgs("--key k --lease 0s", "true"), "--lease: 0s is too short"},
		{runArgs("--key k --lease 99ms", "true"), "--lease: 99ms is too short"},
		{runArgs("--key k --retention 0s", "true"), "--retention: 0s is below 24h"},
		{runArgs("--key k --on-lapse perhaps", "true"), "perhaps"},
		{runArgs("--key k --ok-codes 0,256", "true"), "256 is no exit code"},
		{runArgs("--key k --ok-codes=-1", "true"), "-1 is no exit code"},
		{runArgs("--key k --ok-codes zero", "true"), "zero"},
		{runArgs("--key k --store mysql://user:secret@host/db", "true"), "store mysql://...: the URL of a store begins with bolt:, postgres:// or redis://"},
		{runArgs("--key k --store postgres:", "true"), "store postgres://...: nothing comes after the slashes"},
		{runArgs("--key k --store redis://", "true"), "store redis://...: nothing comes after the slashes"},
		{runArgs("--key k --store postgres://user:12/secret@host/db", "true"), "store postgres://...: this is no valid URL; in a password"},
		{runArgs("--key k --store postgres://user:12?secret@host/db", "true"), "this is no valid URL; in a password"},
		{runArgs("--key k --store redis://user:12#secret@host", "true"), "this is no valid URL; in a password"},
		{runArgs("--key k --store redis://user:secret%zz@host", "true"), "this is no valid URL; in a password"},
		{runArgs("--key k --store postgres://user:secret@host:secret/db", "true"), "this is no valid URL; in a password"},
		{runArgs("--key k --store postgres://user:secret@host/db?sslmode=secrets", "true"), "store postgres://user:xxxxx@host/db"},
		{runArgs("--key k --store postgres://user:secret@host/db?idem_tabel=a", "true"), "there is no parameter idem_tabel; there are idem_schema and idem_table"},
		{runArgs("--key k --store postgres://user:secret@host/db?idem_table=a&idem_table=b", "true"), "twice"},
		{runArgs("--key k --store postgres://user:secret@host/db?idem_table=a-b", "true"), `"a-b" is not a name of letters, digits and underscores`},
		{runArgs("--key k --store postgres://user:secret@host/db?pool_max_conns=many", "true"), "pool_max_conns"},
		{runArgs("--key k --store postgres://host/db?password=secret&sslmode=no", "true"), "?password=xxxxx&sslmode=no: "},
		{runArgs("--key k --store redis://user:secret@host/zero", "true"), "invalid database number"},
		{runArgs("--key k --store redis://secret@host/zero", "true"), "store redis://xxxxx@host/zero: "},
		{runArgs("--key k --store unix://secret@/redis.sock?db=zero", "true"), "store unix://xxxxx@/redis.sock?db=zero: "},
		{runArgs("--key k --store redis://user:secret@host?colour=red", "true"), "unexpected option: colour"},
		{runArgs("--key k --store redis://user:secret@host?idem_table=a", "true"), "there are idem_prefix and idem_allow_eviction"},
		{runArgs("--key k --store redis://user:secret@host?idem_allow_eviction=perhaps", "true"), "true or false"},
		{runArgs("--key k --store redis://user:secret@host?idem_prefix={a", "true"), "hash tag"},
		{runArgs("--key k --store bolt://state/x.db", "true"), "bolt:state/x.db"},
		{runArgs("--key k --store bolt:", "true"), "there is no path"},
		{runArgs("--key k --store user:secret@host/db", "true"), "may be a connection string"},
		{[]string{"list", "--store", "host=db password=secret"}, "may be a connection string"},
		{[]string{"export", "--to", "mysql:user:secret@host/db"}, "--to: store ...: this may be a connection string"},
		{[]string{"resolve", "k", "--attempt", "1", "--code", "0", "--yes", "--store", "mysql://user:secret@host"}, "begins with bolt:"},
		{[]string{"resolve", "k", "--attempt", "1", "--code", "0"}, "--yes"},
		{[]string{"resolve", "k", "--attempt", "1", "--yes"}, "--code"},
		{[]string{"resolve", "k", "--code", "0", "--yes"}, "--attempt"},
		{[]string{"resolve", "k", "--code", "0", "--attempt", "0", "--yes"}, "numbered from 1"},
		{[]string{"resolve", "--code", "0", "--attempt", "1", "--yes"}, "<key>"},
		{[]string{"resolve", "", "--code", "0", "--attempt", "1", "--yes"}, "the key is empty"},
		{[]string{"resolve", "k", "--code", "0", "--attempt", "1", "--yes", "--body-file", "missing"}, "no such file"},
		{[]string{"resolve", "k", "--code", "0", "--attempt", "1", "--body-file", "-"}, "give --yes"},
		{[]string{"forget", "k", "--attempt", "1"}, "--yes"},
		{[]string{"forget", "k", "--yes"}, "--attempt"},
		{[]string{"forget", "k", "--attempt", "one", "--yes"}, "one"},
		{[]string{"sweep", "k"}, "k"},
		{[]string{"sweep", "--scope", "a"}, "--scope"},
		{[]string{"migrate", "--sql"}, "is not one of PostgreSQL"},
		{[]string{"migrate", "--init"}, "is not one of Redis"},
		{[]string{"completion"}, "<shell>"},
		{[]string{"completion", "tcsh"}, "tcsh"},
		{[]string{"list", "--csv", "--json"}, "--csv"},
		{[]string{"show"}, "<key>"},
		{[]string{"show", ""}, "the key is empty"},
		{[]string{"show", "k", "--scope", ""}, "the scope is empty"},
		{[]string{"show", "a", "b"}, "b"},
		{[]string{"list", "k"}, "k"},
		{[]string{"list", "--status", "done"}, "done"},
		{[]string{"list", "--limit=-1"}, "negative"},
		{[]string{"list", "--older-than=-1s"}, "negative"},
		{[]string{"list", "--scope", "\n"}, "control character"},
	} {
		d := b.idem(tc.args...)
		d.expect(t, exitUsage, "", tc.want, "--help")
		if strings.Contains(strings.ReplaceAll(d.stderr, "sslmode=secrets", ""), "secret") {
			t.Errorf("the message has the password: %s", d.stderr)
		}
		b.wantNothingWritten()
	}
}

// What is given as a key or a scope arrives as it is.
func TestKeysArriveAsTheyAre(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for _, s := range []string{`a,b\,c`, `"quoted" \"`, "${env}$HOME", "{json:1}", "Grüße 世界", "e\u0301", "-dash", "--", "a=b", " ", "\u202e"} {
		b.idem("run", "--key="+s, "--scope="+s, "--", "sh", "-c", `printf '%s|%s' "$IDEM_KEY" "$IDEM_SCOPE"`).expect(t, 0, s+"|"+s)
		b.idem("show", "--scope="+s, "--json", "--", s).expectPart(t, 0, `"attempt":1`)
	}
}

func TestStoreFromTheEnvironment(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for url, file := range map[string]string{
		"plain.db":                     "plain.db",
		"bolt:relative.db":             "relative.db",
		"bolt://" + b.path("abs.db"):   "abs.db",
		b.path("with a space, %41.db"): "with a space, %41.db",
	} {
		b.env = append(b.env, "IDEM_STORE="+url)
		b.idem(runArgs("--key k", "echo", file)...).expect(t, 0, file+"\n")
		b.idem("show", "k", "--body").expectPart(t, 0, "stdout\t"+file+"\n")
		if _, err := os.Stat(b.path(file)); err != nil {
			t.Error(err)
		}
	}
	// The flag goes before the environment.
	b.idem(runArgs("--key k --store flag.db", "echo", "flag")...).expect(t, 0, "flag\n")
	b.env = append(b.env, "IDEM_STORE=mysql://user:secret@host/db")
	if d := b.idem("list"); d.code != exitUsage || strings.Contains(d.stderr, "secret") {
		t.Error(d)
	}
	if _, err := os.Stat(b.path("state")); err == nil {
		t.Error("the default store was made although it was not asked for")
	}
}

func TestDefaultStore(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.dir, "XDG_STATE_HOME=relative"} // to be ignored
	b.idem(runArgs("--key k", "true")...).expect(t, 0, "")
	if _, err := os.Stat(b.path(".local/state/idem/idem.db")); err != nil {
		t.Error(err)
	}
	b.env = []string{"PATH=" + os.Getenv("PATH")}
	b.idem(runArgs("--key k", "true")...).expect(t, exitUsage, "", "says where to keep the records", "--store")
}

func TestHelp(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for verb, flags := range map[string]string{
		"":           "",
		"run":        "key scope store lease retention on-lapse ok-codes no-wait stdin verbose",
		"show":       "scope store json body",
		"list":       "scope store status lapsed older-than limit json csv",
		"resolve":    "scope store attempt code body-file yes dry-run",
		"forget":     "scope store attempt yes dry-run",
		"sweep":      "store",
		"stats":      "scope store json",
		"doctor":     "store json",
		"erase":      "scope store yes dry-run",
		"export":     "to store dry-run",
		"migrate":    "store sql init yes dry-run",
		"completion": "",
	} {
		for _, help := range []string{"--help", "-h"} {
			d := b.idem(strings.Fields(verb + " " + help)...)
			if d.code != 0 || d.stderr != "" || !strings.HasPrefix(d.stdout, "Usage: idem") {
				t.Errorf("%s: %v", verb, d)
			}
			for line := range strings.Lines(d.stdout) {
				if len(line) > 81 {
					t.Errorf("%s: this line is longer than 80 columns: %q", verb, line)
				}
			}
			// A flag is followed by its explanation; all that take a value, and
			// most others, have an example.
			for _, f := range strings.Fields(flags) {
				if !regexp.MustCompile(`(?m)^ +(-[vy], )?--` + f + `[ =]\S* *\w+`).MatchString(d.stdout) {
					t.Errorf("%s: --%s is not explained", verb, f)
				}
				example := regexp.MustCompile(`--` + f + `\s+[-\w./]+`)
				if !slices.Contains([]string{"verbose", "no-wait", "yes", "dry-run", "init"}, f) && !example.MatchString(strings.ReplaceAll(d.stdout, "\n", " ")) {
					t.Errorf("%s: --%s has no example", verb, f)
				}
			}
		}
	}
	b.wantNothingWritten()
	// Help of the command is the command's.
	b.idem(runArgs("--key k", "sh", "-c", "echo $0 $1", "--help", "--")...).expect(t, 0, "--help --\n")
}

// The exit codes are told in three places: the constants, --help and the
// documentation of the command.
func TestExitCodesAreDocumented(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("exit.go")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile(`(?m)^\texit\w+ += (\d+)`).FindAllStringSubmatch(string(source), -1)
	if len(codes) < 12 {
		t.Fatalf("found the constants %v only", codes)
	}
	for _, c := range codes {
		if !regexp.MustCompile(`(?m)^ +` + c[1] + `(\+n)?  `).MatchString(exitTable) {
			t.Errorf("exit code %s is not in --help", c[1])
		}
		if !regexp.MustCompile(`(?m)^//\t *` + c[1] + `(\+n)? `).MatchString(string(doc)) {
			t.Errorf("exit code %s is not in the documentation", c[1])
		}
	}
}

// Help is output as any other.
func TestHelpThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for _, verb := range []string{"", "run", "resolve"} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			testenv.Skip(t, "devfull", "no /dev/full: %v", err)
		}
		cmd := b.cmd(strings.Fields(verb + " --help")...)
		cmd.Stdout = full
		var errs strings.Builder
		cmd.Stderr = &errs
		if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != exitOutput || !strings.HasPrefix(errs.String(), "idem: write to stdout: ") {
			t.Errorf("%s --help: %v, %q", verb, err, errs.String())
		}
		full.Close()
	}
}
