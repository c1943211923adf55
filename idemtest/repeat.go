package idemtest

import (
	"context"
	"slices"

	"github.com/idem-go/idem"
)

// What users see, of most second effects and of other faults, whatever was done.
const (
	doubled    = "somebody is charged twice, or gets the parcel, the mail, the booking twice"
	unanswered = "Who missed the first answer never gets it: the customer has paid, and is told that it failed. He pays again elsewhere, or calls. A queue delivers the message again and again, until it gives it up."
	twoAnswers = "Who asks again gets another receipt, number or status than the one that is true, and goes on with that."
	notDone    = "Somebody is told that all is done, and it never is: the order is lost, and nobody notices before the customer does."
	givenUp    = "Somebody is told that the request is wrong, and gives up, although all he had to do was to wait: the order is lost, or the message is in the dead letters."
)

var twice = scenario{
	name:   "Twice",
	did:    "The request was sent, answered, and sent again with the same key.",
	users:  "Somebody presses the button again, a job is started a second time, a queue delivers again: " + doubled + ".",
	causes: []cause{keyPerAttempt, noKey, notStored, outsideClaim, asAnError},
	run: func(c *scene) {
		c.begin("")
		first := c.first()
		for range 2 {
			c.same(first, c.ask(c.request(0)))
		}
	},
}

var replyLost = scenario{
	name:   "ReplyLost",
	did:    "The request was sent, its answer was thrown away as if the network had lost it, and its caller, who cannot know what happened, sent it again, three times at once.",
	users:  "A timeout, and the client or the proxy tries again: " + doubled + ".",
	causes: []cause{keyPerAttempt, noKey, notStored, outsideClaim, asAnError},
	run: func(c *scene) {
		c.begin("")
		first := c.first()
		again := []*call{c.start(c.request(0)), c.start(c.request(0)), c.start(c.request(0))}
		for _, a := range again {
			got := c.wait(a)
			if !got.answered() {
				got = c.ask(c.request(0))
			}
			c.same(first, got)
		}
	},
}

var atOnce = scenario{
	name:   "AtOnce",
	did:    "The same request was sent by many callers in the same moment, each of whom tried until there was an answer.",
	users:  "A double click, or a retry that overtakes a slow request: now and then, and mostly under load, " + doubled + ".",
	causes: []cause{lookThenWrite, keyPerAttempt, noKey, outsideClaim, notStored, asAnError},
	run: func(c *scene) {
		c.begin("")
		c.together()
		if c.e.reach() > 0 {
			return
		}
		// Who does not come to Env.Effect cannot be held, and overlaps by luck.
		for range 4 {
			c.key = idem.NewKey()
			c.mark()
			c.together()
		}
	},
}

// together sends the request from all callers at once.
func (c *scene) together() {
	c.t.Helper()
	s := c.newStop()
	c.e.atEffect(func(context.Context, int) error { s.hold(); return nil }, nil)
	barrier := NewBarrier(c.op.Callers)
	send := c.subject.Send
	c.subject.Send = func(ctx context.Context, r Request) (string, error) {
		if err := barrier.Wait(ctx); err != nil {
			return "", err
		}
		return send(ctx, r)
	}
	var callers []*call
	for range c.op.Callers {
		callers = append(callers, c.start(c.request(0)))
	}
	// All who do not wait for another caller are at the effect, and held there
	// until nobody else comes.
	c.settleAll(callers, s)
	s.open()
	var replies []reply
	for _, a := range callers {
		replies = append(replies, c.wait(a))
	}
	c.subject.Send = send
	first := replies[max(0, slices.IndexFunc(replies, reply.answered))]
	if !first.answered() {
		first = c.ask(c.request(0))
	}
	for _, got := range replies {
		if !got.answered() {
			got = c.ask(c.request(0))
		}
		c.same(first, got)
	}
}

var whileRunning = scenario{
	name:   "WhileRunning",
	did:    "The request was sent, and sent again while the first one was held just before its effect; then the first one went on.",
	users:  "The retry that overtakes a slow request: " + doubled + ".",
	causes: []cause{lookThenWrite, busyIsDone, seenBeforeWork, outsideClaim},
	run: func(c *scene) {
		c.begin("")
		s := c.newStop()
		c.e.atEffect(func(context.Context, int) error { s.hold(); return nil }, nil)
		a := c.start(c.request(0))
		c.reaches(a, s)
		b := c.start(c.request(0))
		if !c.settle(b, s) {
			select {
			case <-b.done:
				c.refusedForNow(b.reply)
			default: // it waits, and may
			}
		}
		s.open()
		first, second := c.wait(a), c.wait(b)
		if !first.answered() {
			first = c.ask(c.request(0))
		}
		if !second.answered() {
			second = c.ask(c.request(0))
		}
		c.same(first, second)
	},
}

// refusedForNow checks what the repetition of a request that is running was told
// before that had ended.
func (c *scene) refusedForNow(got reply) {
	c.t.Helper()
	switch {
	case got.answered():
		c.users = notDone
		c.fail("The repetition of a request that was still running, and had had no effect yet, got "+got.String()+". It must wait, or be told to come again.", busyIsDone, seenBeforeWork)
	case isFinal(got.err):
		c.users = givenUp
		c.fail("The repetition of a request that was still running was refused for good, with "+got.String()+". It must wait, or be told to come again.", asAnError)
	}
}

var callerGone = scenario{
	name:   "CallerGone",
	did:    "The caller's context was cancelled just after the effect, before its result was recorded: the browser was closed, or a timeout ended. Then the request was sent again.",
	users:  "After a timeout the client tries again: " + doubled + ", with slow answers of all things.",
	causes: []cause{callersContext, freedOnError, outsideClaim},
	run: func(c *scene) {
		c.begin("")
		gone := make(chan *call, 1)
		c.e.atEffect(nil, func(_ context.Context, n int) {
			if n == 1 {
				(<-gone).cancel()
			}
		})
		a := c.start(c.request(0))
		gone <- a
		told := c.wait(a)
		if c.e.reach() == 0 {
			c.skipUnshown(told)
		}
		first := c.ask(c.request(0))
		if told.answered() {
			c.same(told, first)
		}
		c.same(first, c.ask(c.request(0)))
	},
}

// one checks that there is one effect.
func (c *scene) one() {
	c.t.Helper()
	switch n := c.effects(); {
	case n > 1:
		c.failf("The effect happened %d times. It must happen once.", n)
	case n < 1:
		c.users = notDone
		c.fail("The request had no effect, although it was answered or not refused for good.", busyIsDone, seenBeforeWork, errorSwallowed)
	}
}

// stands checks that a request is still answered as it was, after others that must
// not touch it. Where no repetition is answered that is known already.
func (c *scene) stands(first reply) {
	c.t.Helper()
	if !c.op.known.twiceFailed {
		c.same(first, c.ask(c.request(0)))
	}
}

// same checks that a repetition was answered as the first request was, and had no
// effect of its own.
func (c *scene) same(first, again reply) {
	c.t.Helper()
	c.one()
	switch {
	case !again.answered():
		c.users = unanswered
		c.fail("The effect has happened, and the repetition never gets its answer: "+again.String()+", each time that it asks. The first request got "+first.String()+".", asAnError, notStored)
	case first.answered() && first.answer != again.answer:
		c.users = twoAnswers
		c.fail("The answers differ. The first request got "+first.String()+", and the repetition "+again.String()+". Both must get the same.", otherAnswer, asAnError, notStored)
	}
}
