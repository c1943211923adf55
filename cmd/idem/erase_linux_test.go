package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

// tenants fills the scopes of two tenants, and one below.
func (b *box) tenants() {
	b.t.Helper()
	for _, scope := range []string{"ada", "bob"} {
		for i := range 3 {
			b.idem(runArgs(fmt.Sprintf("--key k%d --scope %s", i, scope), "sh", "-c", "echo secret of "+scope+" | tee -a ledger.txt")...).expect(b.t, 0, "secret of "+scope+"\n")
		}
		b.idem(runArgs("--key silent --scope "+scope, "true")...).expect(b.t, 0, "")
	}
	b.idem(runArgs("--key below --scope ada --scope shop", "echo", "secret of ada")...).expect(b.t, 0, "secret of ada\n")
	b.idem(runArgs("--key k0", "echo", "nobody's")...).expect(b.t, 0, "nobody's\n")
}

// dump returns all that list and show tell of the store's bodies.
func (b *box) dump() string {
	b.t.Helper()
	var all strings.Builder
	for _, e := range b.entries() {
		fmt.Fprintf(&all, "%q %q %v\n", e.Key, e.Record.Result.Body, e.Record.Result.Meta)
	}
	return all.String()
}

func (b *box) entries() (all []idem.Entry) {
	b.t.Helper()
	s := b.open()
	defer s.Close()
	if err := eachEntry(b.t.Context(), s, idem.Query{}, func(e idem.Entry) error { all = append(all, e); return nil }); err != nil {
		b.t.Fatal(err)
	}
	return all
}

func TestErase(t *testing.T) {
	onEachStore(t, func(t *testing.T, b *box) {
		b.tenants()
		effects := b.effects()
		before := b.dump()
		b.idem("erase", "--scope", "ada").expect(t, exitUsage, "", "--yes", "nothing was changed")
		b.idem("erase", "--yes").expect(t, exitUsage, "", "--scope")
		b.idem("erase", "--yes", "--scope", "").expect(t, exitUsage, "", "the scope is empty")
		b.idem("erase", "--scope", "nobody", "--yes").expectPart(t, 0, `scope "nobody": there is no result to erase`)
		d := b.idem("erase", "--scope", "ada", "--dry-run")
		d.expectPart(t, 0, `scope "ada": would erase 5 results with `) // the silent one has its sizes
		if b.dump() != before {
			t.Fatal("something was changed")
		}
		ttl := make(map[string]time.Duration)
		for _, e := range b.entries() {
			ttl[e.Key] = e.Record.TTL - e.Record.Age
		}
		d = b.idem("erase", "--scope", "ada", "--yes")
		if d.code != 0 || d.stderr != "" || !strings.HasPrefix(d.stdout, "scope \"ada\": 5 results are erased\nThe records stay until they expire, the last in 23h59m.\n") || !strings.Contains(d.stdout, "Replicas and backups") {
			t.Fatal(d)
		}
		after := b.dump()
		if strings.Contains(after, "secret of ada") || strings.Count(after, "secret of bob") != 3 || strings.Count(after, "nobody's") != 1 {
			t.Errorf("the store has\n%s", after)
		}
		for _, e := range b.entries() {
			left := e.Record.TTL - e.Record.Age
			if was := ttl[e.Key]; left > was || left < was-time.Minute || e.Record.Attempt != 1 || e.Record.Status != idem.Completed {
				t.Errorf("%q expires in %v, and would have in %v: %+v", e.Key, left, was, e.Record)
			}
		}
		// A duplicate does not run, and is told why it gets nothing.
		b.idem(runArgs("--key k1 --scope ada", "sh", "-c", "echo secret of ada | tee -a ledger.txt")...).expect(t, 0, "", "what it printed is not kept: it was erased")
		b.idem(runArgs("--key k1 --scope ada", "true")...).expect(t, exitMismatch, "", "belongs to another command")
		b.idem(runArgs("--key k1 --scope bob", "sh", "-c", "echo secret of bob | tee -a ledger.txt")...).expect(t, 0, "secret of bob\n")
		if b.effects() != effects {
			t.Errorf("%d effects, want %d", b.effects(), effects)
		}
		b.idem("show", "k1", "--scope", "ada").expectPart(t, 0, "omitted\t")
		b.idem("erase", "--scope", "ada", "--yes").expectPart(t, 0, "there is no result to erase; 5 completed records have none")
	})
}

// A file that others use keeps old bytes; a copy of it does not.
func TestEraseAndCopy(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.use(b.path("s.db"))
	b.tenants()
	b.idem("erase", "--scope", "ada", "--yes").expectPart(t, 0, "  idem export --to bolt:new.db\n")
	b.idem("export", "--to", "bolt:new.db").expectPart(t, 0, "10 records are the same in both")
	if data := b.read("new.db"); strings.Contains(data, "secret of ada") || !strings.Contains(data, "secret of bob") {
		t.Error("the new file has what was erased, or not the rest")
	}
}

// What runs, or nobody knows the outcome of, is left alone, and that is told.
func TestEraseLeavesClaims(t *testing.T) {
	onEachStore(t, func(t *testing.T, b *box) {
		s := b.open()
		fillShelf(t, s)
		s.Close()
		d := b.idem("erase", "--scope", "money", "--yes")
		if d.code != exitFindings || !strings.Contains(d.stdout, `scope "money": 1 result is erased`) ||
			!strings.Contains(d.stderr, `scope "money": left alone: 1 attempt without a known outcome; 1 has a checkpoint`) ||
			!strings.Contains(d.stderr, "idem list --scope money --lapsed") {
			t.Error(d)
		}
		b.idem("show", "held", "--scope", "money", "--body").expectPart(t, 0, "checkpoint\tnote\n")
		if d := b.idem("show", "done", "--scope", "money", "--body", "--json"); strings.Contains(d.stdout, "body \\u0000") || !strings.Contains(d.stdout, `"omitted":true`) {
			t.Error(d)
		}
		d = b.idem("resolve", "held", "--scope", "money", "--attempt", "1", "--code", "0", "--yes")
		if d.code != 0 {
			t.Fatal(d)
		}
		b.idem("erase", "--scope", "money", "--yes").expectPart(t, 0, "there is no result to erase; 2 completed records have none")

		ready, gate := b.gate("ready"), b.gate("gate")
		p := b.start(runArgs("--key k1 --scope busy", "sh", "-c", "echo ready > ready; read go < gate; echo done")...)
		ready.wait()
		d = b.idem("erase", "--scope", "busy", "--yes")
		if d.code != exitFindings || !strings.Contains(d.stderr, "left alone: 1 attempt that runs") {
			t.Error(d)
		}
		gate.open()
		p.wait().expect(t, 0, "done\n")
		b.idem("erase", "--scope", "busy", "--yes").expectPart(t, 0, "1 result is erased")
	})
}

// More than a page, and more than are erased at once.
func TestEraseMany(t *testing.T) {
	onEachStore(t, func(t *testing.T, b *box) {
		s := b.open()
		const n = 3*listPage + 7
		prefix := idem.ScopePrefix("many")
		var swaps errgroup
		for i := range n {
			swaps.add(func() error {
				r := idem.Record{Token: fmt.Sprint("t", i, ".a"), Status: idem.Completed, Attempt: 1, TTL: 24 * time.Hour, Result: idem.Result{Code: 200, Body: []byte("secret")}}
				_, err := s.Swap(t.Context(), fmt.Sprint(prefix, "k", i), "", r)
				return err
			})
		}
		if err := swaps.wait(); err != nil {
			t.Fatal(err)
		}
		s.Close()
		b.idem("erase", "--scope", "many", "--yes").expectPart(t, 0, fmt.Sprintf("%d results are erased", n))
		for _, e := range b.entries() {
			if r := e.Record.Result; !r.Omitted || r.Body != nil || r.Code != 200 {
				t.Fatalf("%q has %+v", e.Key, r)
			}
		}
	})
}

func TestStats(t *testing.T) {
	onEachStore(t, func(t *testing.T, b *box) {
		s := b.open()
		fillShelf(t, s)
		s.Close()
		d := b.idem("stats")
		if d.code != 0 || d.stderr != "" {
			t.Fatal(d)
		}
		for _, want := range []string{"records\t9\n", "completed\t4\n", "running\t1\n", "unresolved\t3\n", "released\t1\n", "omitted\t1\n", "scope -\t7\n", "scope money\t2\n", "age under 1m\t9\n"} {
			if !strings.Contains(d.stdout, "\n"+want) {
				t.Errorf("%q is missing in\n%s", want, d.stdout)
			}
		}
		if strings.Contains(d.stdout, "body ") {
			t.Errorf("a body is shown: %s", d.stdout)
		}
		var v struct {
			Kind    string
			Storage map[string]int64
			All     struct{ Records, Body_bytes int64 }
			Oldest  *struct {
				Key     string
				Attempt int
			} `json:"oldest_unresolved"`
			Scopes []struct {
				Scope   []string
				Records int
			}
			Ages []struct {
				Below   *float64 `json:"below_seconds"`
				Records int
			}
		}
		d = b.idem("stats", "--json")
		if err := json.Unmarshal([]byte(d.stdout), &v); err != nil || d.code != 0 {
			t.Fatalf("%v: %v", err, d)
		}
		room := map[string]string{"bolt": "file_bytes", "postgres": "table_bytes", "redis": "used_bytes"}[v.Kind]
		if v.All.Records != 9 || v.All.Body_bytes != 2*int64(len(shelfResult.Body)) || v.Storage[room] < 1000 || v.Oldest == nil || v.Oldest.Attempt != 1 ||
			len(v.Scopes) != 2 || v.Scopes[0].Records != 7 || len(v.Ages) != 8 || v.Ages[7].Below != nil {
			t.Errorf("%+v", v)
		}
		if d := b.idem("stats", "--scope", "money"); !strings.Contains(d.stdout, "\nrecords\t2\n") {
			t.Error(d)
		}
		b.idem("stats", "--scope", "\n").expect(t, exitUsage, "", "control character")
	})
}

func TestStatsOfNothing(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.idem("stats").expect(t, exitAbsent, "", "there is no such file")
	b.idem(runArgs("--key k1", "true")...).expect(t, 0, "")
	b.idem("stats", "--scope", "nobody").expectPart(t, 0, "records\t0\n")
	b.idem("stats", "--scope", "nobody", "--json").expectPart(t, 0, `"oldest_unresolved":null,"scopes":[]`)
}
