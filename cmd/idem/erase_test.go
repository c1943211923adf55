package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// A meanwhile is a store in which something happens before its last listing.
type meanwhile struct {
	records
	listings int
	happens  func()
}

func (m *meanwhile) List(ctx context.Context, q idem.Query) ([]idem.Entry, string, error) {
	if q.Cursor == "" {
		if m.listings++; m.listings == 3 {
			m.happens()
		}
	}
	return m.records.List(ctx, q)
}

// A result that is recorded when its page has been passed is not said to be erased.
func TestEraseTellsWhatWasRecordedMeanwhile(t *testing.T) {
	ctx, b := t.Context(), memory.New()
	store, err := idem.New(b, &idem.Options{Scope: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	claims := make(map[string]*idem.Claim)
	for _, key := range []string{"before", "meanwhile"} {
		if claims[key], _, err = store.Begin(ctx, key, idem.Fingerprint{}); err != nil {
			t.Fatal(err)
		}
	}
	complete := func(key string) {
		if err := store.Complete(ctx, claims[key], idem.Result{Body: []byte("secret")}); err != nil {
			t.Error(err)
		}
	}
	complete("before")
	m := &meanwhile{records: b, happens: func() { complete("meanwhile") }}
	c := &eraseCommand{Scope: []string{"ada"}, consent: consent{Yes: true}}
	at, err := where{c.Scope, place{"s.db"}}.at("", func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	var out, told bytes.Buffer
	for i, want := range []string{"1 result that was recorded meanwhile", ""} {
		err := c.eraseIn(&session{ctx: ctx, stdin: strings.NewReader(""), stdout: &out, stderr: &told}, at, &storage{records: m, location: at.location})
		f, failed := errors.AsType[*failure](err)
		if failed != (want != "") || failed && (f.code != exitFindings || !strings.Contains(f.Error(), want)) {
			t.Errorf("call %d: %v, want %q\n%s%s", i+1, err, want, &out, &told)
		}
	}
}
