//go:build unix && !linux

package main

// stopServers has nothing to stop: servers are started by tests on Linux only.
func stopServers() {}
