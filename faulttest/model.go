// Package faulttest drives a Store through faults and checks what it answered.
//
// Many callers share few keys. They begin, complete, release, extend, fall asleep
// for longer than their lease, die, come back, and ask again; the line to the
// storage loses their requests and the answers. What each of them was told is
// written down as a history, and porcupine looks for one order of the calls in
// which all answers are right. If there is none, the storage has broken its word.
//
// The model of this file is what is right. The backends of mutants.go are wrong on
// purpose, and show that the check would notice.
package faulttest

import (
	"time"

	"github.com/idem-go/idem"
)

// An op is one call of a Store, or a part of one that nobody got an answer to.
type op string

const (
	begin      op = "Begin"
	complete   op = "Complete"
	release    op = "Release"
	abandon    op = "Abandon"
	extend     op = "Extend"
	checkpoint op = "Checkpoint"
	lookup     op = "Lookup"
	resolve    op = "Resolve"
	forget     op = "Forget"
	reclaim    op = "Reclaim"
	giveBack   op = "give back" // what Begin and Reclaim try when they fail
)

// late is how long what an unanswered call has asked for may still happen. It is
// longer than a history takes, and shorter than anything takes to expire.
const late = 30 * time.Minute

// A request is one call. Times are nanoseconds since the history began.
type request struct {
	op         op
	key        string
	call, ret  int64
	id         string // of the attempt that calls
	payload    string
	lease, ttl time.Duration // of a record in progress that the call writes
	hold       bool          // the policy is Hold
	attempt    int           // that Resolve, Forget or Reclaim is about, or that an unanswered claim would be
	fence      int64         // of an unanswered claim
	takeover   bool          // an unanswered claim takes over
	result     string        // of Complete and Resolve
	note       string        // of Checkpoint
	frees      bool          // Release of this claim frees the key
	local      bool          // the claim had ended already: the storage is not asked
}

// An answer is what a call returned.
type answer struct {
	said     said
	record   seen // what the call has shown of the record
	takeover bool // of the granted claim
}

type said string

const (
	unknown    said = "?"
	ok         said = "ok"
	granted    said = "granted"
	replayed   said = "replay"
	mismatch   said = "mismatch"
	inProgress said = "in progress"
	unresolved said = "unresolved"
	lost       said = "lost"
	completed  said = "completed otherwise"
)

// seen is a record as a caller sees it.
type seen struct {
	status  idem.Status
	attempt int
	fence   int64
	id      string
	payload string
	result  string
	note    string
	lapsed  bool
}

// A state is what the storage has under one key. When a lease ends and when a
// record expires is known only as well as the write before them: it took place
// between the call and its return.
type state struct {
	status     idem.Status
	attempt    int
	fence      int64 // stays when the record expires: no later one may be smaller
	id         string
	payload    string
	result     string
	note       string
	abandoned  bool
	ttl        time.Duration
	leaseEnds  span
	expires    span
	clockSlack time.Duration // by which clocks of the storage and of the history may differ over a lease
}

type span struct{ from, to int64 }

// after returns when something ends that lasts d from a write within the call q.
func after(q request, d time.Duration) span {
	return span{q.call + int64(d), q.ret + int64(d)}
}

// step returns what the storage may have after a call that got this answer; none
// if the answer is wrong.
func (s state) step(q request, a answer) []state {
	var next []state
	if a.said == unknown {
		next = append(next, s) // it may not have arrived
	}
	for _, now := range s.present(q) {
		if after, right := now.apply(q, a); right {
			next = append(next, after)
		}
	}
	return next
}

// present returns what may be there during a call: the record, or nothing if it
// may have expired.
func (s state) present(q request) []state {
	if s.status == 0 {
		return []state{s}
	}
	var all []state
	if q.call <= s.expires.to {
		all = append(all, s)
	}
	if q.ret >= s.expires.from {
		all = append(all, state{fence: s.fence, clockSlack: s.clockSlack})
	}
	return all
}

func (s state) apply(q request, a answer) (state, bool) {
	switch q.op {
	case begin:
		return s.begin(q, a)
	case reclaim, resolve, forget:
		return s.decide(q, a)
	case complete, extend, checkpoint:
		return s.goOn(q, a)
	case release, abandon:
		return s.quit(q, a)
	case lookup:
		return s, s.shows(a.record) && s.lapses(q, a.record)
	case giveBack:
		return s.giveBack(q)
	}
	return s, false
}

// mayHaveLapsed tells whether the lease may be over during the call.
func (s state) mayHaveLapsed(q request) bool {
	return s.status == idem.InProgress && (s.abandoned || q.ret >= s.leaseEnds.from-int64(s.clockSlack))
}

// mayRun tells whether the lease may be running during the call.
func (s state) mayRun(q request) bool {
	return s.status == idem.InProgress && !s.abandoned && q.call-int64(s.clockSlack) <= s.leaseEnds.to
}

// lapses tells whether what a record said of its lease may be right.
func (s state) lapses(q request, r seen) bool {
	switch {
	case s.status != idem.InProgress:
		return !r.lapsed
	case r.lapsed:
		return s.mayHaveLapsed(q)
	}
	return s.mayRun(q)
}

// shows tells whether a caller may have seen r.
func (s state) shows(r seen) bool {
	if s.status == 0 {
		return r == seen{}
	}
	r.lapsed = false
	return r == seen{status: s.status, attempt: s.attempt, fence: s.fence, id: s.id, payload: s.payload, result: s.result, note: s.note}
}

// holds tells whether the caller's attempt is the present one, and not done.
func (s state) holds(q request) bool {
	return s.status == idem.InProgress && s.id == q.id
}

func (s state) begin(q request, a answer) (state, bool) {
	free := s.status == 0 || s.status == idem.Released
	switch a.said {
	case granted:
		right := a.record.attempt == s.attempt+1 && a.record.fence > s.fence && a.takeover == !free
		if free {
			right = right && a.record.note == ""
		} else {
			right = right && s.payload == q.payload && !q.hold && s.mayHaveLapsed(q) && s.id != q.id && a.record.note == s.note
		}
		return s.claimed(q, a.record.fence), right
	case unknown:
		return s.claimed(q, q.fence), s.couldClaim(q)
	case replayed:
		return s, s.status == idem.Completed && s.payload == q.payload && s.shows(a.record)
	case mismatch:
		// The first payload's answer is none of this caller's business.
		a.record.result, a.record.note = s.result, s.note
		return s, !free && s.payload != q.payload && s.shows(a.record) && s.lapses(q, a.record)
	case inProgress:
		// Nobody is locked out by his own claim.
		return s, s.mayRun(q) && s.payload == q.payload && s.id != q.id && s.shows(a.record)
	case unresolved:
		return s, q.hold && s.mayHaveLapsed(q) && s.payload == q.payload && s.shows(a.record)
	}
	return s, false
}

// couldClaim tells whether a claim that nobody got an answer to may be granted.
func (s state) couldClaim(q request) bool {
	if q.attempt != s.attempt+1 || q.fence <= s.fence {
		return false
	}
	if q.takeover {
		return s.payload == q.payload && s.mayHaveLapsed(q)
	}
	return s.status == 0 || s.status == idem.Released
}

// claimed returns the state after the caller was granted the key.
func (s state) claimed(q request, fence int64) state {
	next := state{
		status: idem.InProgress, attempt: s.attempt + 1, fence: fence, id: q.id, payload: q.payload,
		ttl: q.ttl, clockSlack: s.clockSlack,
	}
	if s.status == idem.InProgress {
		next.note, next.payload = s.note, s.payload
		if q.op == reclaim {
			next.ttl = max(q.ttl, s.ttl)
		}
	}
	next.leaseEnds, next.expires = after(q, q.lease), after(q, next.ttl)
	return next
}

// goOn is a call by which an attempt goes on or gets done.
func (s state) goOn(q request, a answer) (state, bool) {
	mine := s.holds(q)
	again := q.op == complete && s.status == idem.Completed && s.id == q.id
	switch a.said {
	case ok:
		if again && s.result == q.result {
			return s, true
		}
		return s.wentOn(q), mine
	case unknown:
		return s.wentOn(q), mine
	case completed:
		return s, again && s.result != q.result && s.shows(a.record)
	case lost:
		return s, !mine && !again && s.shows(a.record)
	}
	return s, false
}

func (s state) wentOn(q request) state {
	switch q.op {
	case complete:
		return s.completed(q)
	case checkpoint:
		s.note = q.note
	}
	s.abandoned, s.ttl = false, max(s.ttl, q.ttl)
	s.leaseEnds, s.expires = after(q, q.lease), after(q, s.ttl)
	return s
}

// quit is a call by which an attempt ends without a result. It succeeds always.
func (s state) quit(q request, a answer) (state, bool) {
	if q.local || !s.holds(q) || s.abandoned {
		return s, a.said == ok
	}
	if q.op == release && q.frees {
		return s.released(q), true
	}
	return s.abandonedBy(q), true
}

// giveBack is what happens to a claim that nobody got an answer to: it is undone,
// or its place is taken by what it would have ended as.
func (s state) giveBack(q request) (state, bool) {
	switch {
	case s.holds(q):
	case s.couldClaim(q):
		s = s.claimed(q, q.fence)
	default:
		return s, false
	}
	if q.frees {
		return s.released(q), true
	}
	return s.abandonedBy(q), true
}

// decide is a call about an attempt whose lease is over.
func (s state) decide(q request, a answer) (state, bool) {
	this := s.attempt == q.attempt && (s.status == idem.InProgress || s.status == idem.Completed)
	open := this && s.mayHaveLapsed(q)
	switch a.said {
	case ok:
		if q.op == resolve && this && s.status == idem.Completed && s.result == q.result {
			return s, true
		}
		return s.decided(q), open
	case granted:
		return s.claimed(q, a.record.fence), open && a.takeover && a.record.attempt == s.attempt+1 &&
			a.record.fence > s.fence && a.record.note == s.note && a.record.payload == s.payload
	case unknown:
		if q.op == reclaim {
			return s.claimed(q, q.fence), s.couldClaim(q)
		}
		return s.decided(q), open
	case inProgress:
		return s, this && s.mayRun(q) && s.shows(a.record)
	case completed:
		return s, this && s.status == idem.Completed && (q.op != resolve || s.result != q.result) && s.shows(a.record)
	case lost:
		return s, !this && s.shows(a.record)
	}
	return s, false
}

func (s state) decided(q request) state {
	if q.op == resolve {
		return s.completed(q)
	}
	return s.released(q)
}

func (s state) completed(q request) state {
	return state{
		status: idem.Completed, attempt: s.attempt, fence: s.fence, id: s.id, payload: s.payload,
		result: q.result, clockSlack: s.clockSlack, expires: after(q, idem.MinRetention),
	}
}

func (s state) released(q request) state {
	return state{
		status: idem.Released, attempt: s.attempt, fence: s.fence, id: s.id,
		clockSlack: s.clockSlack, expires: after(q, max(time.Hour, q.lease)),
	}
}

func (s state) abandonedBy(q request) state {
	s.abandoned, s.ttl, s.leaseEnds = true, max(s.ttl, q.ttl), span{}
	s.expires = after(q, s.ttl)
	return s
}
