package idem_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// An API server claims, a worker elsewhere completes.
func TestClaimTravelsAsText(t *testing.T) {
	ctx := context.Background()
	s := open(t, nil, &idem.Options{Scope: "tenant"})
	c := begin(t, s, "order-1", payloadA)
	if err := s.Checkpoint(ctx, c, []byte("queued")); err != nil {
		t.Fatal(err)
	}
	doc, err := json.Marshal(map[string]any{"claim": c})
	if err != nil {
		t.Fatal(err)
	}
	var msg struct{ Claim idem.Claim }
	if err := json.Unmarshal(doc, &msg); err != nil {
		t.Fatal(err)
	}
	got := &msg.Claim
	if got.Key != "order-1" || got.Attempt != 1 || got.Fence != c.Fence || got.Fingerprint != payloadA || got.Takeover || string(got.Checkpoint) != "queued" || got.ChildKey("x") != c.ChildKey("x") {
		t.Errorf("%+v", got)
	}
	// Both go on with it, in turns: a write of one is no loss for the other.
	for range 3 {
		if err := s.Extend(ctx, c); err != nil {
			t.Errorf("the server's copy: %v", err)
		}
		if err := s.Checkpoint(ctx, got, []byte("half done")); err != nil {
			t.Errorf("the worker's copy: %v", err)
		}
	}
	if err := s.Extend(ctx, c); err != nil {
		t.Error(err)
	}
	if r := lookup(t, s, "order-1"); string(r.Checkpoint) != "half done" {
		t.Errorf("the server's heartbeat has lost the worker's checkpoint: %q", r.Checkpoint)
	}
	if err := s.Complete(ctx, got, result1); err != nil {
		t.Fatal(err)
	}
	if err := s.Extend(ctx, c); !errors.Is(err, idem.ErrLost) {
		t.Errorf("the server's heartbeat after completion: %v", err)
	}
	if err := s.Release(ctx, c); err != nil {
		t.Errorf("the server's deferred Release: %v", err)
	}
	if _, done, err := s.Begin(ctx, "order-1", payloadA); done == nil || !done.Result.Equal(result1) {
		t.Errorf("replay: %v, %v", done, err)
	}
}

func TestClaimTextKeepsWhatReleaseMayDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		s := open(t, nil, &idem.Options{Lease: lease})
		begin(t, s, "k", payloadA)
		copyOf := func(c *idem.Claim) *idem.Claim {
			text, err := c.MarshalText()
			if err != nil {
				t.Fatal(err)
			}
			if bytes.ContainsAny(text, "+/= \n\"") {
				t.Errorf("%q is not URL-safe", text)
			}
			var c2 idem.Claim
			if err := c2.UnmarshalText(text); err != nil {
				t.Fatal(err)
			}
			return &c2
		}
		time.Sleep(lease)
		c := copyOf(begin(t, s, "k", payloadA))
		if !c.Takeover {
			t.Error("the copy does not know that it took over")
		}
		if err := s.Release(ctx, c); err != nil {
			t.Error(err)
		}
		if r := lookup(t, s, "k"); !r.Lapsed() {
			t.Errorf("Release of a takeover's copy left %v", r.Status)
		}
		rc, err := s.Reclaim(ctx, "k", 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Release(ctx, copyOf(rc)); err != nil {
			t.Error(err)
		}
		if r := lookup(t, s, "k"); r.Status != idem.Released {
			t.Errorf("Release of a reclaimed copy left %v", r.Status)
		}
	})
}

// A claim keeps what was noted, whatever becomes of the caller's bytes.
func TestCheckpointIsCopied(t *testing.T) {
	ctx := context.Background()
	s := open(t, nil, nil)
	c := begin(t, s, "k", payloadA)
	note := []byte("page 40")
	if err := s.Checkpoint(ctx, c, note); err != nil {
		t.Fatal(err)
	}
	note[5] = '9'
	if err := s.Extend(ctx, c); err != nil { // writes the note again
		t.Fatal(err)
	}
	if r := lookup(t, s, "k"); string(r.Checkpoint) != "page 40" {
		t.Errorf("checkpoint %q", r.Checkpoint)
	}
}

func TestDamagedClaimText(t *testing.T) {
	s := open(t, nil, &idem.Options{Scope: "tenant"})
	text, err := begin(t, s, "order-1", payloadA).MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	check := func(text []byte) {
		var c idem.Claim
		if err := c.UnmarshalText(text); !errors.Is(err, idem.ErrCorrupt) || c.Key != "" {
			t.Errorf("%q: %v, claim %q", text, err, c.Key)
		}
	}
	for i := range text {
		check(text[:i])
		changed := bytes.Clone(text)
		if changed[i]++; changed[i] == '_'+1 {
			changed[i] = 'A'
		}
		check(changed)
	}
	check(nil)
	check([]byte("idem1."))
	check([]byte("idem2.AAAA"))
}

func FuzzClaimText(f *testing.F) {
	s := open(f, memory.New(), nil)
	text, err := begin(f, s, "k", payloadA).MarshalText()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("idem1.AAAAAA"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var c idem.Claim
		if err := c.UnmarshalText(text); err != nil && !errors.Is(err, idem.ErrCorrupt) {
			t.Errorf("%v", err)
		}
	})
}
