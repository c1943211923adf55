//go:build !linux

package bolt

// linuxJobs are what a child can do on Linux only.
var linuxJobs map[string]func(args []string) error
