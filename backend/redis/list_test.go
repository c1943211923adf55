package redis

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testredis"
)

// Keys of others in the same database are passed by, whatever they look like.
func TestListAmongOthers(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	o := own()
	o.Prefix += "*[a-z]?^\\:"
	b := newBackend(t, client, o)
	ctx := t.Context()
	want := make(map[string]bool)
	for i := range 50 {
		key := fmt.Sprintf("k%d", i)
		r := example()
		if _, err := b.Swap(ctx, key, "", r); err != nil {
			t.Fatal(err)
		}
		want[key] = true
	}
	for i := range 300 {
		client.Set(ctx, fmt.Sprintf("other-%s-%d", o.Prefix, i), "x", time.Minute)
		client.Set(ctx, fmt.Sprintf("%s%d", o.Prefix, i), "x", time.Minute)
		client.LPush(ctx, fmt.Sprintf("%s{abc%d", o.Prefix, i), "x")
		client.Set(ctx, fmt.Sprintf("%s{aaaa}%d", o.Prefix, i), "x", time.Minute)
		client.Set(ctx, strings.ReplaceAll(fmt.Sprintf("%s{aaaa}k%d", o.Prefix, i), "*", "x"), "x", time.Minute)
	}
	q := idem.Query{Prefix: "k", Limit: 7}
	for pages := 0; ; pages++ {
		entries, next, err := b.List(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			delete(want, e.Key)
			if !strings.HasPrefix(e.Key, "k") {
				t.Errorf("%q is not asked for", e.Key)
			}
		}
		if next == "" {
			break
		}
		if pages > 10_000 {
			t.Fatal("it does not come to an end")
		}
		q.Cursor = next
	}
	if len(want) > 0 {
		t.Errorf("%d records were not listed: %v", len(want), want)
	}
}

// A damaged record is an error, not left out.
func TestListDamage(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	b := newBackend(t, client, nil)
	if err := client.Set(t.Context(), b.Key("k"), "nonsense", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	_, _, err := b.List(t.Context(), idem.Query{})
	wantErr(t, "List", err, idem.ErrCorrupt)
}

func TestListCursorOfAnotherNode(t *testing.T) {
	client := testredis.Client(t, testredis.Shared(t), nil)
	b := newBackend(t, client, nil)
	c := cursor{node: "10.0.0.1:6379", scan: 1}.String()
	if _, _, err := b.List(t.Context(), idem.Query{Cursor: c}); err == nil || !strings.Contains(err.Error(), "10.0.0.1:6379") {
		t.Errorf("List with the cursor of a node that is gone: %v", err)
	}
}
