//go:build !linux

package main

import "syscall"

// killedWithParent has no counterpart here: if idem is killed, the command goes
// on, and may do so beyond its lease.
func killedWithParent() *syscall.SysProcAttr { return nil }
