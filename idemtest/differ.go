package idemtest

import (
	"context"
	"fmt"
	"hash/adler32"
	"hash/crc32"
	"hash/fnv"

	"github.com/idem-go/idem"
)

func needsPayload(op Operation) string {
	if op.Payload == nil {
		return "Operation.Payload is nil"
	}
	return ""
}

func needsTenants(op Operation) string {
	if len(op.Tenants) < 2 {
		return "Operation.Tenants does not have two names"
	}
	return ""
}

var otherPayload = scenario{
	name:    "OtherPayload",
	did:     "The request was sent and answered, and then another payload with the same key.",
	users:   "A client uses a key twice by mistake, or somebody has corrected the amount: the second order is answered with the receipt of the first one, and is never carried out; or both are.",
	causes:  []cause{fingerprint, payloadInKey, noKey},
	missing: needsPayload,
	run: func(c *scene) {
		c.begin("")
		first := c.first()
		c.refusesOther(first, c.send(c.request(1)), payloadInKey)
		c.causes = []cause{refusalTouches}
		c.stands(first)
	},
}

// refusesOther checks what another payload with the same key was told. If it was
// carried out that has the likely cause.
func (c *scene) refusesOther(first, other reply, likely cause) {
	c.t.Helper()
	sent := fmt.Sprintf("With the same key, first %s was sent and then %s. ", quoted(string(c.op.Payload(0))), quoted(string(c.op.Payload(1))))
	switch n := c.effects(); {
	case n > 1:
		c.fail(sent+fmt.Sprintf("There were %d effects. The second request must be refused.", n), likely)
	case other.answered() && other.answer == first.answer:
		c.fail(sent+"The second request got the same as the first one, "+other.String()+", as if it had been carried out. It must be refused.", fingerprint)
	case other.answered():
		c.fail(sent+"The second request got "+other.String()+". It must be refused, with an error that is ErrConflict.",
			"The refusal looks like an answer: the program may have noticed the other payload, but says so with a status or a text that callers take for success. An HTTP handler answers 422; Send returns an error that is ErrConflict.")
	case !isConflict(other.err):
		c.users = "A client that uses a key twice by mistake tries for ever, and a queue delivers the message for ever; nobody learns of the mistake."
		c.fail(sent+"The second request got "+other.String()+", upon which it is sent again, for ever. It must be told that it is wrong: Send returns an error that is ErrConflict, an HTTP handler answers 422.",
			"A conflict is not told from a failure: no retry mends it. A consumer puts such a message with the dead letters.")
	}
}

var otherPayloadWhileRunning = scenario{
	name:    "OtherPayloadWhileRunning",
	did:     "Another payload was sent with the key of a request that was held just before its effect.",
	users:   "Two different orders with one key at the same time: one is answered with the receipt of the other, or both are carried out.",
	causes:  []cause{lookThenWrite, fingerprint, busyIsDone, payloadInKey},
	missing: needsPayload,
	run: func(c *scene) {
		c.begin("")
		s := c.newStop()
		c.e.atEffect(func(context.Context, int) error { s.hold(); return nil }, nil)
		a := c.start(c.request(0))
		c.reaches(a, s)
		b := c.start(c.request(1))
		c.settle(b, s)
		s.open()
		first, other := c.wait(a), c.wait(b)
		if !other.answered() && !isConflict(other.err) {
			// "Not now" is an answer while the first one runs, and no longer.
			other = c.ask(c.request(1))
		}
		if !first.answered() {
			first = c.ask(c.request(0))
		}
		c.refusesOther(first, other, lookThenWrite)
		c.causes = []cause{refusalTouches}
		c.stands(first)
	},
}

var otherKey = scenario{
	name:   "OtherKey",
	did:    "The request was sent and answered, and then the same payload with another key: another operation.",
	users:  "A customer who buys the same thing a second time gets nothing, or the receipt of the first purchase.",
	causes: []cause{keyIgnored, checksum},
	run: func(c *scene) {
		c.begin("")
		first := c.first()
		r := c.request(0)
		r.Key = idem.NewKey()
		c.another("The same payload with another key", c.ask(r), keyIgnored)
		c.base++
		c.stands(first)
	},
}

// another checks that a request that is another operation was carried out.
func (c *scene) another(what string, got reply, likely cause) {
	c.t.Helper()
	switch n := c.effects(); {
	case n < 2:
		c.fail(fmt.Sprintf("%s was taken for the first request: it got %v and had no effect of its own. There must be 2 effects, and there is %d.", what, got, n), likely)
	case n > 2:
		c.failf("%s had more than one effect: there are %d, and must be 2.", what, n)
	case !got.answered():
		c.fail(what+" had its effect, but was not answered: it got "+got.String()+".", likely)
	}
}

var otherTenant = scenario{
	name:    "OtherTenant",
	did:     "Two tenants sent the same payload with the same key, one after the other.",
	users:   "Two customers number their orders 1, 2, 3: the second one's order is never carried out, and he gets the receipt of the first one, with another person's data on it.",
	causes:  []cause{tenantMissing},
	missing: needsTenants,
	run: func(c *scene) {
		c.begin("")
		first := c.first()
		r := c.request(0)
		r.Tenant = c.op.Tenants[1]
		second := c.ask(r)
		c.another("The request of another tenant", second, tenantMissing)
		c.base++
		c.stands(first)
		if !c.op.known.twiceFailed {
			c.same(second, c.ask(r))
		}
	},
}

var lookAlikeKeys = scenario{
	name:   "LookAlikeKeys",
	did:    "The same payload was sent with pairs of keys that are different and have the same 32-bit checksum.",
	users:  "Once in a while, and oftener the more customers there are, an order is taken for somebody else's and never carried out.",
	causes: []cause{checksum, keyIgnored},
	run: func(c *scene) {
		c.begin("")
		for _, sum := range checksums {
			c.mark()
			for i, begin := range sum.keys {
				r := c.request(0)
				r.Key = begin + c.key // what follows the same state of the checksum leads to the same one
				if i == 0 {
					c.clean(r)
					continue
				}
				c.another(fmt.Sprintf("A key with the same %s as another one", sum.name), c.ask(r), checksum)
			}
		}
	},
}

var lookAlikePayloads = scenario{
	name:   "LookAlikePayloads",
	did:    "Two different payloads with the same 32-bit checksum were sent, with two keys and then with one.",
	users:  "Two orders that happen to have the same checksum, as neighbouring numbers have: the second one is taken for a repetition and never carried out.",
	causes: []cause{checksum, fingerprint, keyIgnored},
	missing: func(op Operation) string {
		if op.Payload != nil && collision(op.Payload) == nil {
			return fmt.Sprintf("no two of the first %d payloads have the same checksum", payloads)
		}
		return needsPayload(op)
	},
	run: func(c *scene) {
		c.begin("")
		pair := collision(c.op.Payload)
		what := fmt.Sprintf("The payload %s, which has the same %s as %s,", quoted(string(c.op.Payload(pair.b))), pair.sum, quoted(string(c.op.Payload(pair.a))))
		c.clean(c.request(pair.a))
		r := c.request(pair.b)
		r.Key = idem.NewKey()
		c.another(what+" with another key", c.ask(r), checksum)
		other := c.send(c.request(pair.b))
		if n := c.effects(); n > 2 {
			c.fail(fmt.Sprintf("%s with the same key had an effect of its own: there are %d.", what, n), payloadInKey)
		}
		if other.answered() {
			c.fail(what+" was sent with the key of that one, and got "+other.String()+". It must be refused.", checksum, fingerprint)
		}
	},
}

// checksums are those that are used to tell duplicates, with two beginnings of
// keys that have the same one.
var checksums = []struct {
	name string
	of   func([]byte) uint32
	keys [2]string
}{
	{"Adler-32", adler32.Checksum, [2]string{"HVMU2XEUH6", "KUHXABWAEB"}},
	{"CRC-32", crc32.ChecksumIEEE, [2]string{"3WTC2QRWGY", "SNF423NLQ4"}},
	{"CRC-32C", crc32c, [2]string{"VNLGXLYUMT", "VRMT9U87VB"}},
	{"FNV-1", fnv1, [2]string{"Y9Z6FTCFXD", "6GTKWL9ZLY"}},
	{"FNV-1a", fnv1a, [2]string{"KADX3B43GR", "X2MFA2HMZ6"}},
	{"String hash (31)", times31, [2]string{"XYLEDZ95G4", "XBY6ZT4NW5"}},
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func crc32c(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

func fnv1(b []byte) uint32 {
	h := fnv.New32()
	_, _ = h.Write(b)
	return h.Sum32()
}

func fnv1a(b []byte) uint32 {
	h := fnv.New32a()
	_, _ = h.Write(b)
	return h.Sum32()
}

func times31(b []byte) (h uint32) {
	for _, c := range b {
		h = 31*h + uint32(c)
	}
	return h
}

// payloads is how many payloads are looked at for two with the same checksum.
const payloads = 5000

type collided struct {
	sum  string
	a, b int
}

// collision returns the first two payloads that have the
// same checksum, or nil.
func collision(payload func(int) []byte) *collided {
	seen := make([]map[uint32]int, len(checksums))
	for i := range seen {
		seen[i] = make(map[uint32]int)
	}
	for n := range payloads {
		doc := payload(n)
		for i, sum := range checksums {
			h := sum.of(doc)
			if before, ok := seen[i][h]; ok {
				return &collided{sum.name, before, n}
			}
			seen[i][h] = n
		}
	}
	return nil
}
