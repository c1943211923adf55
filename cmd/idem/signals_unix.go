//go:build unix

package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// fromKeyboard reports whether s was sent by the terminal to its foreground
// process group, which idem and the command are both in. There is no way to
// see the sender of a signal from here, so SIGINT and SIGQUIT count as typed
// whenever the terminal would send them to this group.
func fromKeyboard(s syscall.Signal) bool {
	if s != syscall.SIGINT && s != syscall.SIGQUIT {
		return false
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|syscall.O_NOCTTY, 0)
	if err != nil {
		return false // no terminal controls us
	}
	defer func() { _ = tty.Close() }()
	foreground, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && foreground == unix.Getpgrp()
}
