//go:build !linux

package main

import "os"

// fileSystem judges where the file is, and how much room there is.
func (d *diagnosis) fileSystem(string, os.FileInfo) {
	d.add(skip, "space", "", "how much room the file system has is not looked at on this system")
	d.add(ok, "durability", "", "a write is acknowledged when it is synced")
}

// holder tells which process has the lock of the file at this moment.
func (d *diagnosis) holder(string) {
	d.add(skip, "lock", "", "who holds the file is not looked at on this system")
}
