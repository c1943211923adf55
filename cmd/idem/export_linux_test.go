package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testpg"
	"github.com/idem-go/idem/internal/testredis"
)

// A shelf has records in all states, put there by a program.
type shelf struct {
	b       idem.Backend
	running string // the claim that runs, as text
}

var (
	shelfPayload = idem.FingerprintOf([]byte("payload"))
	shelfResult  = idem.Result{Code: 201, Meta: map[string]string{"type": "\xff\x00", "": "empty"}, Body: []byte("body \x00\xff")}
)

// in returns a Store of the shelf.
func in(t *testing.T, b idem.Backend, o idem.Options) *idem.Store {
	t.Helper()
	s, err := idem.New(b, &o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (sh *shelf) takeover(t *testing.T) *idem.Store {
	return in(t, sh.b, idem.Options{Retention: 72 * time.Hour, Lease: time.Hour})
}

func (sh *shelf) hold(t *testing.T) *idem.Store {
	return in(t, sh.b, idem.Options{Retention: 72 * time.Hour, Lease: time.Hour, OnLapse: idem.Hold, Scope: "money"})
}

func (sh *shelf) short(t *testing.T) *idem.Store {
	return in(t, sh.b, idem.Options{Lease: time.Millisecond})
}

// fillShelf stores records of all states.
func fillShelf(t *testing.T, b idem.Backend) *shelf {
	t.Helper()
	sh := &shelf{b: b}
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	begin := func(s *idem.Store, key string) *idem.Claim {
		t.Helper()
		c, _, err := s.Begin(ctx, key, shelfPayload)
		must(err)
		return c
	}
	s, h := sh.takeover(t), sh.hold(t)
	must(s.Complete(ctx, begin(s, "done"), shelfResult))
	must(h.Complete(ctx, begin(h, "done"), shelfResult))
	small := in(t, b, idem.Options{MaxResult: 1})
	must(small.Complete(ctx, begin(small, "omitted"), shelfResult))
	c := begin(s, "running")
	must(s.Checkpoint(ctx, c, []byte("note")))
	text, err := c.MarshalText()
	must(err)
	sh.running = string(text)
	must(s.Release(ctx, begin(s, "released")))
	must(s.Release(ctx, begin(s, "released")))
	c = begin(s, "abandoned")
	must(s.Checkpoint(ctx, c, []byte("note")))
	must(s.Abandon(ctx, c))
	begin(sh.short(t), "lapsed")
	c = begin(h, "held")
	must(h.Checkpoint(ctx, c, []byte("note")))
	must(h.Abandon(ctx, c))
	for range 2 {
		c = begin(s, "third")
		must(s.Abandon(ctx, c))
	}
	must(s.Complete(ctx, begin(s, "third"), idem.Result{Code: 7}))
	return sh
}

// answers asks the shelf everything, and returns what it says.
func (sh *shelf) answers(t *testing.T) map[string]string {
	t.Helper()
	ctx := t.Context()
	all := make(map[string]string)
	ask := func(name string, s *idem.Store, key string, fp idem.Fingerprint) {
		t.Helper()
		before, err := s.Lookup(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		c, done, err := s.Begin(ctx, key, fp)
		e, _ := errors.AsType[*idem.Error](err)
		switch {
		case c != nil:
			all[name] = fmt.Sprintf("claim, attempt %d, takeover %v, checkpoint %q, fence after %d: %v", c.Attempt, c.Takeover, c.Checkpoint, before.Fence, c.Fence > before.Fence)
		case done != nil:
			all[name] = fmt.Sprintf("replay of attempt %d, fence %d: %+v, expires in %.0f h", done.Attempt, done.Fence, done.Result, math.Ceil((done.TTL - done.Age).Hours()))
		case e != nil:
			left := "" // of the lease
			if after := e.RetryAfter(); after > 0 {
				left = fmt.Sprintf(", retry after %.0f min", math.Ceil(after.Minutes()))
			}
			all[name] = fmt.Sprintf("%v: attempt %d, fence %d, checkpoint %q, held %v%s", e.Err, e.Record.Attempt, e.Record.Fence, e.Record.Checkpoint, e.Record.TTL > longTime, left)
		}
	}
	s, h := sh.takeover(t), sh.hold(t)
	for _, key := range []string{"done", "omitted", "running", "third", "abandoned", "lapsed"} {
		ask(key+" with another payload", s, key, idem.Fingerprint{})
		ask(key, s, key, shelfPayload)
	}
	for _, key := range []string{"done", "held", "never used"} {
		ask(key+" in scope money", h, key, shelfPayload)
	}
	ask("released", s, "released", idem.Fingerprint{})
	var c idem.Claim
	if err := c.UnmarshalText([]byte(sh.running)); err != nil {
		t.Fatal(err)
	}
	all["complete by the one that runs"] = fmt.Sprint(s.Complete(ctx, &c, shelfResult))
	ask("then", s, "running", shelfPayload)
	return all
}

// opened opens a store by way of the library until the test is over, or closed.
func (b *box) opened(url string) *storage {
	b.t.Helper()
	b.url = url
	return b.open()
}

var moves = map[string]string{"bolt": "postgres", "postgres": "redis", "redis": "bolt"}

// Whoever asks the new store gets the answers of the old one, and what ran goes on.
func TestExportKeepsWhatIsGuaranteed(t *testing.T) {
	t.Parallel()
	for from, to := range moves {
		t.Run(from+" to "+to, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			old, new := b.emptyStore(from), b.emptyStore(to)
			source := b.opened(old)
			sh := fillShelf(t, source)
			const summary = "9 records, "
			b.idem("export", "--store", old, "--to", new, "--dry-run").expectPart(t, 0, "would copy "+summary)
			if entries, _, err := b.opened(new).List(t.Context(), idem.Query{}); len(entries) > 0 || err != nil {
				t.Errorf("a dry run has copied %v, %v", entries, err)
			}
			for range 2 { // again does no harm
				d := b.idem("export", "--store", old, "--to", new)
				if d.code != 0 || !strings.Contains(d.stdout, summary) || !strings.Contains(d.stdout, "4 completed, 1 running, 3 without a known outcome, 1 released") ||
					!strings.Contains(d.stdout, "9 records are the same in both") {
					t.Fatal(d)
				}
			}
			b.idem("export", "--store", old, "--to", new, "--dry-run").expectPart(t, 0, "which has 9 of them already\n")
			want := sh.answers(t)
			sh.b = b.opened(new)
			got := sh.answers(t)
			for name := range want {
				if got[name] != want[name] {
					t.Errorf("%s:\nthe new store answers %s\nthe old one           %s", name, got[name], want[name])
				}
			}
			// The old store has gone on, which nobody should have let it.
			d := b.idem("export", "--store", old, "--to", new)
			if d.code != exitFindings || !strings.Contains(d.stderr, "the new store has another record, which was left as it is") ||
				!strings.Contains(d.stderr, `key "abandoned"`) || !strings.Contains(d.stderr, "do not use the new store yet") {
				t.Error(d)
			}
			again := sh.answers(t)
			for _, name := range []string{"done", "third", "held in scope money"} {
				if again[name] != want[name] {
					t.Errorf("%s: the new store answers %s after another export", name, again[name])
				}
			}
		})
	}
}

// A copy that is killed goes on where it was.
func TestExportThatIsKilled(t *testing.T) {
	t.Parallel()
	for from, to := range moves {
		t.Run(from+" to "+to, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			old, new := b.emptyStore(from), b.emptyStore(to)
			source := b.opened(old)
			const n = 2000
			body := bytes.Repeat([]byte("0123456789abcdef"), 256)
			var swaps errgroup
			for i := range n {
				swaps.add(func() error {
					r := idem.Record{Token: fmt.Sprint("t", i, ".a"), Status: idem.Completed, Attempt: 1, TTL: 24*time.Hour + time.Duration(i), Result: idem.Result{Body: body}}
					_, err := source.Swap(context.Background(), fmt.Sprint("k", i), "", r)
					return err
				})
			}
			if err := swaps.wait(); err != nil {
				t.Fatal(err)
			}
			killed := 0
			for range 2 {
				p := b.start("export", "--store", old, "--to", new)
				copied := b.started(new)
				p.signal(syscall.SIGKILL)
				if d := p.wait(); d.code < 0 {
					killed++
				}
				t.Logf("killed with at least %d of %d records copied", copied, n)
			}
			if killed == 0 {
				t.Error("each copy was quicker than the signal")
			}
			d := b.idem("export", "--store", old, "--to", new)
			if d.code != 0 || !strings.Contains(d.stdout, "2,000 records are the same in both") {
				t.Fatal(d)
			}
			b.idem("list", "--store", new).expectLines(t, n)
		})
	}
}

// started waits until a copy has begun to write, and returns how far it is.
func (b *box) started(url string) int {
	b.t.Helper()
	l, err := locate(url)
	if err != nil {
		b.t.Fatal(err)
	}
	if l.kind() == "bolt" { // nobody can look into the file meanwhile
		size := func() int64 {
			info, err := os.Stat(l.path)
			if err != nil {
				return 0
			}
			return info.Size()
		}
		before := max(size(), 256<<10)
		testredis.Until(b.t, "the copy has begun", func() bool { return size() > before })
		return -1
	}
	count := 0
	target := b.opened(url)
	testredis.Until(b.t, "the copy has begun", func() bool {
		entries, _, err := target.List(b.t.Context(), idem.Query{Limit: listPage})
		count = len(entries)
		return err != nil || count > 0
	})
	return count
}

// A process that still works on the old store is not stopped by a copy, and told of.
func TestExportWhileAnAttemptRuns(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	ready, gate := b.gate("ready"), b.gate("gate")
	p := b.start(runArgs("--key k1 --store s.db", "sh", "-c", "echo ready > ready; read go < gate; echo done")...)
	ready.wait()
	if d := b.idem("export", "--store", "s.db", "--to", "new.db"); d.code != 0 || !strings.Contains(d.stderr, "1 attempt had not ended in the old store") {
		t.Error(d)
	}
	gate.open()
	p.wait().expect(t, 0, "done\n")
}

// What is in the new store is not replaced.
func TestExportIntoAStoreInUse(t *testing.T) {
	onEachStore(t, func(t *testing.T, b *box) {
		old := b.path("old.db")
		b.idem(runArgs("--key k1 --store "+old, "echo", "old")...).expect(t, 0, "old\n")
		b.idem(runArgs("--key k2 --store "+old, "echo", "old")...).expect(t, 0, "old\n")
		b.idem(runArgs("--key k1", "echo", "new")...).expect(t, 0, "new\n")
		for _, args := range [][]string{{"--dry-run"}, nil, nil} {
			d := b.idem(append([]string{"export", "--store", old, "--to", b.url}, args...)...)
			if d.code != exitFindings || !strings.Contains(d.stderr, `1 key: the new store has another record, which was left as it is`) || !strings.Contains(d.stderr, `key "k1"`) {
				t.Error(d)
			}
		}
		b.idem(runArgs("--key k1", "echo", "new")...).expect(t, 0, "new\n")
		b.idem(runArgs("--key k2", "echo", "old")...).expect(t, 0, "old\n")
	})
}

func TestExportRefusals(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.idem(runArgs("--key k1 --store s.db", charge...)...).expect(t, 0, "charged\n")
	b.idem("export", "--store", "s.db").expect(t, exitUsage, "", "--to")
	b.idem("export", "--store", "s.db", "--to", "s.db").expect(t, exitUsage, "", "is the store itself")
	b.idem("export", "--store", "s.db", "--to", "bolt://"+b.path("s.db")).expect(t, exitUsage, "", "is the store itself")
	b.idem("export", "--store", "s.db", "--to", "mysql://user:secret@host/db").expect(t, exitUsage, "", "--to: ")
	b.idem("export", "--store", "no.db", "--to", "new.db").expect(t, exitAbsent, "", "store no.db: there is no such file")
	d := b.idem("export", "--store", "s.db", "--to", "postgres://u:secret@"+closedPort(t)+"/db")
	d.expect(t, exitUnavailable, "", "connection refused")
	if strings.Contains(d.stderr, "secret") {
		t.Error(d)
	}
	base, schema := testpg.Schema(t)
	b.idem("export", "--store", "s.db", "--to", testpg.With(base, "idem_schema", schema)).expect(t, exitDamaged, "", "no such table", "idem migrate")

	// A file that is written to by somebody else is not copied.
	f := b.flock("s.db")
	b.idem("export", "--store", "s.db", "--to", "new.db").expect(t, exitUnavailable, "", "locked by another process")
	f.Close()
	if b.read("new.db") != "" {
		t.Error("the new store was made")
	}
	// Damage is found before anything is written.
	whole := b.read("s.db")
	b.write("s.db", whole[:9000])
	b.idem("export", "--store", "s.db", "--to", "new.db").expect(t, exitDamaged, "", "store s.db: ", "left as it is")
	if b.read("new.db") != "" {
		t.Error("the new store was made")
	}
}
