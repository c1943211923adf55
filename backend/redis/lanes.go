package redis

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
)

// A request is one caller's part of a round trip: a Get, or a Swap if it has a
// write.
type request struct {
	ctx   context.Context
	op    string
	name  string
	write *write

	taken bool          // out of the queue; guarded by lanes.mu
	done  chan struct{} // closed when answer and err are set

	cmd    *goredis.Cmd
	epoch  string // that it was sent with
	answer answer
	err    error
}

// A write is what a Swap stores.
type write struct {
	old, token string
	encoded    []byte
	reclaim    int64 // milliseconds
	sent       int   // how often it was written to a connection
}

// MarshalBinary is how go-redis asks for an argument whenever it writes it to a
// connection, so it knows how often the command may have been carried out.
func (w *write) MarshalBinary() ([]byte, error) {
	w.sent++
	return w.encoded, nil
}

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

// lanes share round trips between callers. Whoever finds a lane free starts it; it
// sends what is queued in one pipeline, until the queue is empty. A lone caller
// does not wait for company.
type lanes struct {
	mu      sync.Mutex
	queue   []*request
	running int
}

const (
	lanesUsual = 2
	lanesMost  = 16

	// A request that was not taken for so long is behind a connection that hangs.
	stalledAfter = 25 * time.Millisecond

	maxBatch      = 512
	maxBatchBytes = 1 << 20
)

// send queues r and waits for its answer or for ctx.
func (b *Backend) send(ctx context.Context, r *request) error {
	r.ctx, r.done, r.taken, r.err = ctx, make(chan struct{}), false, nil
	l := &b.lanes
	if l.push(r, lanesUsual) {
		go b.drive()
		select {
		case <-r.done:
			return r.err
		case <-ctx.Done():
			return l.leave(ctx, r)
		}
	}
	stalled := time.NewTimer(stalledAfter)
	defer stalled.Stop()
	for {
		select {
		case <-r.done:
			return r.err
		case <-ctx.Done():
			return l.leave(ctx, r)
		case <-stalled.C:
			if l.bypass(r) {
				go b.drive()
			}
			stalled.Reset(stalledAfter)
		}
	}
}

// push queues r and reports whether the caller has to start a lane.
func (l *lanes) push(r *request, most int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, r)
	if l.running >= most {
		return false
	}
	l.running++
	return true
}

// bypass reports whether another lane has to be started for a request that waits.
func (l *lanes) bypass(r *request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.taken || l.running >= lanesMost {
		return false
	}
	l.running++
	return true
}

// leave gives up a request. It has no effect if it was not taken.
func (l *lanes) leave(ctx context.Context, r *request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !r.taken {
		r.taken = true // the lane that finds it passes it by
		return idem.NoEffect(gaveUp(ctx, r.op, "waiting for a connection"))
	}
	return gaveUp(ctx, r.op, "waiting for the answer")
}

// take takes the next batch out of the queue, or ends the lane if there is none.
func (l *lanes) take(batch []*request) []*request {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, size := 0, 0
	for n < len(l.queue) && len(batch) < maxBatch && size < maxBatchBytes {
		r := l.queue[n]
		n++
		if r.taken {
			continue
		}
		r.taken = true
		batch = append(batch, r)
		if r.write != nil {
			size += len(r.write.encoded)
		}
	}
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	if len(batch) == 0 {
		l.running--
	}
	return batch
}

// drive is a lane.
func (b *Backend) drive() {
	var batch []*request
	for {
		// Those whom the last batch has woken may want to be in the next.
		runtime.Gosched()
		if batch = b.lanes.take(batch[:0]); len(batch) == 0 {
			return
		}
		b.trip(batch)
		clear(batch)
	}
}

// trip sends a batch. The context of one caller must not end the others' calls,
// so those who give up leave, and the client's ReadTimeout ends a trip.
func (b *Backend) trip(batch []*request) {
	ctx := context.Background()
	if len(batch) == 1 {
		ctx = context.WithoutCancel(batch[0].ctx) // its values are for the client's hooks
	}
	b.pipeline(ctx, batch, false)
	var again []*request
	for _, r := range batch {
		if refusal(r.err) == "NOSCRIPT" {
			r.refused()
			again = append(again, r)
		}
	}
	if len(again) > 0 {
		b.pipeline(ctx, again, true)
	}
	for _, r := range batch {
		if r.err != nil {
			r.err = failed(r.op, r.err, r.sent())
		}
		close(r.done)
	}
}

// pipeline sends a batch in one round trip and sets the answers. With whole it
// sends the scripts themselves, not their hashes.
func (b *Backend) pipeline(ctx context.Context, batch []*request, whole bool) {
	pipe := b.client.Pipeline()
	epoch := ""
	if b.canary != "" {
		epoch = *b.epoch.Load()
	}
	var reads, writes bool
	for _, r := range batch {
		r.epoch = epoch
		reads, writes = reads || r.write == nil, writes || r.write != nil
		r.cmd = goredis.NewCmd(ctx, b.command(r, whole)...)
		_ = pipe.Process(ctx, r.cmd) // queued; the error comes from Exec
	}
	// What was read while the canary was there, and the time of all of it.
	var canary *goredis.StringCmd
	var now *goredis.TimeCmd
	if reads && !b.cluster {
		canary, now = pipe.Get(ctx, b.canary), pipe.Time(ctx)
	}
	var confirmed *goredis.IntCmd
	if wait := b.opts.WaitReplicas; writes && wait.N > 0 {
		confirmed = goredis.NewIntCmd(ctx, "wait", wait.N, wait.Timeout.Milliseconds())
		_ = pipe.Process(ctx, confirmed)
	}
	_, err := pipe.Exec(ctx)
	for _, r := range batch {
		r.err = nil
		switch {
		case r.write == nil && !b.cluster:
			r.answer, r.err = answerOfGet(r, canary, now)
		default:
			r.answer, r.err = answerOfScript(r.cmd)
		}
		if r.err == nil && r.write != nil && confirmed != nil {
			r.err = b.unconfirmed(r, confirmed)
		}
		if r.err == errNoAnswer && err != nil {
			r.err = err
		}
	}
}

// command returns the command of a request.
func (b *Backend) command(r *request, whole bool) []any {
	w := r.write
	if w == nil && !b.cluster {
		return []any{"get", r.name}
	}
	script := getScript
	if w != nil {
		script = swapScript
	}
	args := make([]any, 0, 10)
	if whole {
		args = append(args, "eval", script.source)
	} else {
		args = append(args, "evalsha", script.hash)
	}
	if b.canary == "" {
		args = append(args, 1, r.name)
	} else {
		args = append(args, 2, r.name, b.canary)
	}
	args = append(args, r.epoch)
	if w == nil {
		return args
	}
	args = append(args, w.old, w, w.reclaim)
	if b.opts.WaitReplicas.N > 0 {
		args = append(args, w.token)
	}
	return args
}

// sent returns how often a write may have been carried out.
func (r *request) sent() int {
	if r.write == nil {
		return 1
	}
	return r.write.sent
}

// refused notes that the answer was that nothing was done.
func (r *request) refused() {
	if r.write != nil && r.write.sent == 1 {
		r.write.sent = 0
	}
}

var errNoAnswer = errors.New("there is no answer")

func answerOfGet(r *request, canary *goredis.StringCmd, now *goredis.TimeCmd) (answer, error) {
	found, err := canary.Result()
	switch {
	case err == goredis.Nil:
	case err != nil:
		return answer{}, err
	}
	if found != r.epoch {
		return answer{kind: otherEpoch, value: found}, nil
	}
	if now.Err() != nil {
		return answer{}, now.Err()
	}
	switch v, err := r.cmd.Text(); {
	case err == goredis.Nil:
		return answer{kind: absent}, nil
	case err != nil:
		return answer{}, err
	case now.Val().IsZero():
		return answer{}, errNoAnswer
	default:
		return answer{kind: present, now: now.Val().UnixMicro(), value: v}, nil
	}
}

func answerOfScript(cmd *goredis.Cmd) (answer, error) {
	v, err := cmd.Result()
	if err != nil {
		return answer{}, err
	}
	switch v := v.(type) {
	case int64:
		if v == 1 {
			return answer{kind: stored}, nil
		}
		return answer{kind: absent}, nil
	case string:
		return answer{kind: otherEpoch, value: v}, nil
	case []any:
		if len(v) == 2 {
			now, ok1 := v[0].(int64)
			record, ok2 := v[1].(string)
			if ok1 && ok2 {
				return answer{kind: present, now: now, value: record}, nil
			}
		}
	case nil:
		return answer{}, errNoAnswer
	}
	return answer{}, fmt.Errorf("the script answers with an unknown %T", v)
}

// unconfirmed reports whether too few replicas have a write that is stored.
func (b *Backend) unconfirmed(r *request, confirmed *goredis.IntCmd) error {
	own := r.answer.kind == stored
	if r.answer.kind == present {
		own = tokenOf(r.answer.value) == r.write.token
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
