//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/idem-go/idem"
)

// fill puts records of all kinds into the store: k1 completed, k2 abandoned, k3
// in a scope with output on both streams, k4 held with a scope in a scope, and
// a long key.
func (b *box) fill(long string) {
	b.t.Helper()
	b.idem(runArgs("--key k1", charge...)...).expect(b.t, 0, "charged\n")
	b.idem(runArgs("--key k2", "sh", "-c", "exit 3")...).expect(b.t, 3, "", "unknown")
	b.idem(runArgs("--key k3 --scope billing --ok-codes 4", "sh", "-c", "echo out; echo err >&2; printf 'a\\033[1mb'; exit 4")...).
		expectStreams(b.t, 4, "out\na\x1b[1mb", "err\n")
	b.idem(runArgs("--key k4 --scope billing --scope eu/de --on-lapse hold", "sh", "-c", "exit 3")...).expect(b.t, 3, "", "unknown")
	b.idem(runArgs("--key "+long, "true")...).expect(b.t, 0, "")
}

func TestListPiped(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	long := strings.Repeat("long", 60)
	b.fill(long)
	rows := make(map[string][]string)
	for line := range strings.Lines(b.idem("list").stdout) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(cells) != int(columnCount) {
			t.Errorf("%d columns, want %d: %q", len(cells), columnCount, line)
			continue
		}
		rows[cells[keyColumn]] = cells
	}
	for key, want := range map[string]string{
		"k1": "k1 - completed 1 - 23h59m 0",
		"k2": "k2 - in-progress 1 abandoned 1d0h -",
		"k3": "k3 billing completed 1 - 23h59m 4",
		"k4": "k4 billing/eu/de in-progress 1 abandoned never -",
		long: long + " - completed 1 - 23h59m 0",
	} {
		got := rows[key]
		if got != nil {
			got = append(got[:ageColumn:ageColumn], got[leaseColumn:]...) // the age differs
		}
		if strings.Join(got, " ") != want {
			t.Errorf("the row is %q\nwant       %q", strings.Join(got, " "), want)
		}
	}
	if len(rows) != 5 {
		t.Errorf("%d rows, want 5", len(rows))
	}
}

func TestListFilters(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.fill("k5")
	for flags, want := range map[string]string{
		"":                                   "k1 k2 k3 k4 k5",
		"--status completed":                 "k1 k3 k5",
		"--status in-progress":               "k2 k4",
		"--status released":                  "",
		"--lapsed":                           "k2 k4",
		"--lapsed --scope billing":           "k4",
		"--scope billing":                    "k3 k4",
		"--scope billing --scope eu/de":      "k4",
		"--scope billing/eu/de":              "",
		"--older-than 24h":                   "",
		"--older-than 1ms --status released": "",
		"--limit 2":                          "2",
		"--limit 100":                        "k1 k2 k3 k4 k5",
	} {
		d := b.idem(append([]string{"list", "--json"}, strings.Fields(flags)...)...)
		var keys []string
		for line := range strings.Lines(d.stdout) {
			var v view
			if err := json.Unmarshal([]byte(line), &struct {
				*view
				Result any `json:"result"`
			}{view: &v}); err != nil {
				t.Fatalf("%s: %q: %v", flags, line, err)
			}
			keys = append(keys, v.Key)
		}
		got := strings.Join(sorted(keys), " ")
		if want == "2" {
			got = fmt.Sprint(len(keys))
		}
		if d.code != 0 || d.stderr != "" || got != want {
			t.Errorf("list %s: %q, want %q; %v", flags, got, want, d)
		}
	}
}

func TestListManyPages(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	const n = 2*listPage + 5
	b.fillMany(n)
	seen := make(map[string]int)
	for line := range strings.Lines(b.idem("list", "--older-than", "1ns").stdout) {
		key, _, _ := strings.Cut(line, "\t")
		seen[key]++
	}
	if len(seen) != n {
		t.Errorf("%d keys are listed, want %d", len(seen), n)
	}
}

func TestShowPiped(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.fill("k5")
	d := b.idem("show", "k3", "--scope", "billing", "--body")
	var lines []string
	for line := range strings.Lines(d.stdout) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if name != "age" && name != "fence" && name != "fingerprint" {
			lines = append(lines, name+"="+value)
		}
	}
	got := strings.Join(lines, "\n")
	const head = "key=k3\nscope=billing\nstatus=completed\nattempt=1\nexpires in=23h59m\ncode=4\nstdout size=10 B\nstderr size=4 B\n"
	if d.code != 0 || !strings.HasPrefix(got, head) {
		t.Errorf("exit code %d, %s", d.code, got)
	}
	for _, want := range []string{"stdout=out\n", "stderr=err", `stdout=a\x1b[1mb`} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if d := b.idem("show", "k3", "--scope", "billing"); strings.Contains(d.stdout, "\tout") {
		t.Errorf("output is shown without --body: %s", d.stdout)
	}
	b.idem("show", "k2").expectPart(t, 0, "status\tin-progress\n")
	b.idem("show", "k2").expectPart(t, 0, "lease\tabandoned\n")
	b.idem("show", "k4", "--scope", "billing", "--scope", "eu/de").expectPart(t, 0, "expires in\tnever\n")
}

func TestShowJSON(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.fill("k5")
	var v struct {
		Key, Status string
		Scope       []string
		Attempt     int
		ExpiresIn   *float64 `json:"expires_in_seconds"`
		Result      struct {
			Code   int
			Bytes  int `json:"body_bytes"`
			Output []struct{ From, Data string }
		}
	}
	d := b.idem("show", "k3", "--scope", "billing", "--json", "--body")
	if err := json.Unmarshal([]byte(d.stdout), &v); err != nil || d.code != 0 {
		t.Fatalf("%v: %v", d, err)
	}
	var printed [2]string
	for _, o := range v.Result.Output {
		if o.From == "stdout" {
			printed[0] += o.Data
		} else {
			printed[1] += o.Data
		}
	}
	if v.Key != "k3" || strings.Join(v.Scope, " ") != "billing" || v.Status != "completed" || v.Attempt != 1 ||
		v.Result.Code != 4 || v.Result.Bytes == 0 || printed != [2]string{"out\na\x1b[1mb", "err\n"} || v.ExpiresIn == nil {
		t.Errorf("%+v", v)
	}
	d = b.idem("show", "k3", "--scope", "billing", "--json")
	if strings.Contains(d.stdout, "out\\n") || strings.Contains(d.stdout, `"output"`) {
		t.Errorf("output is shown without --body: %s", d.stdout)
	}
	b.idem("show", "k4", "--scope", "billing", "--scope", "eu/de", "--json").expectPart(t, 0, `"expires_in_seconds":null`)
}

func TestShowOfAnAbsentKey(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.fill("k5")
	b.idem("show", "nobody's").expect(t, exitAbsent, "", `key "nobody's": there is no record in `+b.store(), "see: idem list\n")
	b.idem("show", "k3").expect(t, exitAbsent, "", "there is no record")
	b.idem("show", "--scope", "a b", "k1").expect(t, exitAbsent, "", `key "k1" in scope "a b"`, "idem list --scope 'a b'")
}

func TestReadingMakesNoStore(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for _, args := range [][]string{{"list"}, {"list", "--json"}, {"show", "k1"}} {
		b.idem(args...).expect(t, exitAbsent, "", "store "+b.store()+": there is no such file")
	}
	b.wantNothingWritten()
}

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}

// fillMany completes n keys at once, by way of the library.
func (b *box) fillMany(n int) {
	b.t.Helper()
	b.idem(runArgs("--key k0", "true")...).expect(b.t, 0, "")
	backend, err := (&location{path: b.store()}).open(b.t.Context(), toRun)
	if err != nil {
		b.t.Fatal(err)
	}
	defer backend.Close()
	store, err := idem.New(backend, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	for i := 1; i < n; i++ {
		_, err := store.Do(b.t.Context(), fmt.Sprintf("k%d", i), idem.Fingerprint{}, func(context.Context, *idem.Claim) (idem.Result, error) {
			return idem.Result{Code: 200, Body: []byte("{}")}, nil
		})
		if err != nil {
			b.t.Fatal(err)
		}
	}
}
