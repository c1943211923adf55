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
	sentBy(ctx).saw(got.r)
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
	sentBy(ctx).swapped(new, got.r, err, time.Since(began))
	return got.r, err
}

func (l *line) Sweep(ctx context.Context, limit int) (int, error) { return l.b.Sweep(ctx, limit) }

// Probe implements [idem.Prober] where the storage does.
func (l *line) Probe(key string) bool {
	p, ok := l.b.(idem.Prober)
	return ok && p.Probe(key)
}

// A sent is what one call of a Store has sent to the storage.
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

func withSent(ctx context.Context, s *sent) context.Context {
	return context.WithValue(ctx, sentKey{}, s)
}

// sentBy returns what to note down in for the call of ctx.
func sentBy(ctx context.Context) *sent {
	s, _ := ctx.Value(sentKey{}).(*sent)
	if s == nil {
		s = new(sent)
	}
	return s
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
