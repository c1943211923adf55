package main

import (
	"crypto/rand"
	"strings"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testredis"
)

// What the operator's commands show fits a terminal of 80 columns, has no body in
// it, and no colours where they are not wanted.
func TestReportsFitTheTerminal(t *testing.T) {
	onEachStore(t, func(t *testing.T, b *box) {
		s := b.open()
		fillShelf(t, s)
		long := in(t, s, idem.Options{}).Scoped(strings.Repeat("long", 40))
		if err := long.Resolve(t.Context(), "k", 1, shelfResult); err == nil {
			t.Fatal("there was an attempt")
		}
		if _, _, err := long.Begin(t.Context(), strings.Repeat("key", 80), shelfPayload); err != nil {
			t.Fatal(err)
		}
		s.Close()
		b.env = append(b.env, "NO_COLOR=1")
		for _, args := range [][]string{{"stats"}, {"doctor"}, {"erase", "--scope", "money", "--dry-run"}, {"stats", "--scope", "nobody"}} {
			_, lines := b.screen(args...).wait()
			for i, line := range lines {
				// Messages, and a URL or a call to be typed in, are not cut.
				fits := len([]rune(line)) <= 80 || strings.HasPrefix(line, "idem: ") || strings.Contains(line, "idem show") || strings.Contains(line, b.url)
				if !fits || strings.ContainsAny(line, "\t\x1b") || strings.Contains(line, "body \\") {
					t.Errorf("%v: line %d has %d columns: %q", args, i, len([]rune(line)), line)
				}
			}
		}
		b.env = append(b.env, "NO_COLOR=", "TERM=xterm")
		if _, lines := b.screen("doctor").wait(); !strings.Contains(strings.Join(lines, "\n"), "\x1b[32mok    \x1b[0m") {
			t.Errorf("there are no colours: %q", lines)
		}
	})
}

func TestEraseAsks(t *testing.T) {
	t.Parallel()
	for keys, want := range map[string]struct {
		code  int
		shows string
	}{
		"y\n": {0, "5 results are erased"},
		"n\n": {exitDeclined, "not confirmed; nothing was changed"},
		"\n":  {exitDeclined, "not confirmed; nothing was changed"},
	} {
		t.Run(keys, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			b.use(b.path("s.db"))
			b.env = append(b.env, "NO_COLOR=1")
			b.tenants()
			before := b.dump()
			s := b.screen("erase", "--scope", "ada")
			s.until("Erase 5 results with ")
			s.until("? [y/N] ")
			s.press(keys)
			code, lines := s.wait()
			shown := strings.Join(lines, "\n")
			if code != want.code || !strings.Contains(shown, want.shows) {
				t.Errorf("exit code %d, want %d and %q:\n%s", code, want.code, want.shows, shown)
			}
			if changed := b.dump() != before; changed != (code == 0) {
				t.Errorf("exit code %d, changed: %v", code, changed)
			}
		})
	}
}

// Long work shows how far it is, on a terminal and on standard error alone.
func TestExportShowsProgress(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.fillMany(3 * listPage)
	code, lines := b.screen("export", "--to", "redis://"+testredis.Shared(t)+"?idem_prefix="+rand.Text()+":").wait()
	shown := strings.Join(lines, "\n")
	if code != 0 || !strings.Contains(shown, "copying records") || !strings.Contains(shown, "192 records are the same in both") {
		t.Errorf("exit code %d:\n%q", code, shown)
	}
}
