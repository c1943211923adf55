package main

import (
	"context"
	"strings"
	"testing"

	"github.com/idem-go/idem"
)

func TestConfirmation(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		verb   []string
		keys   string // that are typed
		code   int
		shows  string // at the end
		status string // then
	}{
		"yes":       {[]string{"forget", "k1", "--attempt", "1"}, "y\n", 0, "attempt 1 is forgotten", "released"},
		"in full":   {[]string{"resolve", "k1", "--attempt", "1", "--code", "0"}, "YES\n", 0, "recorded as completed with code 0", "completed"},
		"no":        {[]string{"forget", "k1", "--attempt", "1"}, "n\n", exitDeclined, "idem: not confirmed; nothing was changed", "in-progress"},
		"enter":     {[]string{"resolve", "k1", "--attempt", "1", "--code", "0"}, "\n", exitDeclined, "idem: not confirmed; nothing was changed", "in-progress"},
		"end":       {[]string{"forget", "k1", "--attempt", "1"}, "\x04", exitDeclined, "idem: not confirmed; nothing was changed", "in-progress"},
		"else":      {[]string{"forget", "k1", "--attempt", "1"}, "yellow\n", exitDeclined, "idem: not confirmed; nothing was changed", "in-progress"},
		"interrupt": {[]string{"forget", "k1", "--attempt", "1"}, "\x03", 130, "[y/N]", "in-progress"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			b.env = append(b.env, "NO_COLOR=1")
			b.idem(runArgs("--key k1 --on-lapse hold", "sh", "-c", "exit 3")...).expect(t, 3, "", "held")
			s := b.screen(tc.verb...)
			s.until(" [y/N] ")
			s.press(tc.keys)
			code, lines := s.wait()
			shown := strings.Join(lines, "\n")
			for _, want := range []string{"key          k1\n", "store        " + b.store() + "\n", "attempt      1\n", "lease        abandoned\n", tc.shows} {
				if !strings.Contains(shown, want) {
					t.Errorf("the screen lacks %q:\n%s", want, shown)
				}
			}
			if code != tc.code {
				t.Errorf("exit code %d, want %d:\n%s", code, tc.code, shown)
			}
			b.idem("show", "k1").expectPart(t, 0, "status\t"+tc.status+"\n")
		})
	}
}

// Nobody is asked about what cannot be done, and what an answer is about may have
// changed when it comes.
func TestConfirmationOfWhatHasChanged(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.idem(runArgs("--key k1 --on-lapse hold", "sh", "-c", "exit 3")...).expect(t, 3, "", "held")
	code, lines := b.screen("forget", "k1", "--attempt", "2").wait()
	if shown := strings.Join(lines, "\n"); code != exitMismatch || strings.Contains(shown, "[y/N]") {
		t.Errorf("exit code %d: %s", code, shown)
	}
	s := b.screen("forget", "k1", "--attempt", "1")
	s.until(" [y/N] ")
	b.idem(runArgs("--key k1 --on-lapse takeover", "sh", "-c", "exit 3")...).expect(t, 3, "", "attempt 2")
	s.press("y\n")
	code, lines = s.wait()
	if shown := strings.Join(lines, "\n"); code != exitMismatch || !strings.Contains(shown, "the present attempt is 2 and not 1; nothing was changed") {
		t.Errorf("exit code %d: %s", code, shown)
	}
	b.idem("show", "k1").expectPart(t, 0, "status\tin-progress\nattempt\t2\n")
}

// A slowSweep has so many batches left to sweep.
type slowSweep struct {
	idem.Backend
	batches int
}

func (s *slowSweep) Sweep(_ context.Context, limit int) (int, error) {
	if s.batches == 0 {
		return 1, nil
	}
	s.batches--
	return limit, nil
}

// Long work shows how far it is, clears that up at its end, and does so on a
// terminal only.
func TestSweepShowsProgress(t *testing.T) {
	t.Parallel()
	for batches, want := range map[int]string{0: "", 3: "deleting expired records"} {
		screen, tty := terminal(t)
		n, err := sweep(&session{ctx: t.Context(), stderr: tty}, &slowSweep{batches: batches})
		tty.Close()
		shown := strings.Join(screen.shown(), "\n")
		if err != nil || n != batches*sweepBatch+1 || !strings.Contains(shown, want) || want == "" && shown != "" {
			t.Errorf("%d batches: %d, %v, the screen shows %q", batches, n, err, shown)
		}
		if end := strings.LastIndex(shown, "\r"); strings.TrimSpace(shown[end+1:]) != "" {
			t.Errorf("%d batches: this is left on the screen: %q", batches, shown[end+1:])
		}
	}
	var piped strings.Builder
	if n, err := sweep(&session{ctx: t.Context(), stderr: &piped}, &slowSweep{batches: 3}); n != 3*sweepBatch+1 || err != nil || piped.Len() > 0 {
		t.Errorf("without a terminal: %d, %v, %q", n, err, piped.String())
	}
}
