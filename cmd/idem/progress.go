package main

import (
	"time"

	"github.com/schollz/progressbar/v3"
)

// A progress shows on a terminal how far long work has come. Before the first step
// it shows nothing, so that work of a single step is not disturbed by it.
type progress struct {
	session *session
	what    string
	total   int64 // -1: not known
	bar     *progressbar.ProgressBar
}

// progress returns one for work whose amount is not known. The caller ends it.
func (s *session) progress(what string) *progress { return s.progressOf(what, -1) }

// progressOf returns one for a known amount of work, if that is above 0.
func (s *session) progressOf(what string, total int64) *progress {
	if total == 0 {
		total = -1
	}
	return &progress{session: s, what: what, total: total}
}

// add counts n more done.
func (p *progress) add(n int) {
	if !isTerminal(p.session.stderr) {
		return
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions64(p.total,
			progressbar.OptionSetDescription(p.what),
			progressbar.OptionSetWriter(p.session.stderr),
			progressbar.OptionShowCount(),
			progressbar.OptionShowIts(),
			progressbar.OptionSetItsString("records"),
			progressbar.OptionSetWidth(10),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish(),
			progressbar.OptionSetRenderBlankState(true),
		)
	}
	_ = p.bar.Add(n) // it shows progress, and makes none
}

// end clears what was shown.
func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
