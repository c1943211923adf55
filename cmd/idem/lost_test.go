//go:build unix

package main

import (
	"strings"
	"syscall"
	"testing"
)

// idem ends a command whose lease has run out. A command that then stops early
// and in good order (exit code 0 after SIGTERM, as servers and batch programs
// do) has not done its work: that is no result to be replayed.
func TestCommandStoppedByIdemIsNotDone(t *testing.T) {
	for range 10 {
		b := newBox(t)
		ready := b.gate("ready")
		p := b.start(runArgs("--key k1 --lease 1s", "sh", "-c",
			`trap 'kill $!; echo stopped early; exit 0' TERM; echo ready > ready; sleep 5 & wait; echo all of it`)...)
		ready.wait()
		p.signal(syscall.SIGSTOP)
		for !strings.Contains(b.idem("list", "--lapsed").stdout, "k1") {
		}
		p.signal(syscall.SIGCONT)
		got := p.wait()
		if got.stdout == "all of it\n" {
			continue // the heartbeat was faster than the end of the lease: nothing was stopped
		}
		if show := b.idem("show", "k1").stdout; strings.Contains(show, "status\tcompleted") {
			t.Errorf("idem stopped the command in the middle and recorded it as done: %v\n%s", got, show)
		}
		return
	}
	t.Fatal("the command was never stopped")
}
