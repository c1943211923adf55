//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package bolt

import "os"

// tryLock leaves it to bbolt to take its lock: on these systems it does not
// belong to the open file.
func tryLock(*os.File, bool) (bool, error) { return true, nil }

// syncDir does nothing: on these systems a directory cannot be synced.
func syncDir(string) error { return nil }
