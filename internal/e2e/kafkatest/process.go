package kafkatest

import (
	"os/exec"
	"runtime"
	"syscall"
)

// starts hands commands to the one thread that starts them all: a child is told to die with its parent (a test that times out
// runs no clean-up), and to Linux the parent is the thread.
var starts = func() chan<- func() {
	ch := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range ch {
			f()
		}
	}()
	return ch
}()

func start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := make(chan error)
	starts <- func() { err <- cmd.Start() }
	return <-err
}
