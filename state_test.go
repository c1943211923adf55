package idem_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
)

// The state machine as a table: what is stored (down), what is called (across),
// what the answer is, and after an arrow what is stored then. Without an arrow
// nothing may have been written.
//
// The calls are those of attempt 1, whose id is "me", and of strangers: begin
// with the payload A of the record or with another, and the decisions, which
// name attempt 1.
//
//	free     released by attempt 1        run      attempt 1, lease left
//	lapsed   attempt 1, lease over        left     abandoned by attempt 1
//	done     completed by attempt 1 (r1)  run2     attempt 2 has taken over
//	lapsed2  attempt 2, lease over        done2    completed by attempt 2 (r1)
//	gone     completed, but expired
const stateTable = `
         | begin A          | begin B       | complete r1    | complete r2    | release        | abandon        | extend        | checkpoint    | resolve r1     | resolve r2     | forget         | reclaim         | erase
absent   | claim > run1     | claim > run1  | lost           | lost           | ok             | ok             | lost          | lost          | lost           | lost           | lost           | lost            | ok
gone     | claim > run1     | claim > run1  | lost           | lost           | ok             | ok             | lost          | lost          | lost           | lost           | lost           | lost            | ok
free     | claim > run2     | claim > run2  | lost           | lost           | ok             | ok             | lost          | lost          | lost           | lost           | lost           | lost            | ok
run      | busy             | mismatch      | ok > done1 r1  | ok > done1 r2  | ok > free1     | ok > left1     | ok > run1     | ok > run1     | busy           | busy           | busy           | busy            | busy
lapsed   | takeover > run2  | mismatch      | ok > done1 r1  | ok > done1 r2  | ok > free1     | ok > left1     | ok > run1     | ok > run1     | ok > done1 r1  | ok > done1 r2  | ok > free1     | takeover > run2 | unresolved
left     | takeover > run2  | mismatch      | ok > done1 r1  | ok > done1 r2  | ok             | ok             | ok > run1     | ok > run1     | ok > done1 r1  | ok > done1 r2  | ok > free1     | takeover > run2 | unresolved
done     | replay           | mismatch      | ok             | completed      | ok             | ok             | lost          | lost          | ok             | completed      | completed      | completed       | ok > erased1
run2     | busy             | mismatch      | lost           | lost           | ok             | ok             | lost          | lost          | lost           | lost           | lost           | lost            | busy
lapsed2  | takeover > run3  | mismatch      | lost           | lost           | ok             | ok             | lost          | lost          | lost           | lost           | lost           | lost            | unresolved
done2    | replay           | mismatch      | lost           | lost           | ok             | ok             | lost          | lost          | lost           | lost           | lost           | lost            | ok > erased2
`

var (
	payloadA = idem.FingerprintOf([]byte("A"))
	payloadB = idem.FingerprintOf([]byte("B"))
	result1  = idem.Result{Code: 201, Meta: map[string]string{"type": "text"}, Body: []byte("r1")}
	result2  = idem.Result{Code: 202, Body: []byte("r2")}
)

const (
	lease     = 10 * time.Second
	retention = 48 * time.Hour
)

func TestStateMachine(t *testing.T) {
	for _, policy := range []idem.LapsePolicy{idem.Takeover, idem.Hold} {
		table := stateTable
		if policy == idem.Hold {
			// The only difference: a request does not take over.
			for _, state := range []string{"lapsed   ", "left     ", "lapsed2  "} {
				head, rest, _ := strings.Cut(table, "\n"+state+"|")
				_, rest, _ = strings.Cut(rest, "|")
				table = head + "\n" + state + "| unresolved |" + rest
			}
		}
		rows := strings.Split(strings.TrimSpace(table), "\n")
		calls := strings.Split(rows[0], "|")
		for _, row := range rows[1:] {
			cells := strings.Split(row, "|")
			for i := 1; i < len(cells); i++ {
				state, call, want := strings.TrimSpace(cells[0]), strings.TrimSpace(calls[i]), strings.TrimSpace(cells[i])
				if i > len(calls)-1 {
					t.Fatalf("row %q has more cells than there are calls", state)
				}
				t.Run(fmt.Sprintf("%v/%s/%s", policy, state, call), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { testTransition(t, policy, state, call, want) })
				})
			}
		}
	}
}

func testTransition(t *testing.T, policy idem.LapsePolicy, state, call, want string) {
	ctx := context.Background()
	b := memory.New()
	s, err := idem.New(b, &idem.Options{Lease: lease, Retention: retention, OnLapse: policy})
	if err != nil {
		t.Fatal(err)
	}
	mine := idem.Record{
		Token: "me.1", Status: idem.InProgress, Attempt: 1, Fence: 41, Fingerprint: payloadA,
		Checkpoint: []byte("note"), Lease: lease, TTL: lease + retention,
	}
	c := idem.ClaimOf("k", mine)
	plant(t, b, state, mine)
	before, _ := b.Get(ctx, "k")

	answer := ask(t, s, c, call)
	after, _ := b.Get(ctx, "k")

	wantAnswer, wantAfter, writes := strings.Cut(want, " > ")
	if answer != wantAnswer {
		t.Errorf("answer %q, want %q", answer, wantAnswer)
	}
	if !writes {
		if after.Token != before.Token {
			t.Fatalf("written: %+v; a caller that is refused writes nothing", after)
		}
		return
	}
	if after.Token == before.Token {
		t.Fatalf("nothing was written, want %s", wantAfter)
	}
	if got := describe(after); got != wantAfter {
		t.Errorf("stored afterwards %q, want %q", got, wantAfter)
	}
	checkRecord(t, policy, before, after)
}

// plant stores the record of the state.
func plant(t *testing.T, b *memory.Backend, state string, mine idem.Record) {
	r, wait := mine, time.Duration(0)
	switch state {
	case "absent":
		return
	case "gone":
		r.Status, r.TTL, r.Lease, wait = idem.Completed, time.Hour, 0, time.Hour
	case "free":
		r.Status, r.Fingerprint, r.Lease, r.Checkpoint, r.TTL = idem.Released, idem.Fingerprint{}, 0, nil, time.Hour
	case "run", "run2":
		wait = lease - 1
	case "lapsed", "lapsed2":
		wait = lease
	case "left":
		r.Lease = 0
	case "done", "done2":
		r.Status, r.Result, r.Lease, r.Checkpoint, r.TTL = idem.Completed, result1, 0, nil, retention
	default:
		t.Fatalf("unknown state %q", state)
	}
	if strings.HasSuffix(state, "2") {
		r.Token, r.Attempt, r.Fence = "it.1", 2, 42
	} else if state != "run" && state != "lapsed" {
		r.Token = "me.2"
	}
	if _, err := b.Swap(context.Background(), "k", "", r); err != nil {
		t.Fatal(err)
	}
	time.Sleep(wait)
}

// ask makes the call and puts the answer in a word.
func ask(t *testing.T, s *idem.Store, c *idem.Claim, call string) string {
	ctx := context.Background()
	var granted *idem.Claim
	var done *idem.Record
	var err error
	switch call {
	case "begin A":
		granted, done, err = s.Begin(ctx, "k", payloadA)
	case "begin B":
		granted, done, err = s.Begin(ctx, "k", payloadB)
	case "complete r1":
		err = s.Complete(ctx, c, result1)
	case "complete r2":
		err = s.Complete(ctx, c, result2)
	case "release":
		err = s.Release(ctx, c)
	case "abandon":
		err = s.Abandon(ctx, c)
	case "extend":
		err = s.Extend(ctx, c)
	case "checkpoint":
		err = s.Checkpoint(ctx, c, []byte("note"))
	case "resolve r1":
		err = s.Resolve(ctx, "k", 1, result1)
	case "resolve r2":
		err = s.Resolve(ctx, "k", 1, result2)
	case "forget":
		err = s.Forget(ctx, "k", 1)
	case "reclaim":
		granted, err = s.Reclaim(ctx, "k", 1)
	case "erase":
		err = s.Erase(ctx, "k")
	default:
		t.Fatalf("unknown call %q", call)
	}
	answers := 0
	for _, given := range []bool{granted != nil, done != nil, err != nil} {
		if given {
			answers++
		}
	}
	if answers > 1 {
		t.Errorf("%d answers at once: claim %v, record %v, error %v", answers, granted, done, err)
	}
	switch {
	case done != nil:
		if !done.Result.Equal(result1) {
			t.Errorf("replayed %+v, want %+v", done.Result, result1)
		}
		return "replay"
	case granted != nil && granted.Takeover:
		if string(granted.Checkpoint) != "note" {
			t.Errorf("the takeover got the checkpoint %q, want what the attempt before had noted", granted.Checkpoint)
		}
		return "takeover"
	case granted != nil:
		if granted.Checkpoint != nil {
			t.Errorf("a fresh claim has the checkpoint %q", granted.Checkpoint)
		}
		return "claim"
	case err == nil:
		return "ok"
	}
	e, ok := errors.AsType[*idem.Error](err)
	if !ok || e.Key != "k" || !strings.HasPrefix(call, e.Op) {
		t.Errorf("error %#v, want an *Error with the operation and the key", err)
	}
	words := map[string]error{
		"lost": idem.ErrLost, "completed": idem.ErrCompleted, "busy": idem.ErrInProgress,
		"mismatch": idem.ErrMismatch, "unresolved": idem.ErrUnresolved,
	}
	answer := ""
	for word, sentinel := range words {
		if errors.Is(err, sentinel) {
			answer += word
		}
	}
	if retry := e.RetryAfter(); (answer == "busy") != (retry > 0) || retry > lease {
		t.Errorf("RetryAfter = %v with %q", retry, answer)
	}
	if answer == "unresolved" && (string(e.Record.Checkpoint) != "note" || e.Record.Attempt == 0) {
		t.Errorf("ErrUnresolved carries %+v, want the attempt and its checkpoint", e.Record)
	}
	if answer == "mismatch" && (e.Record.Result.Body != nil || e.Record.Checkpoint != nil) {
		t.Errorf("ErrMismatch shows another payload's data: %+v", e.Record)
	}
	return answer
}

// describe puts a stored record in the words of the table.
func describe(r idem.Record) string {
	switch {
	case r.Status == idem.InProgress && r.Lease == 0:
		return fmt.Sprintf("left%d", r.Attempt)
	case r.Status == idem.InProgress:
		return fmt.Sprintf("run%d", r.Attempt)
	case r.Status == idem.Released:
		return fmt.Sprintf("free%d", r.Attempt)
	case r.Status == idem.Completed && r.Result.Omitted:
		return fmt.Sprintf("erased%d", r.Attempt)
	case r.Status == idem.Completed:
		return fmt.Sprintf("done%d %s", r.Attempt, r.Result.Body)
	}
	return "absent"
}

// checkRecord checks what holds for every record that is written.
func checkRecord(t *testing.T, policy idem.LapsePolicy, before, after idem.Record) {
	t.Helper()
	id, random, _ := strings.Cut(after.Token, ".")
	if id == "" || random == "" {
		t.Errorf("token %q, want <attempt id>.<random>", after.Token)
	}
	if after.Attempt == before.Attempt && !strings.HasPrefix(before.Token, id+".") {
		t.Errorf("token %q after %q: an attempt keeps its id", after.Token, before.Token)
	}
	if after.Attempt != before.Attempt && after.Fence <= before.Fence || after.Attempt == before.Attempt && after.Fence != before.Fence {
		t.Errorf("fence %d of attempt %d after %d of %d", after.Fence, after.Attempt, before.Fence, before.Attempt)
	}
	ttl, checkpoint, fp := retention, "", before.Fingerprint
	switch after.Status {
	case idem.InProgress:
		checkpoint = "note"
		if ttl = lease + retention; policy == idem.Hold {
			ttl = 100 * 365 * 24 * time.Hour
		}
		if before.Status != idem.InProgress {
			checkpoint, fp = "", after.Fingerprint
		}
	case idem.Released:
		ttl, fp = time.Hour, idem.Fingerprint{}
	}
	if after.TTL != ttl {
		t.Errorf("TTL %v, want %v", after.TTL, ttl)
	}
	if string(after.Checkpoint) != checkpoint {
		t.Errorf("checkpoint %q, want %q", after.Checkpoint, checkpoint)
	}
	if after.Fingerprint != fp {
		t.Errorf("fingerprint %v, want %v", after.Fingerprint, fp)
	}
	if l := after.Lease; l != 0 && l != lease || l != 0 && after.Status != idem.InProgress {
		t.Errorf("lease %v", l)
	}
}
