package idemtest

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/idem-go/idem"
)

var effectFails = scenario{
	name:   "EffectFails",
	did:    "The effect was made to fail, without having happened, at the first attempt. Then the request was sent again, as after any failure.",
	users:  "The bank does not answer for a moment, and the payment can never be made any more.",
	causes: []cause{errorIsSeen, seenBeforeWork, errorSwallowed},
	run: func(c *scene) {
		c.begin("")
		c.e.atEffect(func(_ context.Context, n int) error {
			if n == 1 {
				return errEffect
			}
			return nil
		}, nil)
		told := c.send(c.request(0))
		if c.e.reach() == 0 {
			c.skipUnshown(told)
		}
		again := c.ask(c.request(0))
		n := c.effects()
		switch {
		case n > 1:
			c.failf("The effect failed once and then happened %d times. It must happen once.", n)
		case n == 1 && told.answered():
			c.same(told, again) // the program has repeated it by itself
		case n == 1:
			c.same(again, c.ask(c.request(0)))
		case told.answered():
			c.definite(told, again)
		case again.answered():
			c.users = notDone
			c.fail("The effect failed, the first attempt got "+told.String()+", and the second got "+again.String()+" although the effect has never happened.", errorIsSeen, seenBeforeWork)
		case c.op.AfterCrash != Held:
			c.fail("The effect failed, and the request cannot be repeated: its first attempt got "+told.String()+", and all later ones "+again.String()+".", heldForEver, errorIsSeen)
		}
	},
}

// definite checks an answer that was given although the effect had failed: it may
// be a refusal, which is stored and given again, but not the answer of success.
func (c *scene) definite(told, again reply) {
	c.t.Helper()
	if again.String() != told.String() {
		c.users = twoAnswers
		c.fail("The effect failed. The first attempt got "+told.String()+", and the second "+again.String()+". Neither had an effect, and both must get the same.", otherAnswer, notStored)
	}
	c.e.atEffect(nil, nil)
	c.mark()
	r := c.request(0)
	r.Key = idem.NewKey()
	if success := c.clean(r); success.answer == told.answer {
		c.users = notDone
		c.fail("The effect failed, and the caller got "+told.String()+", the same as when it happens.", errorSwallowed, errorIsSeen)
	}
	c.t.Logf("the effect failed, and the program answered %s and stays with that: it takes the failure for a definite refusal", quoted(told.answer))
}

var storeFails = scenario{
	name:   "StoreFails",
	did:    "One single call to the storage failed, each in its turn: once without having been executed, and once executed with its reply lost. Then the request was sent again.",
	users:  "A database restarts, or a connection breaks: " + doubled + ".",
	causes: []cause{notRepeated, freedOnError, failOpen},
	run: func(c *scene) {
		c.begin("")
		c.needsWrap()
		before := c.e.calls()
		c.first()
		calls := min(c.e.calls()-before, 10)
		if calls == 0 {
			c.t.Skip("not tested: the program did not call the backend that Env.Wrap returned")
		}
		for _, fault := range []struct {
			name string
			Fault
		}{{"was lost", Lost}, {"was executed, and its reply lost", ReplyLost}} {
			for nth := 1; nth <= calls; nth++ {
				c.key = idem.NewKey()
				c.mark()
				var n atomic.Int64
				c.e.script(func(Call) Fault {
					if n.Add(1) == int64(nth) {
						return fault.Fault
					}
					return Fault{}
				})
				told := c.send(c.request(0))
				c.e.script(nil)
				c.did = fmt.Sprintf("Call %d of the program to its storage %s. Then the request was sent again.", nth, fault.name)
				got := c.ask(c.request(0))
				if told.answered() {
					c.same(told, got)
				}
				c.same(got, c.ask(c.request(0)))
			}
		}
	},
}

var storeDown = scenario{
	name:   "StoreDown",
	did:    "The request was sent while every call to the storage failed, and again when that worked.",
	users:  "In the minute in which the database is away, every retry is carried out again: " + doubled + ".",
	causes: []cause{failOpen, errorSwallowed},
	run: func(c *scene) {
		c.begin("")
		c.needsWrap()
		before := c.e.calls()
		c.e.script(func(Call) Fault { return Refused })
		told := c.send(c.request(0))
		c.e.script(nil)
		if c.e.calls() == before {
			c.t.Skip("not tested: the program did not call the backend that Env.Wrap returned")
		}
		n := c.effects()
		switch {
		case n > 0:
			c.fail("The store could not be asked, and the effect happened all the same. Every repetition has it again.", failOpen, outsideClaim)
		case told.answered():
			c.users = notDone
			c.fail("The store could not be asked, nothing was done, and the caller got "+told.String()+".", errorSwallowed)
		case isFinal(told.err):
			c.users = givenUp
			c.fail("The store could not be asked, nothing was done, and the caller was refused for good, with "+told.String()+". He must be told to come again.", "A failure of the storage is taken for a mistake of the caller: the client gives up, a message is dead-lettered.")
		}
		first := c.ask(c.request(0))
		c.same(first, c.ask(c.request(0)))
	},
}

var leaseRunsOut = scenario{
	name:   "LeaseRunsOut",
	did:    "The request was held just after its effect, before its result was recorded, until its lease had run out: the process was stopped, or its machine suspended. The request was sent again, and then the first attempt went on.",
	users:  "Rarely, when a machine hangs: " + doubled + ".",
	causes: []cause{unknownOutcome},
	run: func(c *scene) {
		c.begin("")
		c.needsWrap()
		s := c.newStop()
		c.e.atEffect(nil, func(_ context.Context, n int) {
			if n == 1 {
				s.hold()
			}
		})
		a := c.start(c.request(0))
		c.reaches(a, s)
		c.e.lapse()
		b := c.start(c.request(0))
		c.settle(b, s)
		s.open()
		told, second := c.wait(a), c.wait(b)
		if !second.answered() {
			second = c.ask(c.request(0))
		}
		c.afterCrash(told, second)
	},
}

var recordLost = scenario{
	name:   "RecordLost",
	did:    "The storage failed just after the effect, before its result was recorded, and stayed away for longer than the lease: the same as a process that dies there. Then the request was sent again.",
	users:  "Rarely, when a process or a database dies in the wrong moment: " + doubled + ".",
	causes: []cause{unknownOutcome},
	run: func(c *scene) {
		c.begin("")
		c.needsWrap()
		c.e.atEffect(nil, func(_ context.Context, n int) {
			if n == 1 {
				// Of this class, or Do would go on trying for the whole lease.
				c.e.script(func(Call) Fault {
					return Fault{Err: fmt.Errorf("%w: %w", ErrInjected, idem.ErrCorrupt)}
				})
			}
		})
		told := c.send(c.request(0))
		c.e.script(nil)
		if c.e.reach() == 0 {
			c.skipUnshown(told)
		}
		c.afterCrash(told, c.ask(c.request(0)))
	},
}

// afterCrash checks what has become of a request whose first attempt may have
// ended between its effect and its record.
func (c *scene) afterCrash(told, again reply) {
	c.t.Helper()
	n := c.effects()
	switch c.op.AfterCrash {
	case Held:
		if n > 1 {
			c.fail(fmt.Sprintf("The effect happened %d times. Under Held it must not happen again before somebody has decided.", n), unknownOutcome)
		}
		if again.answered() && n == 0 {
			c.users = notDone
			c.fail("The request got "+again.String()+" and has had no effect.", seenBeforeWork)
		}
		return
	case MayRepeat:
		if n > 1 {
			c.t.Logf("the effect happened %d times: %s It is accepted since Operation.AfterCrash is MayRepeat.", n, c.did)
		}
		if n > 2 {
			c.failf("The effect happened %d times in 2 attempts.", n)
		}
		c.base += max(0, n-1) // from here on there must be no more
	default:
		if n > 1 {
			c.fail(fmt.Sprintf("The effect happened %d times. It must happen once, and what it takes for that the program has to do: no store can know whether an attempt that died has had its effect.", n), unknownOutcome)
		}
	}
	switch {
	case !again.answered():
		c.users = unanswered
		c.fail("The request is never answered any more: "+again.String()+", each time.", heldForEver)
	case c.effects() < 1:
		c.users = notDone
		c.fail("The request got "+again.String()+" and has had no effect.", seenBeforeWork)
	}
	if told.answered() {
		c.same(told, again)
	}
	c.same(again, c.ask(c.request(0)))
}
