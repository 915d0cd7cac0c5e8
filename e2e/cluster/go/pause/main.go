// The sandbox container of a pod: it keeps the namespaces open and reaps orphaned processes until SIGTERM.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	received := make(chan os.Signal, 1)
	signal.Notify(received, syscall.SIGCHLD, syscall.SIGINT, syscall.SIGTERM)
	for s := range received {
		if s == syscall.SIGINT || s == syscall.SIGTERM {
			os.Exit(0)
		}
		for reapOne() {
		}
	}
}

// reapOne reports whether an exited child was reaped.
func reapOne() bool {
	pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
	return err == nil && pid > 0
}
