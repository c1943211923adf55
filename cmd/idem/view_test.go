package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

func TestBrief(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 999: "0s", 5 * time.Millisecond: "5ms", 999 * time.Millisecond: "999ms", time.Second: "1s", 59*time.Second + 999*time.Millisecond: "59s",
		61 * time.Second: "1m1s", 59*time.Minute + 59*time.Second: "59m59s", time.Hour: "1h0m", 24 * time.Hour: "1d0h", 167 * time.Hour: "6d23h", 2400 * time.Hour: "100d",
	} {
		if got := brief(d); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 10 << 10: "10 KiB", 1023<<10 + 400: "1023 KiB", 1<<20 - 1: "1 MiB", 1 << 20: "1 MiB", 64 << 20: "64 MiB", 3 << 40: "3 TiB",
	} {
		if got := size(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}

func TestPrintable(t *testing.T) {
	for s, want := range map[string]string{
		"order 4711": "order 4711", `a\b"c`: `a\b"c`, "Grüße, 世界": "Grüße, 世界",
		"a\x1b[2Jb": `a\x1b[2Jb`, "a\u202eb": `a\u202eb`, "\xff": `\xff`, "tab\t": `tab\t`, "say \"hi\"\a": `say "hi"\a`,
	} {
		if got := printable(s); got != want {
			t.Errorf("%q is shown as %s, want %s", s, got, want)
		}
	}
}

// A shell gives back what was quoted.
func TestQuote(t *testing.T) {
	for _, s := range []string{"order-4711", "", "a b", "it's", `"$HOME"`, "`id`", "\\", "*", "Grüße", "a\nb", "-x", "~", "#no", "a;b"} {
		out, err := exec.Command("sh", "-c", "printf %s "+quote(s)).Output()
		if err != nil || string(out) != s {
			t.Errorf("%q is quoted as %s, which a shell reads as %q (%v)", s, quote(s), out, err)
		}
	}
}

func TestCommandLine(t *testing.T) {
	for want, tc := range map[string]target{
		"idem show k": {key: "k"},
		"idem show --scope 'a b' --scope c --store s.db k": {key: "k", where: where{Scope: []string{"a b", "c"}, place: place{"s.db"}}},
		"idem show -- -k": {key: "-k"},
		"idem show --store 'redis://u:xxxxx@h?idem_prefix=a' k": {key: "k", where: where{place: place{"redis://u:secret@h?idem_prefix=a"}}},
	} {
		var err error
		if tc, err = tc.at(tc.key, func(string) string { return "/any" }); err != nil {
			t.Fatal(err)
		}
		if got := tc.commandLine("show"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// What JSON cannot hold comes as Base64, so that no byte is lost.
func TestViewOfBytes(t *testing.T) {
	e := idem.Entry{Key: "s\x1fk", Record: idem.Record{
		Status: idem.Completed, Attempt: 2, TTL: time.Hour, Age: time.Minute, Checkpoint: []byte("note"),
		Result: idem.Result{Code: 201, Meta: map[string]string{"name": "caf\xe9", "type": "text"}, Body: []byte{0, 0xff}},
	}}
	var b bytes.Buffer
	if err := printJSON(&b, viewOf(e, true)); err != nil {
		t.Fatal(err)
	}
	var v struct {
		Scope      []string
		Checkpoint string
		ExpiresIn  float64 `json:"expires_in_seconds"`
		Result     struct {
			Meta map[string]any
			Body struct{ Base64 []byte }
		}
	}
	if err := json.Unmarshal(b.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	name, _ := v.Result.Meta["name"].(map[string]any)
	if v.Scope[0] != "s" || v.Checkpoint != "note" || v.ExpiresIn != 3540 || !bytes.Equal(v.Result.Body.Base64, []byte{0, 0xff}) ||
		name["base64"] != "Y2Fm6Q==" || v.Result.Meta["type"] != "text" || strings.Count(b.String(), "\n") != 1 {
		t.Errorf("%s", b.String())
	}
	b.Reset()
	if err := printJSON(&b, viewOf(e, false)); err != nil || strings.Contains(b.String(), "note") || strings.Contains(b.String(), `"body"`) {
		t.Errorf("without bodies: %s, %v", b.String(), err)
	}
}

func TestTableInNarrowTerminals(t *testing.T) {
	record := idem.Record{Status: idem.InProgress, Attempt: 12, Lease: 30 * time.Second, TTL: 168 * time.Hour, Age: 12 * time.Hour}
	for _, columns := range []int{70, 80, 120, 200} {
		var b bytes.Buffer
		table := table{session: &session{stdout: &b}, columns: columns}
		table.add(idem.Entry{Key: strings.Repeat("scope", 30) + "\x1f" + strings.Repeat("ключ", 30), Record: record})
		table.add(idem.Entry{Key: "k", Record: record})
		table.add(idem.Entry{Key: strings.Repeat("same", 30) + "1", Record: record})
		table.add(idem.Entry{Key: strings.Repeat("same", 30) + "2", Record: record})
		if err := table.end(); err != nil {
			t.Fatal(err)
		}
		if l := strings.Split(b.String(), "\n"); l[3] == l[4] {
			t.Errorf("two keys look the same in a terminal of %d columns: %q", columns, l[3])
		}
		for line := range strings.Lines(b.String()) {
			if n := len([]rune(line)) - 1; n > columns {
				t.Errorf("%d columns in a terminal of %d: %q", n, columns, line)
			}
		}
	}
}

// A long list is printed piece by piece, with a new heading only where the columns
// have become wider.
func TestTableOfManyRows(t *testing.T) {
	var b bytes.Buffer
	table := table{session: &session{stdout: &b}, columns: 80}
	add := func(n int, prefix string) {
		t.Helper()
		for i := range n {
			err := table.add(idem.Entry{Key: fmt.Sprintf("%s%d", prefix, i), Record: idem.Record{Status: idem.Completed, Attempt: 1, TTL: 90 * time.Second}})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	rows := func() (headings, rows int) {
		for line := range strings.Lines(b.String()) {
			switch {
			case strings.HasPrefix(line, "KEY"):
				headings++
			case line != "\n":
				rows++
			}
		}
		return headings, rows
	}
	want := func(what string, headings, n int) {
		t.Helper()
		if h, r := rows(); h != headings || r != n {
			t.Errorf("%s: %d headings and %d rows, want %d and %d", what, h, r, headings, n)
		}
	}
	add(tableRows-1, "key")
	want("less than a piece", 0, 0)
	add(1, "key")
	want("one piece", 1, tableRows)
	add(tableRows, "k")
	want("narrower keys", 1, 2*tableRows)
	add(tableRows, "much longer key ")
	want("wider keys", 2, 3*tableRows)
	add(tableRows, "scope\x1fkey")
	want("a scope", 3, 4*tableRows)
	add(3, "k")
	if err := table.end(); err != nil {
		t.Fatal(err)
	}
	want("the rest", 3, 4*tableRows+3)
}
