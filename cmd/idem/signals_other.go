//go:build !unix

package main

import "syscall"

// fromKeyboard reports whether the console has sent s, which it does to every
// process that is attached to it.
func fromKeyboard(s syscall.Signal) bool { return s == syscall.SIGINT }
