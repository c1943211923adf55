package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A bench measures lines and counts those that miss their target.
type bench struct {
	settings
	missed int
	head   sync.Once
}

// A contender does a piece of work over and over; c of them run at once, each
// with its own number.
type contender func(caller int) error

// A line is one ratio: how much faster work is than base.
type line struct {
	name   string
	c      int
	target float64 // at least; at most if it is negative; 0 for none
	work   contender
	base   contender

	// Where one call does the work of several, how many.
	workDoes, baseDoes int

	baseRuns int // how many of base run at once; c if 0
}

// measure runs the rounds of a line and prints it.
func (b *bench) measure(l line) error {
	if !b.only.MatchString(l.name) {
		return nil
	}
	if l.baseRuns == 0 {
		l.baseRuns = l.c
	}
	l.workDoes, l.baseDoes = max(l.workDoes, 1), max(l.baseDoes, 1)
	var ratios, rates []float64
	for round := range b.rounds + 1 {
		work, err := b.rate(l.work, l.c)
		if err != nil {
			return fmt.Errorf("%s, c=%d: %w", l.name, l.c, err)
		}
		base, err := b.rate(l.base, l.baseRuns)
		if err != nil {
			return fmt.Errorf("%s, c=%d, base: %w", l.name, l.c, err)
		}
		if round > 0 { // the first one warms up
			work *= float64(l.workDoes)
			ratios = append(ratios, work/(base*float64(l.baseDoes)))
			rates = append(rates, work)
		}
	}
	b.print(l.name, l.c, l.target, ratios, fmt.Sprintf("%.0f/s", median(rates)))
	return nil
}

// rate lets c callers run for a slice of time and returns how often they got
// through in a second.
func (b *bench) rate(work contender, c int) (float64, error) {
	var count atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	start := time.Now()
	stop := start.Add(b.slice)
	for caller := range c {
		wg.Go(func() {
			for time.Now().Before(stop) && failed.Load() == nil {
				if err := work(caller); err != nil {
					failed.Store(&err)
					return
				}
				count.Add(1)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(count.Load()) / time.Since(start).Seconds(), nil
}

// print prints one line and judges it.
func (b *bench) print(name string, c int, target float64, values []float64, note string) {
	b.head.Do(func() {
		fmt.Printf("%-44s %4s %8s %8s %8s %8s  %-6s %s\n", "", "c", "target", "median", "lower", "upper", "", "")
		fmt.Println(strings.Repeat("-", 104))
	})
	slices.Sort(values)
	lower, upper := quantile(values, 0.25), quantile(values, 0.75)
	verdict, bound := "", "-"
	switch {
	case target > 0:
		bound = fmt.Sprintf(">= %.4g", target)
		verdict = b.judge(median(values) >= target, upper >= target)
	case target < 0:
		bound = fmt.Sprintf("<= %.4g", -target)
		verdict = b.judge(median(values) <= -target, lower <= -target)
	}
	fmt.Printf("%-44s %4d %8s %8.3g %8.3g %8.3g  %-6s %s\n", name, c, bound, median(values), lower, upper, verdict, note)
}

func (b *bench) judge(met, nearly bool) string {
	switch {
	case met:
		return "met"
	case nearly:
		return "near"
	}
	b.missed++
	return "MISSED"
}

// quantile returns the q-quantile of sorted values.
func quantile(sorted []float64, q float64) float64 {
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

func median(values []float64) float64 {
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	return quantile(sorted, 0.5)
}
