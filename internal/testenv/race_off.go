//go:build !race

package testenv

// Race tells whether the race detector is on: it slows down and allocates.
const Race = false
