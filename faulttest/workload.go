package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/idem-go/idem"
)

// A plan says how much happens in one history.
type plan struct {
	workers, keys, rounds int
	days                  int // after each of which the callers come back when most records have expired
	lease                 time.Duration
	patience              time.Duration // the longest that a call may take
	slack                 time.Duration // see state.clockSlack
	repeats               bool          // the client repeats by itself what it got no answer to, and does not say so
	scope                 string        // of its keys, where histories share a storage
}

// A worker is one caller.
type worker struct {
	plan
	*history
	rnd     *rand.Rand
	number  int
	n       int // of the results that it has made
	stores  map[idem.LapsePolicy]*idem.Store
	storage idem.Backend
}

// perform lets the callers of a plan loose on a storage and returns what they were
// told. The error is an answer that no Store may give in any state.
func perform(p plan, b idem.Backend, seed uint64) (*history, error) {
	h := newHistory(p)
	stores := make(map[idem.LapsePolicy]*idem.Store)
	for _, policy := range []idem.LapsePolicy{idem.Takeover, idem.Hold} {
		s, err := idem.New(b, &idem.Options{Scope: p.scope, Lease: p.lease, OnLapse: policy})
		if err != nil {
			return nil, err
		}
		stores[policy] = s
	}
	var wg sync.WaitGroup
	for i := range p.workers {
		w := &worker{plan: p, history: h, number: i, rnd: rand.New(rand.NewPCG(seed, uint64(i))), stores: stores, storage: b}
		wg.Go(w.work)
	}
	wg.Wait()
	last := &worker{plan: p, history: h, number: p.workers, rnd: rand.New(rand.NewPCG(seed, uint64(p.workers))), stores: stores, storage: b}
	for i := range p.keys {
		last.lookup(key(i)) // what is left in the end has to follow from the rest
	}
	return h, h.err
}

func (w *worker) work() {
	for day := range w.days {
		if day > 0 {
			// Half of what was completed the day before is expired by now, the
			// rest expires while the callers go on.
			next := time.Duration(day)*(idem.MinRetention+w.lease) - time.Since(w.start)
			w.sleep(next)
		}
		for range w.rounds {
			w.round()
		}
	}
}

// sleep is what callers do that are not there in time. Nobody waits for them.
func (w *worker) sleep(d time.Duration) { time.Sleep(d) }

func (w *worker) roll(percent int) bool { return w.rnd.IntN(100) < percent }

func (w *worker) round() {
	k := key(w.rnd.IntN(w.keys))
	switch n := w.rnd.IntN(100); {
	case n < 18:
		w.lookup(k)
	case n < 20:
		w.sweep()
	case n < 26:
		w.decide(k, w.lookup(k).Attempt-w.rnd.IntN(2))
	case n < 31:
		w.try(k, foreign)
	default:
		w.try(k, own)
	}
}

// The payloads of the callers. Most of them ask for the same.
var (
	own     = idem.FingerprintOf([]byte("own"))
	foreign = idem.FingerprintOf([]byte("foreign"))
)

func key(i int) string { return "key-" + strconv.Itoa(i) }

// policy returns the policy of a key: Hold for a third of them.
func policy(key string) idem.LapsePolicy {
	if (key[len(key)-1]-'0')%3 == 0 {
		return idem.Hold
	}
	return idem.Takeover
}

func (w *worker) store(key string) *idem.Store { return w.stores[policy(key)] }

// A held is a claim and what its caller knows of it.
type held struct {
	*idem.Claim
	id    string
	frees bool
	over  bool // this copy has ended it
}

// try asks for the key and does what the answer calls for.
func (w *worker) try(k string, payload idem.Fingerprint) {
	c, held := w.begin(k, payload)
	switch {
	case c != nil:
		w.hold(c)
	case held > 0 && w.roll(60):
		w.decide(k, held)
	}
}

// decide finds out, or says so, what a lapsed attempt did.
func (w *worker) decide(k string, attempt int) {
	switch w.rnd.IntN(4) {
	case 0:
		w.outcome(resolve, k, attempt)
	case 1:
		w.outcome(forget, k, attempt)
	default:
		if c := w.reclaim(k, attempt); c != nil {
			w.hold(c)
		}
	}
}

// hold is what becomes of a claim.
func (w *worker) hold(c *held) {
	if w.roll(15) {
		w.do(checkpoint, c, w.text())
	}
	if w.roll(25) { // too long, mostly
		w.sleep(w.lease + time.Duration(w.rnd.Int64N(int64(w.lease))))
		if w.roll(50) {
			w.do(extend, c, "")
		}
	}
	if w.roll(12) {
		return // crashed
	}
	if w.roll(12) {
		w.do(extend, c, "")
	}
	end, result := release, ""
	switch n := w.rnd.IntN(100); {
	case n < 45:
		end, result = complete, w.text()
	case n < 60:
		end = abandon
	}
	w.do(end, c, result)
	if w.roll(25) { // the last request again, by this copy or another
		if w.roll(50) {
			c = w.copied(c)
		}
		if end == complete && w.roll(50) {
			result = w.text()
		}
		w.do(end, c, result)
	}
	if end != complete && w.roll(40) { // an end that is not the end
		w.do([]op{extend, complete, release, abandon}[w.rnd.IntN(4)], c, w.text())
	}
}

// secret is in all results and notes. No error may show it.
const secret = "SECRET-7f3a"

// text returns a result that no other call has.
func (w *worker) text() string {
	w.n++
	return fmt.Sprintf("%s %d.%d", secret, w.number, w.n)
}

// copied returns the claim as another process would have it.
func (w *worker) copied(c *held) *held {
	text, err := c.MarshalText()
	if err != nil {
		w.broken("MarshalText", err)
		return c
	}
	other := &idem.Claim{}
	if err := other.UnmarshalText(text); err != nil {
		w.broken("UnmarshalText", err)
		return c
	}
	return &held{Claim: other, id: c.id, frees: c.frees}
}

// asking begins a call: its request, what it sends, and its context.
func (w *worker) asking(what op, k string) (request, *sent, context.Context, context.CancelFunc) {
	patience := w.patience
	if w.roll(3) { // gives up soon
		patience = time.Duration(w.rnd.Int64N(int64(w.patience))) / 16
	}
	q := request{op: what, key: k, lease: w.lease, ttl: w.lease + idem.MinRetention}
	if policy(k) == idem.Hold {
		q.hold, q.ttl = true, 100*365*24*time.Hour
	}
	s := &sent{}
	if w.repeats {
		// Others can take the place of what a call has written when its lease is
		// over; what Forget has freed is theirs at once.
		if s.repeated = w.lease / 2; what == forget {
			s.repeated = 1
		}
	}
	ctx, cancel := context.WithTimeout(withSent(context.Background(), s), patience)
	q.call = w.now()
	return q, s, ctx, cancel
}

func (w *worker) begin(k string, payload idem.Fingerprint) (c *held, unresolvedAttempt int) {
	q, s, ctx, cancel := w.asking(begin, k)
	defer cancel()
	q.payload = short(payload)
	claim, done, err := w.store(k).Begin(ctx, k, payload)
	q.ret = w.now()
	a := answer{}
	switch {
	case claim != nil:
		return w.granted(q, s, claim), 0
	case done != nil:
		a.said, a.record = replayed, show(*done)
	default:
		a = w.refusal(q, err)
	}
	w.note(q, a, s)
	if a.said == unresolved {
		unresolvedAttempt = a.record.attempt
	}
	return nil, unresolvedAttempt
}

func (w *worker) granted(q request, s *sent, claim *idem.Claim) *held {
	_, last := s.result()
	q.id = attemptID(last.Token)
	w.note(q, answer{said: granted, takeover: claim.Takeover, record: seen{
		attempt: claim.Attempt, fence: claim.Fence, payload: short(claim.Fingerprint), note: string(claim.Checkpoint),
	}}, s)
	return &held{Claim: claim, id: q.id, frees: q.op == reclaim || !claim.Takeover}
}

func (w *worker) reclaim(k string, attempt int) *held {
	q, s, ctx, cancel := w.asking(reclaim, k)
	defer cancel()
	q.attempt = attempt
	claim, err := w.store(k).Reclaim(ctx, k, attempt)
	q.ret = w.now()
	if claim != nil {
		return w.granted(q, s, claim)
	}
	w.note(q, w.refusal(q, err), s)
	return nil
}

func (w *worker) outcome(what op, k string, attempt int) {
	q, s, ctx, cancel := w.asking(what, k)
	defer cancel()
	q.attempt = attempt
	var err error
	if what == resolve {
		q.result = w.text()
		err = w.store(k).Resolve(ctx, k, attempt, resultOf(q.result))
	} else {
		err = w.store(k).Forget(ctx, k, attempt)
	}
	q.ret = w.now()
	w.note(q, w.refusal(q, err), s)
}

// do takes a step of a claim.
func (w *worker) do(what op, c *held, text string) {
	q, s, ctx, cancel := w.asking(what, c.Key)
	defer cancel()
	q.id, q.frees = c.id, c.frees
	store := w.store(c.Key)
	var err error
	switch what {
	case complete:
		q.result = text
		err = store.Complete(ctx, c.Claim, resultOf(text))
	case release:
		q.local = c.over
		err = store.Release(ctx, c.Claim)
	case abandon:
		q.local = c.over
		err = store.Abandon(ctx, c.Claim)
	case extend:
		err = store.Extend(ctx, c.Claim)
	case checkpoint:
		q.note = text
		err = store.Checkpoint(ctx, c.Claim, []byte(text))
	}
	q.ret = w.now()
	if err == nil {
		c.over = what != extend && what != checkpoint
	}
	w.note(q, w.refusal(q, err), s)
}

func (w *worker) lookup(k string) idem.Record {
	q, s, ctx, cancel := w.asking(lookup, k)
	defer cancel()
	r, err := w.store(k).Lookup(ctx, k)
	q.ret = w.now()
	if err == nil {
		w.note(q, answer{said: ok, record: show(r)}, s)
	} else {
		w.note(q, w.refusal(q, err), s)
	}
	return r
}

func (w *worker) sweep() {
	ctx, cancel := context.WithTimeout(context.Background(), w.patience)
	defer cancel()
	// A fault is no answer; what a sweep may not delete is missed later.
	_, _ = w.storage.Sweep(ctx, 1+w.rnd.IntN(20))
}

// refusal returns what an error says.
func (w *worker) refusal(q request, err error) answer {
	if err == nil {
		return answer{said: ok}
	}
	e, _ := errors.AsType[*idem.Error](err)
	if e == nil {
		w.broken(string(q.op), err)
		return answer{said: unknown}
	}
	if strings.Contains(err.Error(), secret) {
		w.broken(string(q.op), fmt.Errorf("the error shows what is stored: %w", err))
	}
	a := answer{record: show(e.Record)}
	switch {
	case errors.Is(err, idem.ErrUnavailable):
		a.said = unknown
	case errors.Is(err, idem.ErrMismatch):
		a.said = mismatch
	case errors.Is(err, idem.ErrInProgress):
		a.said = inProgress
		if after := e.RetryAfter(); after <= 0 || after > w.lease {
			w.broken(string(q.op), fmt.Errorf("RetryAfter is %v, the lease %v", after, w.lease))
		}
	case errors.Is(err, idem.ErrUnresolved):
		a.said = unresolved
	case errors.Is(err, idem.ErrLost):
		a.said = lost
	case errors.Is(err, idem.ErrCompleted):
		a.said = completed
	default:
		w.broken(string(q.op), err)
		a.said = unknown
	}
	return a
}

// resultOf returns a result for a text, and resultText the text of a result.
func resultOf(text string) idem.Result {
	return idem.Result{Code: 200, Meta: map[string]string{"of": text}, Body: []byte(text)}
}

func resultText(r idem.Result) string {
	text := string(r.Body)
	if !r.Equal(resultOf(text)) {
		return fmt.Sprintf("damaged: %+v", r)
	}
	return text
}

func show(r idem.Record) seen {
	s := seen{
		status: r.Status, attempt: r.Attempt, fence: r.Fence, id: attemptID(r.Token), payload: short(r.Fingerprint),
		note: string(r.Checkpoint), lapsed: r.Lapsed(),
	}
	if r.Status == idem.Completed && !r.Result.Equal(idem.Result{}) {
		s.result = resultText(r.Result)
	}
	return s
}

func short(fp idem.Fingerprint) string {
	switch fp {
	case own:
		return "own"
	case foreign:
		return "foreign"
	case idem.Fingerprint{}:
		return ""
	}
	return fp.String()
}
