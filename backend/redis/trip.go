package redis

import (
	"context"
	"errors"
	"fmt"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
)

// An answer is what Redis says to a request.
type answer struct {
	kind  kind
	now   int64  // the server's time in microseconds, of a record that is present
	value string // the record, or what the canary has
}

type kind uint8

const (
	absent kind = iota
	present
	stored
	otherEpoch
)

// maxScript is how many Swaps one script does: the server does nothing else in the
// meantime, a quarter of a millisecond.
const maxScript = 64

// trip sends a batch and tells the callers. The context of one of them must not
// end the others' calls, so those who give up leave, and the client's ReadTimeout
// ends a trip.
func (b *Backend) trip(batch []*request) {
	ctx := context.Background()
	if len(batch) == 1 {
		ctx = context.WithoutCancel(batch[0].ctx) // its values are for the client's hooks
	}
	b.exchange(ctx, batch, false)
	var again []*request
	for _, r := range batch {
		if r.err != nil && refusal(r.err) == "NOSCRIPT" {
			r.refused()
			again = append(again, r)
		}
	}
	if len(again) > 0 {
		b.exchange(ctx, again, true)
	}
	for _, r := range batch {
		if r.err != nil {
			r.err = failed(r.op, r.err, r.sent)
		}
		close(r.done)
	}
}

// A parcel is the requests that are one command.
type parcel struct {
	requests []*request
	cmd      *goredis.Cmd
}

// exchange sends a batch in one round trip and sets the answers. With whole it
// sends the script itself, not its hash.
func (b *Backend) exchange(ctx context.Context, batch []*request, whole bool) {
	epoch := ""
	if b.canary != "" {
		epoch = *b.epoch.Load()
	}
	gets := 0
	for _, r := range batch {
		r.epoch, r.err = epoch, nil
		if !r.swap && !b.cluster {
			gets++
		}
	}
	if len(batch) == 1 && gets == 0 && b.opts.WaitReplicas.N == 0 {
		p := parcel{batch, goredis.NewCmd(ctx, b.script(batch, epoch, whole)...)}
		err := b.client.Process(ctx, p.cmd)
		answerScript(p)
		noAnswer(batch, err)
		return
	}
	b.pipeline(ctx, batch, epoch, gets, whole)
}

// noAnswer gives what was not carried out the error of the whole.
func noAnswer(batch []*request, err error) {
	for _, r := range batch {
		if r.err == errNoAnswer && err != nil {
			r.err = err
		}
	}
}

// pipeline is exchange for many commands, of which some are gets.
func (b *Backend) pipeline(ctx context.Context, batch []*request, epoch string, gets int, whole bool) {
	pipe := b.client.Pipeline()
	queue := func(cmd goredis.Cmder) { _ = pipe.Process(ctx, cmd) } // errors come from Exec
	parcels := make([]parcel, 0, gets+1)
	swaps := batch
	var canary *goredis.StringCmd
	var now *goredis.TimeCmd
	if gets > 0 {
		swaps = nil
		for i, r := range batch {
			if r.swap {
				swaps = append(swaps, r)
				continue
			}
			p := parcel{batch[i : i+1], goredis.NewCmd(ctx, "get", r.name)}
			parcels = append(parcels, p)
			queue(p.cmd)
		}
		// The canary comes after what is read, and the time after all.
		canary, now = pipe.Get(ctx, b.canary), pipe.Time(ctx)
	}
	for len(swaps) > 0 {
		n := min(len(swaps), maxScript)
		if b.cluster {
			n = 1 // they are in different slots
		}
		p := parcel{swaps[:n], goredis.NewCmd(ctx, b.script(swaps[:n], epoch, whole)...)}
		swaps = swaps[n:]
		parcels = append(parcels, p)
		queue(p.cmd)
	}
	var confirmed *goredis.IntCmd
	if wait := b.opts.WaitReplicas; wait.N > 0 && len(parcels) > gets {
		confirmed = goredis.NewIntCmd(ctx, "wait", wait.N, wait.Timeout.Milliseconds())
		queue(confirmed)
	}
	_, err := pipe.Exec(ctx)
	for i, p := range parcels {
		if i < gets {
			p.requests[0].answerGet(p.cmd, canary, now)
		} else {
			answerScript(p)
		}
	}
	noAnswer(batch, err)
	if confirmed == nil {
		return
	}
	for _, r := range batch {
		if r.err == nil && r.swap {
			r.err = b.unconfirmed(r, confirmed)
		}
	}
}

// script returns the command that does the requests.
func (b *Backend) script(requests []*request, epoch string, whole bool) []any {
	args := make([]any, 0, 6+4*len(requests))
	if whole {
		args = append(args, "eval", swapScript.source)
	} else {
		args = append(args, "evalsha", swapScript.hash)
	}
	if epoch == "" {
		args = append(args, len(requests))
	} else {
		args = append(args, 1+len(requests), b.canary)
	}
	for _, r := range requests {
		args = append(args, r.name)
	}
	again := ""
	if b.opts.WaitReplicas.N > 0 {
		// Redis waits for what this very connection has written, so it has to write.
		again = "again"
	}
	args = append(args, epoch, again)
	for _, r := range requests {
		if r.swap {
			args = append(args, r.old, r, r.reclaim)
		} else {
			args = append(args, "", "", "")
		}
	}
	return args
}

// errNoAnswer is the error of a command that was not carried out and has none of
// its own.
var errNoAnswer = errors.New("there is no answer")

// answerGet sets the answer of a Get. The canary was there after the record was
// read.
func (r *request) answerGet(cmd *goredis.Cmd, canary *goredis.StringCmd, now *goredis.TimeCmd) {
	found, err := canary.Result()
	switch {
	case err != nil && err != goredis.Nil:
		r.err = err
		return
	case now.Err() != nil:
		r.err = now.Err()
		return
	case now.Val().IsZero():
		r.err = errNoAnswer
		return
	case found != r.epoch:
		r.answer = answer{kind: otherEpoch, value: found}
		return
	}
	switch v, err := cmd.Text(); {
	case err == goredis.Nil:
		r.answer = answer{kind: absent}
	case err != nil:
		r.err = err
	default:
		r.answer = answer{kind: present, now: now.Val().UnixMicro(), value: v}
	}
}

// answerScript sets the answers of the requests in a script.
func answerScript(p parcel) {
	reply, err := p.cmd.Result()
	if err == nil && reply == nil {
		err = errNoAnswer
	}
	items, _ := reply.([]any)
	for i, r := range p.requests {
		switch {
		case err != nil:
			r.err = err
		case len(items) == 1+len(p.requests):
			now, _ := items[0].(int64)
			r.answer, r.err = answerSwap(now, items[1+i])
		default:
			found, ok := reply.(string)
			r.answer = answer{kind: otherEpoch, value: found}
			if !ok {
				r.err = fmt.Errorf("the script answers with an unknown %T", reply)
			}
		}
	}
}

// answerSwap returns the answer of one Swap in a script.
func answerSwap(now int64, item any) (answer, error) {
	switch item := item.(type) {
	case int64:
		if item == 1 {
			return answer{kind: stored}, nil
		}
		return answer{kind: absent}, nil
	case []any:
		if len(item) == 1 {
			if v, ok := item[0].(string); ok {
				return answer{kind: present, now: now, value: v}, nil
			}
		}
	case string:
		return answer{}, scriptError(item)
	}
	return answer{}, fmt.Errorf("the script answers with an unknown %T", item)
}

// A scriptError is an error with which Redis has refused a command in a script.
type scriptError string

func (e scriptError) Error() string { return string(e) }
func (scriptError) RedisError()     {}

// unconfirmed reports whether too few replicas have a write that is stored.
func (b *Backend) unconfirmed(r *request, confirmed *goredis.IntCmd) error {
	own := r.answer.kind == stored
	if r.answer.kind == present {
		own = tokenOf(r.answer.value) == r.token
	}
	n, err := confirmed.Result()
	switch wait := b.opts.WaitReplicas; {
	case !own:
		return nil
	case err != nil:
		return fmt.Errorf("it is stored, but whether replicas have it is unknown: %w", err)
	case n < int64(wait.N):
		return fmt.Errorf("%w: it is stored, but only %d replicas of %d have confirmed it within %v; repeat the call", idem.ErrUnavailable, n, wait.N, wait.Timeout)
	}
	return nil
}
