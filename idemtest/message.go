package idemtest

import (
	"fmt"
	"slices"
	"strings"
)

// A cause is a mistake, by its name, and how it is mended.
type cause string

// The mistakes that programs have.
const (
	keyPerAttempt cause = "A new key for each attempt: the program, or the client under test, makes a key where it sends or receives the request. A key names the operation, not the attempt: an order number, or one that is made before the first attempt and kept for all of them."
	noKey         cause = "No key at all: nothing tells the program that the two requests are the same one."
	lookThenWrite cause = "Look-then-write: the program looks whether the key is there, then works, then writes the key down. Two requests at once both look before either has written. Let the storage decide in one atomic step, before the work: Store.Do, or a unique index that is inserted into in the transaction of the change."
	outsideClaim  cause = "The effect is outside of the claim: it happens before the key is claimed, or whatever the claim's answer is. Only the function that is given to Do may have it."
	notStored     cause = "The result is not stored: the key is remembered while the request runs and not after it, or only in the memory of a process, or freed when the work is done. Store the answer under the key, with Complete or by returning it from the function that is given to Do."
	asAnError     cause = "\"Already processed\" as an error: a repetition is turned away instead of being given the first request's answer. Idempotent means to give the same answer again."
	otherAnswer   cause = "The answer is made anew: the time, a fresh number, the present balance, or \"already processed\" in it. Store the answer with the key, and return what is stored."

	callersContext cause = "The result is recorded with the caller's context: when the caller hangs up, the effect has happened and its record is cancelled. Record it with a context of its own (context.WithoutCancel); Store.Do does."
	fingerprint    cause = "The fingerprint leaves out what the two payloads differ in (the amount, for example), or there is none. Put everything into it that makes the request what it is: idem.FingerprintOf(body), or FingerprintJSON."
	payloadInKey   cause = "The payload is part of the key: another amount is another operation then, and the customer who was to pay once pays both."
	refusalTouches cause = "The refusal touches the record: the request with the other payload is refused, and frees, replaces or locks the key of the first one on its way (a deferred clean-up, an upsert). Who is refused must write nothing."
	keyIgnored     cause = "The key is not looked at: requests with the same content are taken for repetitions, whatever their keys. Two orders of the same thing are two orders."
	tenantMissing  cause = "The key is not scoped to the tenant: customers choose their own keys, and two of them choose the same one. Use Store.Scoped, or a unique index on both columns."
	checksum       cause = "Duplicates are told by a 32-bit checksum (CRC-32, Adler-32, FNV, a String hash): different requests have the same one, Adler-32 of neighbouring numbers even. Compare the whole key, and a SHA-256 of the payload."

	busyIsDone     cause = "\"Being worked on\" is taken for \"done\": the repetition of a request that is still running is acknowledged as a duplicate. If the first attempt then fails, nobody repeats it and it is lost. Say \"not yet, come again\", or wait for the result."
	seenBeforeWork cause = "The message is marked as seen before the work is done: if the work fails, its redelivery is taken for a duplicate, and the message is lost. Claim the key before the work, and complete it after the work."
	errorIsSeen    cause = "A failed message is marked as seen: the mark is written, or deferred, whatever the handler returns. An attempt that had no effect must leave the key free: return idem.NoEffect of the error, or Release."
	errorSwallowed cause = "The error is swallowed: the program answers, or acknowledges, as if its work had been done."
	failOpen       cause = "Failing open: when the store cannot be asked the program goes on without it. It must not run: the caller gets an error and tries again."
	notRepeated    cause = "A storage error ends the attempt half-way: the call to the storage is not repeated, or repeated as another attempt, which then finds the first one in its way. Repeat it with the same token; Store.Do does."
	freedOnError   cause = "The key is freed on every error, the effect having happened or not. Free it only if it is certain that nothing happened."
	unknownOutcome cause = "The outcome of the first attempt is unknown: it died, or lost its claim, between the effect and the record, and its successor runs the operation again. Put the effect into the store's own transaction (the Do method of the backend); or send claim.ChildKey to the system that has the effect, which then recognises the repetition; or look what happened where claim.Takeover is set; or choose idem.Hold. If a second effect does no harm here, say so: Operation.AfterCrash = idemtest.MayRepeat."
	heldForEver    cause = "The program keeps the operation until somebody decides (idem.Hold and ErrUnresolved), or its lock has no end. If the former is meant, say so: Operation.AfterCrash = idemtest.Held."
)

// failf reports what went wrong, and ends the scenario.
func (c *scene) failf(format string, args ...any) {
	c.t.Helper()
	c.fail(fmt.Sprintf(format, args...))
}

// mostCauses is how many causes are named: who gets a dozen of them reads none.
const mostCauses = 3

// fail reports what went wrong, and ends the scenario. What the calls to the
// storage prove is the first cause, what is likely comes next, and then what is
// usual in this scenario.
func (c *scene) fail(what string, likely ...cause) {
	c.t.Helper()
	if c.name == "Twice" {
		c.op.known.twiceFailed = true
	}
	evidence, proven := c.diagnose()
	if len(likely) == 0 {
		likely = proven
	}
	var causes []cause
	for _, why := range slices.Concat(likely, c.causes) {
		if !slices.Contains(causes, why) && len(causes) < mostCauses {
			causes = append(causes, why)
		}
	}
	var b strings.Builder
	wrapped(&b, "", what)
	wrapped(&b, "What was done:  ", c.did)
	wrapped(&b, "What users see: ", c.users)
	if evidence != "" {
		wrapped(&b, "What was seen:  ", evidence)
	}
	b.WriteString("Usual causes:\n")
	for i, why := range causes {
		wrapped(&b, fmt.Sprintf("%4d. ", i+1), string(why))
	}
	c.t.Errorf("%s", strings.TrimRight(b.String(), "\n"))
	c.t.FailNow()
}

// wrapped writes a text behind its heading, in lines that a terminal can show.
func wrapped(b *strings.Builder, heading, text string) {
	const width = 96
	line := heading
	indent := strings.Repeat(" ", len(heading))
	for _, paragraph := range strings.SplitAfter(text, "\n") {
		for _, word := range strings.SplitAfter(strings.TrimSuffix(paragraph, "\n"), " ") {
			if len(line)+len(word) > width && len(line) > len(indent) {
				b.WriteString(strings.TrimRight(line, " ") + "\n")
				line = indent
			}
			line += word
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
		line = indent
	}
}

// diagnose says what the calls to the storage show about a second effect, and the
// mistake that they prove.
func (c *scene) diagnose() (evidence string, proven []cause) {
	c.mu.Lock()
	operations := len(c.sent)
	c.mu.Unlock()
	if len(c.e.wrapped()) == 0 || operations > 1 {
		return "", nil // more than one effect is as it should be
	}
	var keys []string
	completed, effects, early := false, 0, false
	for _, ev := range c.e.seen(c.event) {
		if ev.what == "effect" {
			effects++
			early = early || len(keys) == 0
			continue
		}
		completed = completed || ev.what == "complete"
		if !slices.Contains(keys, ev.key) {
			keys = append(keys, ev.key)
		}
	}
	switch {
	case effects < 2:
		return "", nil
	case len(keys) == 0:
		return "The effect happened without any key being claimed in the store.", []cause{outsideClaim}
	case early:
		return "The effect happened before the key was claimed.", []cause{outsideClaim}
	case len(keys) > 1:
		return fmt.Sprintf("The requests had the same key, %s. In the store they have different ones: %s and %s.", quoted(c.key), quoted(keys[0]), quoted(keys[1])), []cause{keyPerAttempt}
	case !completed:
		return "The key was claimed, and no completion with a result was seen.", []cause{notStored}
	}
	return "", nil
}
