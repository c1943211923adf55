package main

import "syscall"

// killedWithParent lets the kernel kill the command when idem dies. Nobody
// would extend its claim then, and after the lease another attempt may run:
// SIGTERM, which a program can ignore or take its time over, would let two
// attempts run side by side. Only the command itself is killed, not what it has
// started, and not a set-user-ID program such as sudo.
func killedWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
