package idemtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

// How long things are waited for. None of these is an assertion on speed.
const (
	quiet    = 50 * time.Millisecond // a request that shows no sign of life for so long waits for another one
	patience = 20 * time.Second      // after which a request counts as hanging
	tries    = 6                     // of a request that nothing stands in the way of any more
)

// A scenario is one way in which requests are repeated.
type scenario struct {
	name string

	// did says what is done, and users what somebody sees if it goes wrong, each
	// in a sentence.
	did, users string

	// causes are the mistakes that usually show here, the likeliest first.
	causes []cause

	// missing returns why the scenario cannot be tried with op, or "".
	missing func(op Operation) string

	run func(c *scene)
}

// check runs the scenario and reports to t.
func (s scenario) check(t testing.TB, op Operation) {
	t.Helper()
	if op.Callers <= 0 {
		op.Callers = 8
	}
	if op.known == nil {
		op.known = &known{test: t.Name()}
	}
	if s.missing != nil {
		if why := s.missing(op); why != "" {
			t.Skip("not tested: " + why)
		}
	}
	c := &scene{t: t, scenario: s, op: op, key: idem.NewKey()}
	defer c.end()
	s.run(c)
}

// A scene is a scenario that is being played with a program.
type scene struct {
	scenario
	t   testing.TB
	op  Operation
	key string

	e       *Env
	subject Subject
	base    int // effects at the beginning
	event   int // number of events at the beginning
	cleanup []func()

	mu      sync.Mutex
	running int
	calls   []*call
	sent    map[operation]bool // since mark
}

// An operation is what requests are about that have it in common.
type operation struct{ tenant, key string }

// begin starts the program, in home if that is not "".
func (c *scene) begin(home string) {
	c.t.Helper()
	c.e = &Env{t: c.t, home: home}
	c.subject = c.op.Setup(c.t, c.e)
	if c.subject.Send == nil {
		c.t.Errorf("Subject.Send is nil: there is nothing to send requests with")
		c.t.FailNow()
	}
	c.op.known.started = true
	c.op.known.usesDir = c.op.known.usesDir || c.e.usesDir
	c.mark()
}

// mark lets effects be counted from here.
func (c *scene) mark() {
	c.base = c.total()
	c.event = len(c.e.seen(0))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = make(map[operation]bool)
}

func (c *scene) total() int {
	if c.subject.Effects != nil {
		return c.subject.Effects()
	}
	return c.e.count()
}

// effects returns how many effects there were since mark.
func (c *scene) effects() int { return c.total() - c.base }

// end lets go of everything and waits for the calls that are still under way.
func (c *scene) end() {
	for _, f := range c.cleanup {
		f()
	}
	c.mu.Lock()
	calls := c.calls
	c.mu.Unlock()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for _, call := range calls {
		call.cancel()
	}
	for _, call := range calls {
		select {
		case <-call.done:
		case <-limit.C:
			return // it has been reported as hanging
		}
	}
}

// A call is a request that has been sent.
type call struct {
	cancel context.CancelFunc
	done   chan struct{}
	reply  reply // once done is closed
}

// A reply is what the caller was told.
type reply struct {
	answer string
	err    error
}

// answered reports whether the caller has an answer: he does not try again.
func (r reply) answered() bool { return r.err == nil }

func (r reply) String() string {
	if r.err != nil {
		return "the error " + quoted(r.err.Error())
	}
	if r.answer == "" {
		return "an empty answer (for a message: it was acknowledged)"
	}
	return "the answer " + quoted(r.answer)
}

// quoted returns s so that it can be told from the sentence around it.
func quoted(s string) string {
	const limit = 300
	if len(s) > limit {
		s = s[:limit] + "..."
	}
	if s != "" && strconv.CanBackquote(s) {
		return "`" + s + "`"
	}
	return strconv.Quote(s)
}

// request returns the request of the scenario, with its n-th payload.
func (c *scene) request(n int) Request {
	r := Request{Key: c.key}
	if c.op.Payload != nil {
		r.Payload = c.op.Payload(n)
	}
	if len(c.op.Tenants) > 0 {
		r.Tenant = c.op.Tenants[0]
	}
	return r
}

// start sends a request and does not wait for its answer.
func (c *scene) start(r Request) *call {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	a := &call{cancel: cancel, done: make(chan struct{})}
	c.mu.Lock()
	c.running++
	c.calls = append(c.calls, a)
	c.sent[operation{r.Tenant, r.Key}] = true
	c.mu.Unlock()
	go func() {
		returned := false
		defer func() {
			if p := recover(); p != nil {
				a.reply = reply{err: fmt.Errorf("Send panicked: %v", p)}
			} else if !returned {
				a.reply = reply{err: errors.New("Send did not return: it ended its goroutine")}
			}
			cancel() // as a server does when the caller has his answer
			c.mu.Lock()
			c.running--
			c.mu.Unlock()
			close(a.done)
		}()
		r.Payload = bytes.Clone(r.Payload)
		a.reply.answer, a.reply.err = c.subject.Send(ctx, r)
		returned = true
	}()
	return a
}

// wait returns what the caller was told.
func (c *scene) wait(a *call) reply {
	c.t.Helper()
	limit := time.NewTimer(patience + patience/4) // whoever keeps to his context has ended by then
	defer limit.Stop()
	select {
	case <-a.done:
		return a.reply
	case <-limit.C:
	}
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	c.failf("The request hangs: Send did not return although its context was done.\n%s", stacks)
	return reply{}
}

// send sends a request and returns what the caller was told.
func (c *scene) send(r Request) reply {
	c.t.Helper()
	return c.wait(c.start(r))
}

// ask sends a request as callers do that need an answer: again and again, until
// there is one. It gives up when nothing stands in the way any more and the
// answer is still not given. Time passes between the attempts: the leases of
// those who are gone run out.
func (c *scene) ask(r Request) reply {
	c.t.Helper()
	begun := time.Now()
	pause := 5 * time.Millisecond
	for alone := 0; ; {
		c.mu.Lock()
		others := c.running > 0
		c.mu.Unlock()
		if !others {
			c.e.lapse()
			alone++
		}
		got := c.send(r)
		if got.answered() || alone == tries || time.Since(begun) > patience {
			return got
		}
		rest := time.NewTimer(pause)
		<-rest.C
		pause = min(2*pause, 80*time.Millisecond)
	}
}

// first sends the first request, which nothing disturbs, and returns its answer.
func (c *scene) first() reply {
	c.t.Helper()
	return c.clean(c.request(0))
}

// clean sends a request that nothing disturbs and checks that it is answered and
// has one effect more: what is not so is no fault of repetitions.
func (c *scene) clean(r Request) reply {
	c.t.Helper()
	before := c.effects()
	got := c.send(r)
	switch n := c.effects() - before; {
	case !got.answered():
		c.t.Errorf("a single request, to which nothing was done, got %v: there is nothing to repeat yet. Look at Setup and Send", got)
		c.t.FailNow()
	case n != 1:
		c.t.Errorf("a single request, to which nothing was done, got %v and had %d effects that the kit can see: let the effect go through Env.Effect, or set Subject.Effects", got, n)
		c.t.FailNow()
	}
	return got
}

// A stop holds the program at its effect.
type stop struct {
	arrived chan struct{} // gets a value for each request that has come
	open    func()        // lets all go on; may be called again
	opened  chan struct{}
}

func (c *scene) newStop() *stop {
	opened := make(chan struct{})
	s := &stop{arrived: make(chan struct{}, 1000), opened: opened, open: sync.OnceFunc(func() { close(opened) })}
	c.cleanup = append(c.cleanup, s.open)
	return s
}

func (s *stop) hold() {
	select {
	case s.arrived <- struct{}{}:
	default:
	}
	<-s.opened
}

// settleAll waits until each of the calls has ended or come to the stop, or until
// nothing has happened for a while.
func (c *scene) settleAll(calls []*call, s *stop) {
	ended := make(chan struct{}, len(calls))
	for _, a := range calls {
		go func() {
			<-a.done
			ended <- struct{}{}
		}()
	}
	for range calls {
		still := time.NewTimer(quiet)
		select {
		case <-ended:
		case <-s.arrived:
		case <-still.C:
			return
		}
		still.Stop()
	}
}

// settle waits until a call has ended or come to the stop, or until it waits for
// another one, as far as can be told. It reports whether it came to the stop.
func (c *scene) settle(a *call, s *stop) (arrived bool) {
	still := time.NewTimer(quiet)
	defer still.Stop()
	select {
	case <-a.done:
	case <-s.arrived:
		return true
	case <-still.C:
	}
	return false
}

// reaches waits until the first call comes to the stop. A program that does not
// show its effect cannot be stopped there.
func (c *scene) reaches(a *call, s *stop) {
	c.t.Helper()
	select {
	case <-s.arrived:
	case <-a.done:
		select {
		case <-s.arrived: // both, and Go chose the other
		default:
			c.skipUnshown(a.reply)
		}
	}
}

// skipUnshown ends a scenario that has to know when the effect happens.
func (c *scene) skipUnshown(first reply) {
	c.t.Helper()
	if !first.answered() {
		c.t.Errorf("a single request, to which nothing was done, got %v: there is nothing to repeat yet. Look at Setup and Send", first)
		c.t.FailNow()
	}
	c.t.Skip("not tested: the program does not call Env.Effect where its effect is")
}

// needsWrap skips a scenario for which the storage has to fail.
func (c *scene) needsWrap() {
	c.t.Helper()
	if len(c.e.wrapped()) == 0 {
		c.t.Skip("not tested: Setup did not give its backend to Env.Wrap")
	}
}
