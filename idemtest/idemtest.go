// Package idemtest brings the repetitions that happen in operation into a program's own
// tests: the request that is sent twice, twice at once, while the first one is
// still running, after its answer was lost, after the process died.
//
// A program whose tests send each request once has no test for any of this, and
// then it is found in production, under load. Run takes the program's own
// operation, whatever it is (a function, an http.Handler, a consumer of
// messages; built on idem or not), repeats it in every way that networks,
// queues, browsers and operators do, counts the effects and compares the
// answers:
//
//	func TestChargingIsIdempotent(t *testing.T) {
//		idemtest.Run(t, idemtest.Operation{
//			Setup: func(t testing.TB, e *idemtest.Env) idemtest.Subject {
//				store, err := idem.New(e.Wrap(memory.New()), nil)
//				if err != nil {
//					t.Fatal(err)
//				}
//				var charges sync.Map // stands for a bank, which recognises a charge by its key
//				bank := func(ctx context.Context, key string) (idem.Result, error) {
//					err := e.Effect(ctx, func() error { charges.Store(key, true); return nil })
//					return idem.Result{Code: 201, Body: []byte("receipt " + key)}, err
//				}
//				return idemtest.Subject{
//					Send: func(ctx context.Context, r idemtest.Request) (string, error) {
//						out, err := store.Do(ctx, r.Key, idem.FingerprintOf(r.Payload),
//							func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
//								return bank(ctx, c.ChildKey("charge"))
//							})
//						return string(out.Result.Body), err
//					},
//					Effects: func() (n int) {
//						charges.Range(func(any, any) bool { n++; return true })
//						return n
//					},
//				}
//			},
//			Payload: func(n int) []byte { return fmt.Appendf(nil, `{"account":7,"cents":%d}`, 100+n) },
//		})
//	}
//
// In a test of your own, Send calls your program. Where the program is built is
// Setup, and where it has its effect, or where a fake has it in its place, is
// Env.Effect.
//
// Each way of repeating is a subtest. One that cannot be tried with what the
// test provides is skipped under its own name, with what is missing; it is never
// passed. A failure says what was done, what users of the program would have
// seen, and which mistakes usually cause it.
//
// The kit should not report a fault where there is none. It may miss one that is
// there: many show only under concurrency. Run it several times, with the race
// detector. Without Env.Effect, in particular, requests overlap only by luck.
//
// [Faulty], [Aging] and [Barrier] are what Run consists of, for tests of single
// situations.
package idemtest

import (
	"context"
	"errors"
	"testing"
)

// An Operation is what is tested: one kind of request that has an effect.
type Operation struct {
	// Setup starts the program afresh, with no traces of earlier requests other
	// than those in e.Dir, and says how to send it requests and how to count
	// its effects. It is called once for each subtest; what has to be closed is
	// closed in t.Cleanup. Required.
	Setup func(t testing.TB, e *Env) Subject

	// Payload returns the n-th payload, for n = 0, 1, 2 and so on, up to some
	// thousands. All of them are valid requests, and two of them that are sent
	// with the same key are a mistake of the sender. So let n change what must
	// never be mixed up: the amount, before all. Nil if requests have no
	// payload besides their key; what needs another payload is skipped then.
	Payload func(n int) []byte

	// Tenants are the names of two customers who know nothing of each other and
	// may use the same keys. Nil if there is only one.
	Tenants []string

	// AfterCrash is what the program does with an operation whose attempt died
	// between its effect and the record of it. The default is the strictest.
	AfterCrash AfterCrash

	// Callers is how many requests are sent at the same time; 8 by default.
	Callers int

	known *known
}

// known is what earlier subtests have shown of the program.
type known struct {
	test             string
	run              int // which call of Run in its test this is, counted from 1
	started, usesDir bool
	twiceFailed      bool // even without any disturbance
}

// A Subject is a program that has been started for a test.
type Subject struct {
	// Send sends a request once, without repeating it, as a caller of the
	// program does, and returns what the caller is told: the answer, as it can
	// be compared with that of a repetition, or an error, upon which a caller
	// would try again. It returns when the work is done, also for a program that
	// does it in the background. A definite refusal ("card declined") is an
	// answer. A consumer that acknowledges a message answers "", and one that
	// wants it again returns an error.
	//
	// That the key was used with another payload is an error that is
	// [ErrConflict] or idem.ErrMismatch. A consumer that gives a message up
	// (dead-letters it) returns such an error too.
	//
	// Send is called from several goroutines at once. It must not make up keys
	// itself. Required.
	Send func(ctx context.Context, r Request) (answer string, err error)

	// Effects returns how many effects there are: rows, mails, charges. If it
	// is nil those are counted that went through [Env.Effect].
	Effects func() int
}

// A Request is what Send sends.
type Request struct {
	Key     string // names the operation: the same in each of its attempts; printable ASCII, at most 64 bytes
	Payload []byte // of Operation.Payload, or nil
	Tenant  string // of Operation.Tenants, or ""
}

// ErrConflict is what Send returns, possibly wrapped, if the program says that
// the key was used with another payload: that this request is wrong and must not
// be sent again.
var ErrConflict = errors.New("the key was used with another payload")

// AfterCrash is what a program promises of an operation whose attempt died
// between its effect and the record of it: the store cannot know whether the
// effect happened, whatever the program is built on.
type AfterCrash int

const (
	// OneEffect: the retry is answered, and there is one effect. It takes an
	// effect that commits in the store's own transaction, a downstream system
	// that recognises the repetition (idem.Claim.ChildKey), or a look at what
	// happened where idem.Claim.Takeover is set.
	OneEffect AfterCrash = iota

	// Held: there is one effect at most, and retries are refused until somebody
	// has decided (idem.Hold).
	Held

	// MayRepeat: the retry is answered, and the effect may be there twice. It is
	// for effects that do no harm when they are repeated, such as a line in a
	// log. That an effect was doubled is logged, not hidden.
	MayRepeat
)

// Run tests the operation in every way that its parts allow, each as a subtest:
//
//   - Twice: sent again after it was answered.
//   - ReplyLost: sent again, three times at once, by a caller who got no answer.
//   - AtOnce: sent by many callers in the same moment.
//   - WhileRunning: sent again while the first one is at its effect.
//   - CallerGone: sent again after the caller hung up between effect and record.
//   - OtherPayload: the key is used again with another payload: refused, no effect.
//   - OtherPayloadWhileRunning: the same, while the first one is running.
//   - OtherKey: the same payload with another key is another operation.
//   - OtherTenant: the same key of another tenant is another operation.
//   - LookAlikeKeys: so are keys that have the same 32-bit checksum.
//   - LookAlikePayloads: so are payloads that have the same 32-bit checksum.
//   - EffectFails: sent again after the effect failed without having happened.
//   - StoreFails: each call to the storage fails once, executed or not.
//   - StoreDown: all calls to the storage fail: nothing may happen.
//   - LeaseRunsOut: sent again while the first one is stuck for longer than its lease.
//   - RecordLost: sent again after the storage failed between effect and record.
//   - Killed/BeforeTheEffect: sent to another process after the first one was killed there.
//   - Killed/AfterTheEffect: killed between effect and record.
//   - Killed/BeforeTheReply: killed when all was done but the answer.
//
// There must be one effect for each operation, and each of its requests must be
// given the same answer. After the lease, the storage or the process is lost
// between effect and record, Operation.AfterCrash says what must hold.
//
// For the subtests under "Killed" it starts the test binary again, with
// -test.run set to the present test, and kills that process in the middle of a
// request. What the test does before Run, and the package's TestMain, happen
// there too.
func Run(t *testing.T, op Operation) {
	t.Helper()
	if op.Setup == nil {
		t.Fatal("Operation.Setup is nil")
	}
	op.known = &known{test: t.Name(), run: countRun(t)}
	if isChild(t.Name()) {
		beKilled(t, op)
		return
	}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) { s.check(t, op) })
	}
}

// scenarios is the table of contents; the documentation of Run has it in words.
var scenarios = []scenario{
	twice, replyLost, atOnce, whileRunning, callerGone,
	otherPayload, otherPayloadWhileRunning, otherKey, otherTenant, lookAlikeKeys, lookAlikePayloads,
	effectFails, storeFails, storeDown, leaseRunsOut, recordLost,
	killedBeforeEffect, killedAfterEffect, killedBeforeReply,
}
