package conformancetest

import (
	"context"
	"errors"
	"sync"

	"github.com/idem-go/idem"
)

// faulty is a Backend between a Store and the storage. It loses requests and
// replies, and counts what is asked. It is no Lister and no Watcher.
type faulty struct {
	b idem.Backend

	mu     sync.Mutex
	n      int    // calls
	fates  []fate // of the next Swaps
	always fate   // of those after them

	// before and after are called with the number of each call.
	before, after func(n int)
}

// A fate is what becomes of a call.
type fate int

const (
	arrives      fate = iota
	requestLost       // it is not executed, and fails
	replyLost         // it is executed, and fails all the same
	surelyFailed      // it is not executed, and fails with an error that says so
)

var errLine = errors.New("the line to the storage is cut")

// call counts a call and brackets it.
func (f *faulty) call(do func()) {
	f.mu.Lock()
	f.n++
	n := f.n
	f.mu.Unlock()
	if f.before != nil {
		f.before(n)
	}
	do()
	if f.after != nil {
		f.after(n)
	}
}

// calls returns how many calls there were.
func (f *faulty) calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

// next says what becomes of the next Swaps.
func (f *faulty) next(fates ...fate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fates = fates
}

// all says what becomes of all Swaps from now on.
func (f *faulty) all(of fate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fates, f.always = nil, of
}

func (f *faulty) fate() fate {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.fates) == 0 {
		return f.always
	}
	what := f.fates[0]
	f.fates = f.fates[1:]
	return what
}

func (f *faulty) Get(ctx context.Context, key string) (r idem.Record, err error) {
	f.call(func() { r, err = f.b.Get(ctx, key) })
	return r, err
}

func (f *faulty) Swap(ctx context.Context, key, old string, r idem.Record) (got idem.Record, err error) {
	f.call(func() {
		what := f.fate()
		switch what {
		case requestLost:
			err = errLine
			return
		case surelyFailed:
			err = idem.NoEffect(errLine)
			return
		}
		if got, err = f.b.Swap(ctx, key, old, r); what == replyLost {
			got, err = idem.Record{}, errLine
		}
	})
	return got, err
}

func (f *faulty) Sweep(ctx context.Context, limit int) (int, error) { return f.b.Sweep(ctx, limit) }
