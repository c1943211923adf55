package conformancetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/idem-go/idem"
)

const (
	ruleWatch        = "Watch returns nil when the record under key no longer has the token; it may return early."
	ruleWatchAtOnce  = "Watch returns at once if the record does not have the token to begin with."
	ruleWatchContext = "Watch returns the context's error when the context is done."
)

var watchCases = []testCase{
	{name: "Change", rule: ruleWatch, needs: needWatcher, run: testWatchChange},
	{name: "ChangeByPeer", rule: ruleWatch, needs: needWatcher, run: testWatchPeer},
	{name: "Many", rule: ruleWatch, needs: needWatcher, run: testWatchMany},
	{name: "RacingChange", rule: ruleWatch, needs: needWatcher, run: testWatchRace},
	{name: "AtOnce", rule: ruleWatchAtOnce, needs: needWatcher, run: testWatchAtOnce},
	{name: "ContextEnds", rule: ruleWatchContext, needs: needWatcher, run: testWatchContext},
	{name: "ContextDone", rule: ruleWatchContext, needs: needWatcher, run: testWatchContextDone},
}

// watch watches until the record is another one, however early Watch returns.
func (e *env) watch(w idem.Watcher, b idem.Backend, key, token string) {
	for {
		if err := w.Watch(e.ctx, key, token); err != nil {
			e.errorf("Watch failed: %v", err)
			return
		}
		if r, err := b.Get(e.ctx, key); err != nil || r.Token != token {
			return
		}
	}
}

// watched starts watchers and returns a channel that is closed when all of them
// have seen the record change.
func (e *env) watched(n int, key, token string) <-chan struct{} {
	seen := make(chan struct{})
	var all sync.WaitGroup
	for range n {
		all.Go(func() { e.watch(e.b.(idem.Watcher), e.b, key, token) })
	}
	go func() {
		all.Wait()
		close(seen)
	}()
	return seen
}

func (e *env) wantSeen(what string, seen <-chan struct{}) {
	e.t.Helper()
	e.promptly("Watch after "+what, func() { <-seen })
}

func testWatchChange(e *env) {
	now := e.put("k", newRecord(idem.InProgress))
	for _, s := range []idem.Status{idem.InProgress, idem.Completed, idem.Released, idem.InProgress} {
		seen := e.watched(1, "k", now.Token)
		next := newRecord(s)
		e.want("Swap", e.swap(e.b, "k", now.Token, next), next)
		e.wantSeen("a Swap", seen)
		now = next
	}
}

func testWatchPeer(e *env) {
	peer := e.peer()
	r := e.put("k", newRecord(idem.InProgress))
	for range 3 {
		seen := e.watched(1, "k", r.Token)
		next := successor(r)
		e.want("Swap by a peer", e.swap(peer, "k", r.Token, next), next)
		e.wantSeen("a Swap by a peer", seen)
		r = next
	}
}

// testWatchMany wakes all watchers of a key and none of another's.
func testWatchMany(e *env) {
	r := e.put("k", newRecord(idem.InProgress))
	other := e.put("other", newRecord(idem.InProgress))
	seen := e.watched(50, "k", r.Token)
	stays := e.watched(3, "other", other.Token)
	next := newRecord(idem.Completed)
	e.want("Swap", e.swap(e.b, "k", r.Token, next), next)
	e.wantSeen("a Swap that many wait for", seen)
	select {
	case <-stays:
		e.errorf("watchers of another key have seen a change")
	default:
	}
	next = newRecord(idem.Completed)
	e.want("Swap", e.swap(e.b, "other", other.Token, next), next)
	e.wantSeen("a Swap of the other key", stays)
}

// testWatchRace changes the record just when Watch begins.
func testWatchRace(e *env) {
	now := e.put("k", newRecord(idem.InProgress))
	for range rounds(100) {
		next := newRecord(idem.InProgress)
		seen := make(chan struct{})
		together(2, func(i int) {
			if i == 0 {
				go func() {
					defer close(seen)
					e.watch(e.b.(idem.Watcher), e.b, "k", now.Token)
				}()
				return
			}
			e.swap(e.b, "k", now.Token, next)
		})
		e.wantSeen("a Swap at the same time", seen)
		now = next
	}
}

func testWatchAtOnce(e *env) {
	w := e.b.(idem.Watcher)
	r := e.put("k", newRecord(idem.InProgress))
	done := newRecord(idem.Completed)
	e.want("Swap", e.swap(e.b, "k", r.Token, done), done)
	for what, watch := range map[string][2]string{
		"of a record that was replaced":      {"k", r.Token},
		"of a token that never was":          {"k", "no.such"},
		"of an absent key":                   {"absent", r.Token},
		"of a record with the token unknown": {"k", ""},
	} {
		e.promptly("Watch "+what, func() {
			if err := w.Watch(e.ctx, watch[0], watch[1]); err != nil {
				e.errorf("Watch %s failed: %v", what, err)
			}
		})
	}
}

func testWatchContext(e *env) {
	w := e.b.(idem.Watcher)
	r := e.put("k", newRecord(idem.InProgress))
	cancelled, cancel := context.WithCancel(e.ctx)
	defer cancel()
	late, stop := context.WithTimeout(e.ctx, 50*time.Millisecond)
	defer stop()
	for ctx, want := range map[context.Context]error{cancelled: context.Canceled, late: context.DeadlineExceeded} {
		time.AfterFunc(20*time.Millisecond, cancel)
		e.promptly("Watch with a context that ends", func() {
			for {
				err := w.Watch(ctx, "k", r.Token)
				switch {
				case err == nil && ctx.Err() == nil: // early, as it may
				case !errors.Is(err, want):
					e.errorf("Watch with a context that ended: the error is %v, want %q", err, want)
					return
				default:
					return
				}
			}
		})
	}
	// The next watcher is not harmed by those who have gone.
	seen := e.watched(1, "k", r.Token)
	e.swap(e.b, "k", r.Token, newRecord(idem.Completed))
	e.wantSeen("others gave up", seen)
}

func testWatchContextDone(e *env) {
	w := e.b.(idem.Watcher)
	r := e.put("k", newRecord(idem.InProgress))
	for ctx, want := range e.doneContexts() {
		e.promptly("Watch with a context that is done", func() {
			if err := w.Watch(ctx, "k", r.Token); !errors.Is(err, want) {
				e.errorf("Watch with a context that is done: the error is %v, want %q", err, want)
			}
		})
	}
}
