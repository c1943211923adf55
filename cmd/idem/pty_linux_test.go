package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/idem-go/idem/internal/testenv"
)

// A screen is a pseudo terminal in which a call of idem runs.
type screen struct {
	t      *testing.T
	keys   *os.File // what is typed goes in, what is shown comes out
	p      *running
	output strings.Builder
}

// terminal returns a screen in which nothing runs, and the terminal's own end.
func terminal(t *testing.T) (*screen, *os.File) {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	if err != nil {
		testenv.Skip(t, "pty", "no pseudo terminal: %v", err)
	}
	t.Cleanup(func() { keys.Close() })
	raw, err := keys.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var number int
	var ioctl error
	if err := raw.Control(func(fd uintptr) {
		if ioctl = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); ioctl != nil {
			return
		}
		number, ioctl = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
	}); err != nil || ioctl != nil {
		testenv.Skip(t, "pty", "no pseudo terminal: %v", errors.Join(err, ioctl))
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		testenv.Skip(t, "pty", "no pseudo terminal: %v", err)
	}
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	// Ctrl-C shall not take away what is on its way to the screen.
	mode, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	mode.Lflag |= unix.NOFLSH
	if err := unix.IoctlSetTermios(int(tty.Fd()), unix.TCSETS, mode); err != nil {
		t.Fatal(err)
	}
	return &screen{t: t, keys: keys}, tty
}

// screen starts idem in a terminal of 80 columns. A shell leads the session and
// stays until the screen was read: with the end of the leader the kernel hangs
// the terminal up, and what is still on its way to the screen is lost.
func (b *box) screen(args ...string) *screen {
	b.t.Helper()
	s, tty := terminal(b.t)
	defer tty.Close()
	s.p = &running{t: b.t, cmd: b.cmd(args...)}
	const leader = `trap : INT QUIT; "$0" "$@"; printf '\000%d\n' $?; read end`
	s.p.cmd.Path, s.p.cmd.Args = "/bin/sh", append([]string{"sh", "-c", leader}, s.p.cmd.Args...)
	s.p.cmd.Stdin, s.p.cmd.Stdout, s.p.cmd.Stderr = tty, tty, tty
	s.p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.p.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(s.end)
	return s
}

// end ends the shell, and what a test that failed has left in its process group.
func (s *screen) end() {
	if s.p.cmd.ProcessState != nil {
		return
	}
	_ = syscall.Kill(-s.p.cmd.Process.Pid, syscall.SIGKILL)
	_ = s.p.cmd.Wait()
}

// until waits until the screen shows text.
func (s *screen) until(text string) {
	s.t.Helper()
	for !strings.Contains(s.output.String(), text) {
		s.read(strconv.Quote(text))
	}
}

// read waits for more on the screen.
func (s *screen) read(want string) {
	s.t.Helper()
	if err := s.keys.SetReadDeadline(time.Now().Add(patience)); err != nil {
		s.t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := s.keys.Read(buf)
	s.output.Write(buf[:n])
	if err != nil {
		s.t.Fatalf("waiting for %s: the screen shows %q, then %v", want, s.output.String(), err)
	}
}

// press types keys.
func (s *screen) press(keys string) {
	s.t.Helper()
	if _, err := s.keys.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// wait waits for the end of idem, and returns the exit code, as a shell reports
// it, and the lines on the screen.
func (s *screen) wait() (code int, lines []string) {
	s.t.Helper()
	shown, at := "", -1
	for at < 0 || !strings.HasSuffix(shown, "\n") {
		s.read("the end of idem")
		shown = s.output.String()
		at = strings.LastIndexByte(shown, 0)
	}
	code, err := strconv.Atoi(strings.TrimSpace(shown[at+1:]))
	if err != nil {
		s.t.Fatal(err)
	}
	s.end()
	return code, onScreen(shown[:at])
}

// shown waits until the other end of the terminal is closed, and returns the lines
// on the screen.
func (s *screen) shown() []string {
	s.t.Helper()
	if err := s.keys.SetReadDeadline(time.Now().Add(patience)); err != nil {
		s.t.Fatal(err)
	}
	// The other end closes with the last process: EIO.
	if _, err := io.Copy(&s.output, s.keys); err != nil && !errors.Is(err, syscall.EIO) {
		s.t.Fatalf("the screen shows %q, then %v", s.output.String(), err)
	}
	return onScreen(s.output.String())
}

func onScreen(shown string) (lines []string) {
	shown = strings.ReplaceAll(shown, "\r\n", "\n")
	return strings.Split(strings.TrimSuffix(shown, "\n"), "\n")
}

// Ctrl-C reaches the command from the terminal; it must not get it a second
// time from idem.
func TestCtrlCIsDeliveredOnce(t *testing.T) {
	t.Parallel()
	for key, name := range map[string]string{"\x03": "interrupt", "\x1c": "quit"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			got := b.gate("got")
			b.env = append(b.env, "IDEM_TEST_CHILD=signals:terminated")
			s := b.screen(runArgs("--key k1", testBinary(t))...)
			pid, err := strconv.Atoi(strings.TrimPrefix(got.wait(), "run by "))
			if err != nil {
				t.Fatal(err)
			}
			// Two of a signal that meet are one: the second delivery would often
			// go unseen, but not each time.
			const times = 50
			for range times {
				s.press(key)
				if line := got.wait(); line != name {
					t.Fatalf("the command received %q", line)
				}
			}
			// idem has had its own Ctrl-C before this one, and would have passed
			// it on.
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			code, lines := s.wait()
			shown := strings.Join(lines, "\n")
			if code != 7 || !strings.Contains(shown, fmt.Sprintf("map[%s:%d terminated:1]", name, times)) {
				t.Errorf("exit code %d, the screen shows %q", code, shown)
			}
		})
	}
}

func TestTerminalTellsOfAReplay(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.idem(runArgs("--key k1", charge...)...).expect(t, 0, "charged\n")
	code, lines := b.screen(runArgs("--key k1", charge...)...).wait()
	if code != 0 || len(lines) != 2 || lines[0] != "charged" || !strings.Contains(lines[1], "this is a replay of attempt 1, completed ") {
		t.Errorf("exit code %d, the screen shows %q", code, lines)
	}
}

func TestTablesFitTheTerminal(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.env = append(b.env, "NO_COLOR=1")
	long := strings.Repeat("long", 60)
	b.fill(long)
	for _, args := range [][]string{{"list"}, {"list", "--scope", "billing"}, {"show", "k1"}, {"show", long}, {"show", "k3", "--scope", "billing", "--body"}} {
		code, lines := b.screen(args...).wait()
		if code != 0 {
			t.Errorf("%v: exit code %d", args, code)
		}
		for _, line := range lines {
			fits := len([]rune(line)) <= 80 || strings.Contains(line, long) // show cuts nothing
			if !fits || strings.Contains(line, "\t") {
				t.Errorf("%v: this line has %d columns: %q", args, len([]rune(line)), line)
			}
		}
		t.Logf("%v\n%s", args, strings.Join(lines, "\n"))
	}
	_, lines := b.screen("list").wait()
	if len(lines) != 6 || strings.Join(strings.Fields(lines[0]), " ") != "KEY SCOPE STATUS TRY AGE LEASE EXPIRES CODE" {
		t.Errorf("the list is %q", lines)
	}

	b = newBox(t)
	b.env = append(b.env, "TERM=dumb")
	b.idem(runArgs("--key k1", "true")...).expect(t, 0, "")
	_, lines = b.screen("list").wait()
	if len(lines) != 2 || strings.Contains(lines[0], "SCOPE") {
		t.Errorf("without scopes the list is %q", lines)
	}
}

func TestColours(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.env = append(b.env, "TERM=xterm")
	b.idem(runArgs("--key k1", "sh", "-c", "exit 3")...).expect(t, 3, "", "unknown")
	_, lines := b.screen("list").wait()
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "\x1b[1mKEY ") || !strings.Contains(lines[1], "\x1b[33mabandoned\x1b[0m") {
		t.Errorf("in colours the list is %q", lines)
	}
	for _, none := range []string{"NO_COLOR=1", "TERM=dumb"} {
		b.env = append(b.env, none)
		if _, lines := b.screen("list").wait(); len(lines) != 2 || strings.Contains(strings.Join(lines, ""), "\x1b") {
			t.Errorf("with %s the list is %q", none, lines)
		}
		b.env = append(b.env, "NO_COLOR=") // to be set to nothing is not to be set
	}
}
