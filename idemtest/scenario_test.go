package idemtest

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// sound is a program without a mistake.
func sound(t testing.TB, e *Env, opts *idem.Options) send {
	store := open(t, e, opts)
	return func(ctx context.Context, r Request) (string, error) {
		out, err := store.Scoped(r.Tenant).Do(ctx, r.Key, idem.FingerprintOf(r.Payload), once(e))
		return string(out.Result.Body), err
	}
}

// What cannot be tested is skipped, and says for want of what.
func TestSkipsByName(t *testing.T) {
	var hidden atomic.Int64 // effects that the kit is not shown
	bare := func(e *Env) (send, func() int) {
		store, err := idem.New(memory.New(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return func(ctx context.Context, r Request) (string, error) {
			_, err := store.Do(ctx, r.Key, idem.FingerprintOf(r.Payload), func(context.Context, *idem.Claim) (idem.Result, error) {
				hidden.Add(1)
				return idem.Result{}, nil
			})
			return "", err
		}, func() int { return int(hidden.Load()) }
	}
	op := Operation{Setup: func(t testing.TB, e *Env) Subject {
		send, effects := bare(e)
		return Subject{Send: send, Effects: effects}
	}}
	const noEffect, noWrap, noPayload = "the program does not call Env.Effect", "Setup did not give its backend to Env.Wrap", "Operation.Payload is nil"
	for name, want := range map[string]string{
		"WhileRunning":             noEffect,
		"CallerGone":               noEffect,
		"EffectFails":              noEffect,
		"StoreFails":               noWrap,
		"StoreDown":                noWrap,
		"LeaseRunsOut":             noWrap,
		"RecordLost":               noWrap,
		"OtherPayload":             noPayload,
		"OtherPayloadWhileRunning": noPayload,
		"LookAlikePayloads":        noPayload,
		"OtherTenant":              "Operation.Tenants does not have two names",
		"Killed/BeforeTheEffect":   "Setup does not call Env.Dir",
		"Killed/AfterTheEffect":    "Setup does not call Env.Dir",
		"Killed/BeforeTheReply":    "Setup does not call Env.Dir",
	} {
		op.known = &known{started: true}
		r := verdict(t, find(t, name), op)
		if r.failed || !strings.HasPrefix(r.skipped, "not tested: ") || !strings.Contains(r.skipped, want) {
			t.Errorf("%s was skipped with %q, want %q; %s", name, r.skipped, want, strings.Join(r.said, "\n"))
		}
	}
	for _, name := range []string{"Twice", "ReplyLost", "AtOnce", "OtherKey", "LookAlikeKeys"} {
		if r := verdict(t, find(t, name), op); r.failed || r.skipped != "" {
			t.Errorf("%s does not run: %q %s", name, r.skipped, strings.Join(r.said, "\n"))
		}
	}
	// Not even a backend that was given to Wrap helps a program that does not
	// use what it gets, nor payloads that have all the same checksums.
	op.Setup = func(t testing.TB, e *Env) Subject {
		e.Wrap(memory.New())
		send, effects := bare(e)
		return Subject{Send: send, Effects: effects}
	}
	op.Payload = func(n int) []byte { return []byte{byte(n), byte(n >> 8)} }
	for name, want := range map[string]string{
		"StoreFails":        "did not call the backend that Env.Wrap returned",
		"StoreDown":         "did not call the backend that Env.Wrap returned",
		"LeaseRunsOut":      noEffect,
		"RecordLost":        noEffect,
		"LookAlikePayloads": "no two of the first",
	} {
		if r := verdict(t, find(t, name), op); r.failed || !strings.Contains(r.skipped, want) {
			t.Errorf("%s was skipped with %q, want %q; %s", name, r.skipped, want, strings.Join(r.said, "\n"))
		}
	}
}

// A program that holds what it does not know is right if it says that it does.
func TestHeld(t *testing.T) {
	op := Operation{
		Setup: func(t testing.TB, e *Env) Subject {
			return Subject{Send: sound(t, e, &idem.Options{OnLapse: idem.Hold})}
		},
		Payload: body,
		Tenants: []string{"alice", "bob"},
	}
	for _, name := range []string{"LeaseRunsOut", "RecordLost", "EffectFails"} {
		op.AfterCrash = Held
		if r := verdict(t, find(t, name), op); r.failed || r.skipped != "" {
			t.Errorf("%s: %q %s", name, r.skipped, strings.Join(r.said, "\n"))
		}
	}
	op.AfterCrash = OneEffect
	for _, name := range []string{"RecordLost", "EffectFails"} {
		r := verdict(t, find(t, name), op)
		if text := strings.Join(strings.Fields(strings.Join(r.said, "\n")), " "); !r.failed || !strings.Contains(text, "Operation.AfterCrash = idemtest.Held") {
			t.Errorf("%s: %q %s", name, r.skipped, text)
		}
	}
	// Under Held a second effect is a fault as well.
	careless := Operation{Setup: func(t testing.TB, e *Env) Subject {
		store := open(t, e, nil)
		return Subject{Send: func(ctx context.Context, r Request) (string, error) {
			_, err := store.Do(ctx, r.Key, idem.Fingerprint{}, plain(e))
			return "", err
		}}
	}, AfterCrash: Held}
	if r := verdict(t, find(t, "RecordLost"), careless); !r.failed || !strings.Contains(r.said[0], "Under Held it must not happen again") {
		t.Errorf("a second effect under Held: %v", r.said)
	}
	// MayRepeat accepts it, and says so.
	careless.AfterCrash = MayRepeat
	for _, name := range []string{"LeaseRunsOut", "RecordLost"} {
		r := verdict(t, find(t, name), careless)
		if r.failed || len(r.logged) == 0 || !strings.Contains(r.logged[0], "the effect happened 2 times") {
			t.Errorf("%s under MayRepeat: %v, %v", name, r.said, r.logged)
		}
	}
	// It accepts nothing else.
	careless.Setup = func(_ testing.TB, e *Env) Subject {
		e.Wrap(memory.New())
		return Subject{Send: func(ctx context.Context, r Request) (string, error) { return "", e.Effect(ctx, nil) }}
	}
	if r := verdict(t, find(t, "RecordLost"), careless); !r.failed {
		t.Error("under MayRepeat a program without any protection passes")
	}
}

// A test that is wired wrongly is told so, and not that the program is wrong.
func TestWiring(t *testing.T) {
	for want, op := range map[string]Subject{
		"Subject.Send is nil": {},
		"a single request, to which nothing was done, got the error `no such host`": {Send: func(context.Context, Request) (string, error) { return "", errors.New("no such host") }},
		"had 0 effects that the kit can see: let the effect go through Env.Effect":  {Send: func(context.Context, Request) (string, error) { return "", nil }},
		"Send panicked: boom":                      {Send: func(context.Context, Request) (string, error) { panic("boom") }},
		"`500 Internal Server Error: no database`": {Send: HTTP(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no database", 500) }), post)},
		"the handler panicked: boom":               {Send: HTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") }), post)},
	} {
		r := verdict(t, find(t, "Twice"), Operation{Setup: func(testing.TB, *Env) Subject { return op }})
		if !r.failed || !strings.Contains(strings.Join(r.said, "\n"), want) {
			t.Errorf("said %q, want %q", r.said, want)
		}
	}
}

// The answers of a handler, as they are compared and judged.
func TestHTTP(t *testing.T) {
	for _, c := range []struct {
		code       int
		retryAfter string
		answered   bool
		conflict   bool
		final      bool
	}{
		{code: 200, answered: true},
		{code: 201, answered: true},
		{code: 302, answered: true},
		{code: 402, answered: true},
		{code: 404, answered: true},
		{code: 400, conflict: true, final: true},
		{code: 412, conflict: true, final: true},
		{code: 422, conflict: true, final: true},
		{code: 409, conflict: true},
		{code: 409, retryAfter: "1"},
		{code: 408},
		{code: 425},
		{code: 429},
		{code: 500},
		{code: 503},
	} {
		send := HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Idempotency-Key") != "k" {
				t.Error("the request has lost its key")
			}
			if c.retryAfter != "" {
				w.Header().Set("Retry-After", c.retryAfter)
			}
			w.Header().Set("Location", "/charges/1")
			w.Header().Set("Date", "today")
			w.WriteHeader(c.code)
			_, _ = w.Write([]byte("body"))
		}), post)
		answer, err := send(t.Context(), Request{Key: "k"})
		if (err == nil) != c.answered || isConflict(err) != c.conflict || isFinal(err) != c.final {
			t.Errorf("%d with Retry-After %q: answer %q, %v, conflict %v, final %v", c.code, c.retryAfter, answer, err, isConflict(err), isFinal(err))
		}
		if c.code == 201 && answer != "201 Created\nLocation: /charges/1\n\nbody" {
			t.Errorf("the answer is %q", answer)
		}
	}
}

// Every pair of keys has the same checksum, whatever follows.
func TestPairsOfKeysCollide(t *testing.T) {
	for _, sum := range checksums {
		for _, rest := range []string{"", idem.NewKey(), idem.NewKey()} {
			a, b := []byte(sum.keys[0]+rest), []byte(sum.keys[1]+rest)
			if sum.of(a) != sum.of(b) || sum.keys[0] == sum.keys[1] {
				t.Errorf("%s: %s and %s: %x and %x", sum.name, a, b, sum.of(a), sum.of(b))
			}
		}
	}
}

// PE-15: the payloads that neighbouring numbers make have the same Adler-32, and
// the kit finds them.
func TestPE15_CollidingPayloads(t *testing.T) {
	pair := collision(ids)
	if pair == nil || string(ids(pair.a)) != `{"id":120}` || string(ids(pair.b)) != `{"id":201}` || pair.sum != "Adler-32" {
		t.Errorf("the first payloads with the same checksum are %+v", pair)
	}
}

// How processes that were to be killed can end instead.
func TestKilledOtherwise(t *testing.T) {
	for name, c := range map[string]struct {
		setup   func(t testing.TB, e *Env) Subject
		skipped string
		said    string
	}{
		"nothing outlives it": {
			setup:   func(t testing.TB, e *Env) Subject { return Subject{Send: sound(t, e, nil)} },
			skipped: "Setup does not call Env.Dir",
		},
		"it does not show its effect": {
			setup: func(_ testing.TB, e *Env) Subject {
				e.Dir()
				return Subject{Send: func(context.Context, Request) (string, error) { return "", nil }}
			},
			skipped: "the program does not call Env.Effect",
		},
		"it fails": {
			setup: func(_ testing.TB, e *Env) Subject {
				e.Dir()
				return Subject{Send: func(context.Context, Request) (string, error) { return "", errors.New("no such host") }}
			},
			said: "a single request, to which nothing was done, got the error `no such host`",
		},
		"it does not come to Run": {
			setup: func(t testing.TB, e *Env) Subject {
				if isChild(t.Name()) {
					t.Fatal("no free port")
				}
				return Subject{}
			},
			said: "ended by itself, before it had sent the request. It said:",
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			op := Operation{Setup: c.setup}
			if isChild(t.Name()) {
				op.known = &known{}
				beKilled(t, op)
				return
			}
			r := verdict(t, find(t, "Killed/AfterTheEffect"), op)
			text := strings.Join(r.said, "\n")
			if r.failed != (c.said != "") || !strings.Contains(text, c.said) || !strings.Contains(r.skipped, c.skipped) {
				t.Errorf("skipped: %q, said: %s", r.skipped, text)
			}
			if c.said != "" && strings.Contains(c.said, "It said:") && !strings.Contains(text, "no free port") {
				t.Errorf("what the process said is not in\n%s", text)
			}
		})
	}
}

// What the process that was killed has done must be there when the next one
// counts.
func TestKilledEffectsAreCounted(t *testing.T) {
	op := Operation{Setup: func(_ testing.TB, e *Env) Subject {
		e.Dir()
		effects := 0 // gone with the process
		return Subject{
			Send: func(ctx context.Context, _ Request) (string, error) {
				return "", e.Effect(ctx, func() error { effects++; return nil })
			},
			Effects: func() int { return effects },
		}
	}}
	if isChild(t.Name()) {
		op.known = &known{}
		beKilled(t, op)
		return
	}
	r := verdict(t, find(t, "Killed/BeforeTheReply"), op)
	if !r.failed || !strings.Contains(r.said[0], "Subject.Effects has to count what outlives the process") {
		t.Errorf("skipped: %q, said: %v", r.skipped, r.said)
	}
}

// The documentation of Run names each subtest.
func TestRunIsDocumented(t *testing.T) {
	text, err := os.ReadFile("idemtest.go")
	if err != nil {
		t.Fatal(err)
	}
	_, doc, _ := strings.Cut(string(text), "// Run tests the operation")
	for _, s := range scenarios {
		if before, rest, ok := strings.Cut(doc, "//   - "+s.name+": "); !ok || strings.Contains(before, "//   - ") {
			t.Errorf("%s is not documented, or not in its place", s.name)
		} else {
			doc = rest
		}
	}
}

// The name of a test selects that test and no other.
func TestExactly(t *testing.T) {
	if got := exactly("TestA/b.c#01"); got != `^TestA$/^b\.c#01$` {
		t.Errorf("the pattern is %s", got)
	}
}

// What hangs is reported, with the stacks that tell where.
func TestHangingSendFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		r := verdict(t, find(t, "Twice"), Operation{Setup: func(testing.TB, *Env) Subject {
			return Subject{Send: func(context.Context, Request) (string, error) { <-hang; return "", nil }}
		}})
		close(hang)
		if text := strings.Join(r.said, "\n"); !r.failed || !strings.Contains(text, "The request hangs") || !strings.Contains(text, "TestHangingSendFails") {
			t.Errorf("a request that hangs gave: %v, %s", r.failed, text)
		}
	})
}

// A failure may be stored as a definite refusal; that is said, and no fault.
func TestDefiniteRefusal(t *testing.T) {
	op := Operation{Setup: func(t testing.TB, e *Env) Subject {
		store := open(t, e, nil)
		return Subject{Send: func(ctx context.Context, r Request) (string, error) {
			out, err := store.Do(ctx, r.Key, idem.Fingerprint{}, func(ctx context.Context, _ *idem.Claim) (idem.Result, error) {
				if e.Effect(ctx, nil) != nil {
					return idem.Result{Body: []byte("declined")}, nil
				}
				return idem.Result{Body: []byte("paid")}, nil
			})
			return string(out.Result.Body), err
		}}
	}}
	r := verdict(t, find(t, "EffectFails"), op)
	if r.failed || len(r.logged) != 1 || !strings.Contains(r.logged[0], "answered `declined` and stays with that") {
		t.Errorf("%q, %v, %v", r.skipped, r.said, r.logged)
	}
}
