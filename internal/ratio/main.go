// Command ratio measures a backend against what a careful user writes by hand
// (naive) and against the bare engine doing the same writes (floor).
//
//	go run ./internal/ratio -backend bolt
//
// On a machine that is shared and noisy only ratios of what ran side by side in
// one process count. So the contenders of a line take turns in short rounds; the
// ratio is formed for each round, and its median and quartiles are printed. A
// line fails only if the better quartile misses the target as well.
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Settings are what the flags say.
type settings struct {
	stored  int // records in the storage before the measurement
	callers []int
	rounds  int
	slice   time.Duration // how long a contender runs in a round
	only    *regexp.Regexp
	growth  bool
	dir     string
}

// backends has the lines of each backend.
var backends = map[string]func(*bench) error{
	"bolt":     boltLines,
	"postgres": postgresLines,
	"redis":    redisLines,
}

func main() {
	var s settings
	backend := flag.String("backend", "bolt", "which backend")
	callers := flag.String("c", "1,8,64,512", "numbers of concurrent callers")
	only := flag.String("only", "", "measure only the lines whose name matches this expression")
	flag.IntVar(&s.stored, "stored", 1_000_000, "records that are stored before the measurement")
	flag.IntVar(&s.rounds, "rounds", 11, "rounds")
	flag.DurationVar(&s.slice, "slice", 300*time.Millisecond, "how long a contender runs in a round")
	flag.BoolVar(&s.growth, "growth", false, "measure growth as well: 5,000,000 records against 100,000")
	flag.StringVar(&s.dir, "dir", os.TempDir(), "directory on a real disk")
	flag.Parse()
	s.only = regexp.MustCompile(*only)
	for _, c := range strings.Split(*callers, ",") {
		n, err := strconv.Atoi(c)
		if err != nil || n < 1 {
			fail(fmt.Errorf("-c %s: %q is not a number of callers", *callers, c))
		}
		s.callers = append(s.callers, n)
	}
	lines, ok := backends[*backend]
	if !ok {
		fail(fmt.Errorf("-backend %s: there is no such backend", *backend))
	}
	b := &bench{settings: s}
	if err := lines(b); err != nil {
		fail(err)
	}
	if b.missed > 0 {
		fail(fmt.Errorf("%d lines miss their target", b.missed))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "ratio:", err)
	os.Exit(1)
}
