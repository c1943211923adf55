package testenv

import (
	"os/exec"
	"runtime"
	"syscall"
)

// StartChild starts cmd as a process that does not outlive this one: the kernel
// sends it sig. The channel is closed when it has ended and was waited for.
//
// What the kernel looks at is the thread that started the process. So one thread is
// kept for that alone, as long as the process lasts, and goes on after that:
// others may have started something on it before.
func StartChild(cmd *exec.Cmd, sig syscall.Signal) (ended <-chan struct{}, err error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = sig
	started, done := make(chan error), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	return done, <-started
}
