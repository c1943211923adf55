package faulttest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/idem-go/idem"
)

// A line is the way from a Store to its storage. It loses what it is told to lose,
// takes its time, and notes down for each call what it has sent.
type line struct {
	b idem.Backend
	faults

	mu  sync.Mutex
	rnd *rand.Rand
	met int            // requests and answers that were lost or late
	out sync.WaitGroup // requests that are under way on their own
}

// faults say how often what goes wrong, in thousandths, and how long a request
// and an answer are under way at most.
type faults struct {
	loseRequest, loseReply, delayRequest int
	transit                              time.Duration
	delay                                time.Duration // of a request that arrives when its caller has given up
}

var errLine = errors.New("the line is cut")

func newLine(b idem.Backend, f faults, rnd *rand.Rand) *line {
	return &line{b: b, faults: f, rnd: rnd}
}

// wait waits until nothing is under way any more, and returns how many requests and
// answers were lost or late.
func (l *line) wait() int {
	l.out.Wait()
	return l.met
}

func (l *line) within(d time.Duration) time.Duration {
	if d == 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.rnd.Int64N(int64(d)))
}

func (l *line) dice() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.rnd.IntN(1000)
	if n < l.delayRequest+l.loseRequest+l.loseReply {
		l.met++
	}
	return n
}

// travel takes the time of one way.
func (l *line) travel(ctx context.Context) error {
	d := l.within(l.transit)
	if d == 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send carries a request there and its answer back.
func (l *line) send(ctx context.Context, do func(context.Context) error) error {
	n := l.dice()
	if n -= l.delayRequest; n < 0 {
		l.out.Go(func() {
			time.Sleep(l.within(l.delay)) // the packet sits in a buffer somewhere
			_ = do(context.WithoutCancel(ctx))
		})
		return errLine
	}
	if err := l.travel(ctx); err != nil {
		return err
	}
	if n -= l.loseRequest; n < 0 {
		return errLine
	}
	err := do(ctx)
	if n -= l.loseReply; n < 0 {
		return errLine
	}
	if lost := l.travel(ctx); lost != nil {
		return lost
	}
	return err
}

func (l *line) Get(ctx context.Context, key string) (idem.Record, error) {
	type reply struct {
		sync.Mutex
		r idem.Record
	}
	var got reply
	err := l.send(ctx, func(ctx context.Context) error {
		r, err := l.b.Get(ctx, key)
		got.Lock()
		defer got.Unlock()
		got.r = r
		return err
	})
	if err != nil {
		return idem.Record{}, err
	}
	got.Lock()
	defer got.Unlock()
	sentBy(ctx, key).saw(got.r)
	return got.r, nil
}

func (l *line) Swap(ctx context.Context, key, old string, new idem.Record) (idem.Record, error) {
	type reply struct {
		sync.Mutex
		r idem.Record
	}
	var got reply
	new = new.Clone() // the request is under way, whatever its sender does next
	began := time.Now()
	err := l.send(ctx, func(ctx context.Context) error {
		r, err := l.b.Swap(ctx, key, old, new)
		got.Lock()
		defer got.Unlock()
		got.r = r
		return err
	})
	got.Lock()
	defer got.Unlock()
	if err != nil {
		got.r = idem.Record{}
	}
	sentBy(ctx, key).swapped(new, got.r, err, time.Since(began))
	return got.r, err
}

// SwapAll implements [idem.Batcher], also where the storage does not. What happens
// on the way happens to all of them.
func (l *line) SwapAll(ctx context.Context, swaps []idem.Swap) []idem.Swapped {
	sent := slices.Clone(swaps)
	for i := range sent {
		sent[i].New = sent[i].New.Clone()
	}
	type reply struct {
		sync.Mutex
		all []idem.Swapped
	}
	var got reply
	began := time.Now()
	err := l.send(ctx, func(ctx context.Context) error {
		all := swapAll(ctx, l.b, sent)
		got.Lock()
		defer got.Unlock()
		got.all = all
		return nil
	})
	got.Lock()
	defer got.Unlock()
	if err != nil {
		got.all = make([]idem.Swapped, len(sent))
		for i := range got.all {
			got.all[i].Err = err
		}
	}
	for i, s := range sent {
		sentBy(ctx, s.Key).swapped(s.New, got.all[i].Record, got.all[i].Err, time.Since(began))
	}
	return got.all
}

func swapAll(ctx context.Context, b idem.Backend, swaps []idem.Swap) []idem.Swapped {
	if batcher, ok := b.(idem.Batcher); ok {
		return batcher.SwapAll(ctx, swaps)
	}
	all := make([]idem.Swapped, len(swaps))
	for i, s := range swaps {
		all[i].Record, all[i].Err = b.Swap(ctx, s.Key, s.Old, s.New)
	}
	return all
}

func (l *line) Sweep(ctx context.Context, limit int) (int, error) { return l.b.Sweep(ctx, limit) }

// Probe implements [idem.Prober] where the storage does.
func (l *line) Probe(key string) bool {
	p, ok := l.b.(idem.Prober)
	return ok && p.Probe(key)
}

// A sent is what one call of a Store has sent to the storage about one key.
type sent struct {
	// A client may repeat by itself what it got no answer to. If it then finds
	// another record in the way, it may have been there the first time: what took
	// longer than this, if it is above 0, is taken for such a write.
	repeated time.Duration

	mu      sync.Mutex
	last    idem.Record // the last one to be written
	present idem.Record // what was there, as far as the call knows
	unsure  []attempted // writes that may have taken place
}

// An attempted write is a record that was sent, whether it was to take over, and
// whether its sender was told that the answer is lost.
type attempted struct {
	idem.Record
	takeover, told bool
}

type sentKey struct{}

// withSent returns a context for a call about keys, for each of which it notes
// down what is sent.
func withSent(ctx context.Context, byKey map[string]*sent) context.Context {
	return context.WithValue(ctx, sentKey{}, byKey)
}

// sentBy returns where to note down what the call of ctx sends about a key, as it
// is stored.
func sentBy(ctx context.Context, stored string) *sent {
	byKey, _ := ctx.Value(sentKey{}).(map[string]*sent)
	_, key := idem.SplitKey(stored)
	if s := byKey[key]; s != nil {
		return s
	}
	return new(sent)
}

func (s *sent) saw(r idem.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.present = r
}

func (s *sent) swapped(new, got idem.Record, err error, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = new
	this := func(a attempted) bool { return a.Token == new.Token }
	switch {
	case err == nil && got.Token == new.Token:
		s.unsure = slices.DeleteFunc(s.unsure, this)
	case slices.ContainsFunc(s.unsure, this):
	case err != nil || s.repeated > 0 && took >= s.repeated:
		s.unsure = append(s.unsure, attempted{new, s.present.Status == idem.InProgress, err != nil})
	}
	if err == nil {
		s.present = got
	}
}

// result returns what may have been written, and the last record sent.
func (s *sent) result() (unsure []attempted, last idem.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.unsure), s.last
}

// attemptID returns the part of a token that all writes of an attempt share.
func attemptID(token string) string {
	id, _, _ := strings.Cut(token, ".")
	return id
}
