package redis

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Watch implements [idem.Watcher]. What this Backend writes itself it tells at
// once; what others write it hears from Redis, over one connection for all who
// wait, which is open while somebody does. Where it cannot subscribe, it asks in
// intervals.
func (b *Backend) Watch(ctx context.Context, key, token string) error {
	if ctx.Err() != nil {
		return gaveUp(ctx, "watch", "not asked")
	}
	t, changed := b.watchers.join(b.Key(key))
	defer b.watchers.leave(t)
	poll := time.NewTimer(0)
	defer poll.Stop()
	for delay := firstPoll; ; {
		r, err := b.Get(ctx, key)
		if err != nil || r.Token != token {
			return err
		}
		wait := delay
		if b.watchers.subscribed(t) {
			wait = heardPoll
		} else {
			delay = min(2*delay, lastPoll)
		}
		poll.Reset(wait/2 + rand.N(wait/2+1)) // those who wait together do not ask together
		select {
		case <-changed:
			changed = b.watchers.next(t)
		case <-poll.C:
		case <-ctx.Done():
			return gaveUp(ctx, "watch", "waiting for a change")
		}
	}
}

// How often a record is asked for: soon at first and ten times a second in the
// end; now and then where a change should be heard of, since a connection can
// break without a word.
const (
	firstPoll = 5 * time.Millisecond
	lastPoll  = 100 * time.Millisecond
	heardPoll = time.Second
)

// watchers have what is waited for.
type watchers struct {
	b *Backend

	mu     sync.Mutex
	topics map[string]*topic // by channel
	line   *line             // nil while nobody waits
}

// A topic is a record that is waited for. Its channel has the record's name.
type topic struct {
	channel    string
	waiting    int
	subscribed bool
	changed    chan struct{} // closed, and replaced, when there is reason to look
}

// A line is the connection for the topics of one time of waiting.
type line struct {
	wake chan struct{} // holds 1: the topics have changed
	stop chan struct{}
}

// join adds one who waits for a record.
func (w *watchers) join(channel string) (*topic, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.topics[channel]
	if t == nil {
		t = &topic{channel: channel, changed: make(chan struct{})}
		if w.topics == nil {
			w.topics = make(map[string]*topic)
		}
		w.topics[channel] = t
		if w.line == nil {
			w.line = &line{wake: make(chan struct{}, 1), stop: make(chan struct{})}
			go w.listen(w.line)
		}
		w.line.nudge()
	}
	t.waiting++
	return t, t.changed
}

// leave takes one off. The line ends with the last of all.
func (w *watchers) leave(t *topic) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.waiting--; t.waiting > 0 {
		return
	}
	delete(w.topics, t.channel)
	if len(w.topics) == 0 {
		close(w.line.stop)
		w.line = nil
		return
	}
	w.line.nudge()
}

func (w *watchers) next(t *topic) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return t.changed
}

func (w *watchers) subscribed(t *topic) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return t.subscribed
}

// tell wakes those who wait for a record.
func (w *watchers) tell(channel string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.topics[channel]; t != nil {
		t.wake()
	}
}

func (t *topic) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// confirm notes that changes of a record will be heard from now on. Those from
// before may have been missed.
func (w *watchers) confirm(l *line, channel string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.topics[channel]; t != nil && w.line == l {
		t.subscribed = true
		t.wake()
	}
}

func (l *line) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// listen keeps the subscriptions of a line the same as the topics, until the line
// ends. The client subscribes again by itself after a break, and tells.
func (w *watchers) listen(l *line) {
	ctx := context.Background()
	sub := w.b.client.Subscribe(ctx)
	var hearing sync.WaitGroup
	defer hearing.Wait()
	defer sub.Close() //nolint:errcheck // nothing depends on it
	on := make(map[string]bool)
	for first := true; ; {
		select {
		case <-l.stop:
			return
		case <-l.wake:
		}
		add, drop := w.difference(l, on)
		if len(drop) > 0 {
			_ = sub.Unsubscribe(ctx, drop...)
		}
		if len(add) > 0 {
			_ = sub.Subscribe(ctx, add...) // the client tries again after an error
		}
		if first && len(add) > 0 {
			first = false
			hearing.Go(func() { w.hear(l, sub) })
		}
	}
}

// difference returns what has to be subscribed to and what not any more, and
// notes it in on.
func (w *watchers) difference(l *line, on map[string]bool) (add, drop []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.line != l {
		return nil, nil
	}
	for channel := range w.topics {
		if !on[channel] {
			on[channel] = true
			add = append(add, channel)
		}
	}
	for channel := range on {
		if w.topics[channel] == nil {
			delete(on, channel)
			drop = append(drop, channel)
		}
	}
	slices.Sort(add)
	return add, drop
}

// hear passes on what comes over the line, until it is closed.
func (w *watchers) hear(l *line, sub *goredis.PubSub) {
	for message := range sub.ChannelWithSubscriptions() {
		switch m := message.(type) {
		case *goredis.Subscription:
			if m.Kind == "subscribe" {
				w.confirm(l, m.Channel)
			}
		case *goredis.Message:
			w.tell(m.Channel)
		}
	}
}
