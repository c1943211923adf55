package idemtest

import (
	"context"
	"errors"
	"fmt"
	"hash/adler32"
	"hash/crc32"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// A mistake is a small program that has one, as it is found in the wild.
type mistake struct {
	name string

	// program starts it, and returns its Send.
	program func(t testing.TB, e *Env) func(context.Context, Request) (string, error)

	// caughtBy has the scenarios that must fail, separated by blanks, and says
	// what their messages must contain: the name of the mistake.
	caughtBy string
	says     []string

	// passes has scenarios that do not show it, which is why it is so common.
	passes string

	after AfterCrash
}

func body(n int) []byte { return fmt.Appendf(nil, `{"account":7,"cents":%d}`, 100+n) }

// ids are the payloads of PE-15.
func ids(n int) []byte { return fmt.Appendf(nil, `{"id":%d}`, 120+n) }

func (m mistake) operation() Operation {
	op := Operation{
		Setup:      func(t testing.TB, e *Env) Subject { return Subject{Send: m.program(t, e)} },
		Payload:    body,
		Tenants:    []string{"alice", "bob"},
		AfterCrash: m.after,
	}
	if strings.HasPrefix(m.name, "PE-15") {
		op.Payload = ids
	}
	return op
}

// The kit finds each mistake, and calls it by its name.
func TestMistakes(t *testing.T)                  { findAll(t, "") }
func TestPE15_ChecksumOfThePayload(t *testing.T) { findAll(t, "PE-15 ") }
func TestPE16_SeenBeforeTheWork(t *testing.T)    { findAll(t, "PE-16 ") }
func TestOP1_WrongConsumers(t *testing.T)        { findAll(t, "OP-1 ") }

// findAll checks the mistakes whose names begin with a case's id; those without
// one if that is empty.
func findAll(t *testing.T, id string) {
	found := 0
	for _, m := range slices.Concat(mistakes, consumers, crashes) {
		name, ok := strings.CutPrefix(m.name, id)
		if !ok || id == "" && strings.Contains(m.name, "-") {
			continue
		}
		found++
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) { m.check(t) })
	}
	if found == 0 {
		t.Errorf("there is no mistake %q", id)
	}
}

func (m mistake) check(t *testing.T) {
	if isChild(t.Name()) {
		op := m.operation()
		op.known = &known{}
		beKilled(t, op)
		return
	}
	for _, name := range strings.Fields(m.caughtBy) {
		r := verdict(t, find(t, name), m.operation())
		if !r.failed {
			t.Errorf("%s passed (skipped: %q)", name, r.skipped)
			continue
		}
		text := strings.Join(r.said, "\n")
		t.Log(text)
		text = strings.Join(strings.Fields(text), " ") // as if it had not been wrapped
		first := text
		if _, causes, ok := strings.Cut(text, "1. "); ok {
			first, _, _ = strings.Cut(causes, " 2. ")
		}
		for _, says := range m.says {
			if !strings.Contains(text, says) {
				t.Errorf("%s does not say %q:\n%s", name, says, text)
			}
		}
		if !strings.Contains(first, m.says[0]) {
			t.Errorf("%s does not say %q as the first cause:\n%s", name, m.says[0], text)
		}
	}
	for _, name := range strings.Fields(m.passes) {
		if r := verdict(t, find(t, name), m.operation()); r.failed || r.skipped != "" {
			t.Errorf("%s does not pass: %q %s", name, r.skipped, strings.Join(r.said, "\n"))
		}
	}
}

// A table is what programs keep in a database of their own: what was answered
// under which key.
type table struct {
	mu   sync.Mutex
	rows map[string]string
}

func newTable() *table { return &table{rows: make(map[string]string)} }

func (d *table) get(key string) (string, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, ok := d.rows[key]
	return v, ok
}

func (d *table) put(key, v string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rows[key] = v
}

// insert puts v under key if there is nothing, as a unique index does.
func (d *table) insert(key, v string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.rows[key]; ok {
		return false
	}
	d.rows[key] = v
	return true
}

func (d *table) remove(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.rows, key)
}

func open(t testing.TB, e *Env, opts *idem.Options) *idem.Store {
	t.Helper()
	store, err := idem.New(e.Wrap(memory.New()), opts)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// once is the right way, for the programs whose mistake is elsewhere: the fake
// bank recognises the key that it is sent.
func once(e *Env) func(context.Context, *idem.Claim) (idem.Result, error) {
	bank := newTable()
	return func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
		key := c.ChildKey("charge")
		if _, done := bank.get(key); !done {
			if err := e.Effect(ctx, func() error { bank.put(key, ""); return nil }); err != nil {
				return idem.Result{}, err
			}
		}
		return idem.Result{Body: []byte("receipt " + key)}, nil
	}
}

type send = func(context.Context, Request) (string, error)

var mistakes = []mistake{
	{
		name:     "look then write",
		caughtBy: "AtOnce WhileRunning OtherPayloadWhileRunning",
		says:     []string{"Look-then-write", "effect", "unique index"},
		passes:   "Twice ReplyLost OtherKey OtherTenant EffectFails",
		program: func(_ testing.TB, e *Env) send {
			seen := newTable()
			return func(ctx context.Context, r Request) (string, error) {
				if answer, ok := seen.get(r.Tenant + r.Key); ok {
					return answer, nil
				}
				if err := e.Effect(ctx, nil); err != nil {
					return "", err
				}
				seen.put(r.Tenant+r.Key, "receipt "+r.Key)
				return "receipt " + r.Key, nil
			}
		},
	},
	{
		name:     "a key per attempt",
		caughtBy: "Twice ReplyLost AtOnce WhileRunning",
		says:     []string{"A new key for each attempt", "In the store they have different ones"},
		program: func(t testing.TB, e *Env) send {
			store := open(t, e, nil)
			return func(ctx context.Context, r Request) (string, error) {
				out, err := store.Do(ctx, idem.NewKey(), idem.FingerprintOf(r.Payload), plain(e))
				return string(out.Result.Body), err
			}
		},
	},
	{
		name:     "no protection at all",
		caughtBy: "Twice ReplyLost",
		says:     []string{"key", "The effect happened"},
		program: func(_ testing.TB, e *Env) send {
			return func(ctx context.Context, r Request) (string, error) {
				return "receipt", e.Effect(ctx, nil)
			}
		},
	},
	{
		name:     "effect outside of the claim",
		caughtBy: "Twice ReplyLost AtOnce CallerGone",
		says:     []string{"The effect is outside of the claim", "The effect happened before the key"},
		program: func(t testing.TB, e *Env) send {
			store := open(t, e, nil)
			return func(ctx context.Context, r Request) (string, error) {
				if err := e.Effect(ctx, nil); err != nil {
					return "", err
				}
				out, err := store.Do(ctx, r.Key, idem.FingerprintOf(r.Payload), func(context.Context, *idem.Claim) (idem.Result, error) {
					return idem.Result{Body: []byte("receipt")}, nil
				})
				return string(out.Result.Body), err
			}
		},
	},
	{
		name:     "result not stored",
		caughtBy: "Twice ReplyLost",
		says:     []string{"The result is not stored", "no completion with a result was seen"},
		program: func(t testing.TB, e *Env) send {
			store := open(t, e, nil)
			return func(ctx context.Context, r Request) (string, error) {
				claim, _, err := store.Begin(ctx, r.Key, idem.FingerprintOf(r.Payload))
				if err != nil {
					return "", err
				}
				defer store.Release(ctx, claim)
				return "receipt", e.Effect(ctx, nil)
			}
		},
	},
	{
		name:     "already processed as an error",
		caughtBy: "Twice ReplyLost",
		says:     []string{`"Already processed" as an error`, "never gets its answer", "conflict: already processed"},
		program: func(_ testing.TB, e *Env) send {
			seen := newTable()
			return func(ctx context.Context, r Request) (string, error) {
				if !seen.insert(r.Key, "") {
					return "", errors.New("conflict: already processed")
				}
				return "receipt", e.Effect(ctx, nil)
			}
		},
	},
	{
		name:     "already processed over HTTP",
		caughtBy: "Twice",
		says:     []string{`"Already processed" as an error`, "409 Conflict: already processed"},
		program: func(_ testing.TB, e *Env) send {
			seen := newTable()
			return HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !seen.insert(r.Header.Get("Idempotency-Key"), "") {
					http.Error(w, "already processed", http.StatusConflict)
					return
				}
				_ = e.Effect(r.Context(), nil)
				w.WriteHeader(http.StatusCreated)
			}), post)
		},
	},
	{
		name:     "another answer",
		caughtBy: "Twice ReplyLost",
		says:     []string{"The answer is made anew", "The answers differ", "201 Created", "200 OK", "already processed"},
		program: func(_ testing.TB, e *Env) send {
			seen := newTable()
			return HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !seen.insert(r.Header.Get("Idempotency-Key"), "") {
					fmt.Fprint(w, "already processed")
					return
				}
				_ = e.Effect(r.Context(), nil)
				w.WriteHeader(http.StatusCreated)
			}), post)
		},
	},
	{
		name:     "key not scoped to the tenant",
		caughtBy: "OtherTenant",
		says:     []string{"not scoped to the tenant", "another person's data"},
		passes:   "Twice OtherKey OtherPayload",
		program: func(t testing.TB, e *Env) send {
			store := open(t, e, nil)
			return func(ctx context.Context, r Request) (string, error) {
				out, err := store.Do(ctx, r.Key, idem.FingerprintOf(r.Payload), once(e))
				return string(out.Result.Body), err
			}
		},
	},
	{
		name:     "fingerprint without the amount",
		caughtBy: "OtherPayload OtherPayloadWhileRunning",
		says:     []string{"The fingerprint leaves out", `"cents":100`, `"cents":101`, "as if it had been carried out"},
		passes:   "Twice OtherKey",
		program: func(t testing.TB, e *Env) send {
			store := open(t, e, nil)
			return func(ctx context.Context, r Request) (string, error) {
				account, _, _ := strings.Cut(string(r.Payload), ",")
				out, err := store.Do(ctx, r.Key, idem.FingerprintOf([]byte(account)), once(e))
				return string(out.Result.Body), err
			}
		},
	},
	{
		name:     "payload in the key",
		caughtBy: "OtherPayload",
		says:     []string{"The payload is part of the key", "There were 2 effects"},
		program: func(t testing.TB, e *Env) send {
			store := open(t, e, nil)
			return func(ctx context.Context, r Request) (string, error) {
				out, err := store.Do(ctx, r.Key+idem.FingerprintOf(r.Payload).String(), idem.Fingerprint{}, plain(e))
				return string(out.Result.Body), err
			}
		},
	},
	{
		name:     "a refusal looks like an answer",
		caughtBy: "OtherPayload",
		says:     []string{"The refusal looks like an answer", "200 OK", "another order has this key"},
		passes:   "Twice OtherKey",
		program: func(_ testing.TB, e *Env) send {
			done := newTable()
			return HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if done.insert(r.Header.Get("Idempotency-Key"), string(body)) {
					_ = e.Effect(r.Context(), nil)
				}
				if was, _ := done.get(r.Header.Get("Idempotency-Key")); was != string(body) {
					fmt.Fprint(w, `{"error":"another order has this key"}`)
				}
			}), post)
		},
	},
	{
		name:     "a refusal frees the key",
		caughtBy: "OtherPayload",
		says:     []string{"The refusal touches the record", "The effect happened 2 times"},
		passes:   "Twice OtherKey",
		program: func(_ testing.TB, e *Env) send {
			var mu sync.Mutex
			done := newTable()
			return func(ctx context.Context, r Request) (answer string, err error) {
				mu.Lock()
				defer mu.Unlock()
				defer func() {
					if err != nil {
						done.remove(r.Key)
					}
				}()
				if payload, ok := done.get(r.Key); ok && payload != string(r.Payload) {
					return "", ErrConflict
				} else if ok {
					return "receipt", nil
				}
				done.put(r.Key, string(r.Payload))
				return "receipt", e.Effect(ctx, nil)
			}
		},
	},
	{
		name:     "key not looked at",
		caughtBy: "OtherKey",
		says:     []string{"The key is not looked at", "had no effect of its own"},
		program: func(t testing.TB, e *Env) send {
			store := open(t, e, nil)
			return func(ctx context.Context, r Request) (string, error) {
				out, err := store.Do(ctx, idem.FingerprintOf(r.Payload).String(), idem.Fingerprint{}, plain(e))
				return string(out.Result.Body), err
			}
		},
	},
	{
		name:     "PE-15 checksum of the payload",
		caughtBy: "LookAlikePayloads",
		says:     []string{"32-bit checksum", "Adler-32", `{"id":201}`, `{"id":120}`},
		passes:   "Twice WhileRunning",
		program: func(_ testing.TB, e *Env) send {
			return consumer(e, func(r Request) string { return fmt.Sprint(adler32.Checksum(r.Payload)) }, asItIs)
		},
	},
	{
		name:     "checksum of the key",
		caughtBy: "LookAlikeKeys",
		says:     []string{"32-bit checksum", "the same CRC-32"},
		passes:   "Twice WhileRunning OtherKey",
		program: func(_ testing.TB, e *Env) send {
			return consumer(e, func(r Request) string { return fmt.Sprint(crc32.ChecksumIEEE([]byte(r.Key))) }, asItIs)
		},
	},
	{
		name:     "the caller's context",
		caughtBy: "CallerGone",
		says:     []string{"recorded with the caller's context", "The effect happened 2 times"},
		passes:   "Twice AtOnce WhileRunning",
		program: func(t testing.TB, e *Env) send {
			store := open(t, e, nil)
			return func(ctx context.Context, r Request) (string, error) {
				claim, done, err := store.Begin(ctx, r.Key, idem.FingerprintOf(r.Payload))
				if err != nil {
					return "", err
				}
				if done != nil {
					return string(done.Result.Body), nil
				}
				if err := e.Effect(ctx, nil); err != nil {
					return "", err
				}
				return "receipt", store.Complete(ctx, claim, idem.Result{Body: []byte("receipt")})
			}
		},
	},
}

// plain has an effect that knows nothing of repetitions.
func plain(e *Env) func(context.Context, *idem.Claim) (idem.Result, error) {
	return func(ctx context.Context, _ *idem.Claim) (idem.Result, error) {
		return idem.Result{Body: []byte("receipt")}, e.Effect(ctx, nil)
	}
}

func post(r Request) *http.Request {
	req, err := http.NewRequest(http.MethodPost, "/charges", strings.NewReader(string(r.Payload)))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Idempotency-Key", r.Key)
	return req
}
