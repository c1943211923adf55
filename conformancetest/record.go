package conformancetest

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/idem-go/idem"
)

var fences atomic.Int64

// newRecord returns a record as a Store would write it, with a token of its
// own, that lives for 30 hours.
func newRecord(s idem.Status) idem.Record {
	r := idem.Record{
		Token:   rand.Text() + "." + rand.Text(),
		Status:  s,
		Attempt: 1,
		Fence:   fences.Add(1),
		TTL:     30 * time.Hour,
	}
	switch s {
	case idem.InProgress:
		r.Lease = 10 * time.Hour
		r.Checkpoint = []byte("half-way " + r.Token)
		copy(r.Fingerprint[:], rand.Text())
	case idem.Completed:
		copy(r.Fingerprint[:], rand.Text())
		r.Result = idem.Result{
			Code: 201,
			Meta: map[string]string{"Content-Type": "text/plain"},
			Body: []byte("result of " + r.Token),
		}
	}
	return r
}

// successor returns a record that is to replace r.
func successor(r idem.Record) idem.Record {
	next := newRecord(idem.InProgress)
	next.Attempt = r.Attempt + 1
	return next
}

// diff says in what two records differ, their ages aside, or "".
func diff(got, want idem.Record) string {
	switch {
	case got.Token != want.Token && want.Token == "":
		return "there is a record where there should be none"
	case got.Token != want.Token && got.Token == "":
		return "there is no record"
	case got.Token != want.Token:
		return "it is another record"
	case got.Status != want.Status:
		return fmt.Sprintf("Status is %v, want %v", got.Status, want.Status)
	case got.Attempt != want.Attempt:
		return fmt.Sprintf("Attempt is %d, want %d", got.Attempt, want.Attempt)
	case got.Fence != want.Fence:
		return fmt.Sprintf("Fence is %d, want %d", got.Fence, want.Fence)
	case got.Fingerprint != want.Fingerprint:
		return fmt.Sprintf("Fingerprint is %v, want %v", got.Fingerprint, want.Fingerprint)
	case got.Result.Code != want.Result.Code:
		return fmt.Sprintf("Code is %d, want %d", got.Result.Code, want.Result.Code)
	case got.Result.Omitted != want.Result.Omitted:
		return fmt.Sprintf("Omitted is %v, want %v", got.Result.Omitted, want.Result.Omitted)
	case !maps.Equal(got.Result.Meta, want.Result.Meta):
		return fmt.Sprintf("Meta is %s, want %s", short(fmt.Sprintf("%q", got.Result.Meta)), short(fmt.Sprintf("%q", want.Result.Meta)))
	case !bytes.Equal(got.Result.Body, want.Result.Body):
		return fmt.Sprintf("Body is %q (%d bytes), want %q (%d bytes)", short(string(got.Result.Body)), len(got.Result.Body), short(string(want.Result.Body)), len(want.Result.Body))
	case !bytes.Equal(got.Checkpoint, want.Checkpoint):
		return fmt.Sprintf("Checkpoint is %q, want %q", short(string(got.Checkpoint)), short(string(want.Checkpoint)))
	case got.Lease != want.Lease:
		return fmt.Sprintf("Lease is %v, want %v", got.Lease, want.Lease)
	case got.TTL != want.TTL:
		return fmt.Sprintf("TTL is %v, want %v", got.TTL, want.TTL)
	}
	return ""
}

// show describes a record for a message.
func show(r idem.Record) string {
	if r.Token == "" && r.Status == 0 {
		return "no record"
	}
	return fmt.Sprintf("%v attempt %d, token %.9s…, age %v, lease %v, ttl %v", r.Status, r.Attempt, r.Token, r.Age, r.Lease, r.TTL)
}

// short cuts a text for a message.
func short(s string) string {
	if len(s) > 60 {
		return s[:57] + "…"
	}
	return s
}
