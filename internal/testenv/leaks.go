package testenv

import (
	"fmt"
	"os"

	"go.uber.org/goleak"
)

// Leaks returns the exit code of a TestMain: that of the tests, or 1 if they have
// passed and goroutines are left behind.
func Leaks(code int) int {
	if code != 0 {
		return code
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
