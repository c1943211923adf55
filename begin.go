package idem

import (
	"context"
	"fmt"
	"time"
)

// Begin asks for the key. It returns exactly one of three:
//
//   - a Claim: the caller runs the operation and ends the claim;
//   - the completed record: the caller replays its Result;
//   - an error: [ErrInProgress] while another attempt runs, with RetryAfter;
//     [ErrMismatch] if the key was used with another payload; [ErrUnresolved]
//     under Hold if an attempt ended without a known outcome; [ErrKey]; or that
//     the storage failed, and the operation must not run.
//
// A caller that is refused has written nothing. If the storage fails without
// saying whether it has stored the claim, Begin repeats the same claim for up to
// 3 s, as long as ctx lives, and then tries to give it back, so that nobody is
// locked out by his own lost claim. A storage that does not answer at all is
// waited for until ctx is done.
//
// The claim's lease has begun when Begin was called, not when it returned.
func (s *Store) Begin(ctx context.Context, key string, fp Fingerprint) (*Claim, *Record, error) {
	if s.opts.Observe == nil { // a replay is quick enough for a look at the clock to count
		return s.begin(ctx, key, fp)
	}
	start := time.Now()
	c, done, err := s.begin(ctx, key, fp)
	s.observe(ctx, "begin", key, start, c, done, err)
	return c, done, err
}

func (s *Store) begin(ctx context.Context, key string, fp Fingerprint) (*Claim, *Record, error) {
	stored, err := s.stored(key)
	if err != nil {
		return nil, nil, s.fail("begin", key, Record{}, err)
	}
	a := asking{stored: stored, key: key, fp: fp, present: s.foresee(ctx, stored)}
	for range 1000 { // see errKeptChanging
		done, err := s.ask(&a)
		if done != nil || err != nil {
			return nil, done, err
		}
		if err := s.swapClaim(ctx, &a); err != nil {
			return nil, nil, s.fail("begin", key, Record{}, err)
		}
		if a.granted() {
			return a.c, nil, nil
		}
	}
	return nil, nil, s.fail("begin", key, a.present, errKeptChanging)
}

// An asking is a claim that is asked for, on its way to the answer.
type asking struct {
	stored  string
	key     string // as the caller has given it
	fp      Fingerprint
	c       *Claim // nil until there is something to claim
	present Record // what is stored, as far as it is known
	claim   Record // what is to take its place
	unsure  bool   // a Swap that failed may have taken effect
	err     error  // of the last Swap
}

// foresee returns the record of a key that a [Prober] may have one of, to begin
// with. If that fails, the Swap that follows has the error to tell.
func (s *Store) foresee(ctx context.Context, stored string) Record {
	p, ok := s.backend.(Prober)
	if !ok || s.bound || !p.Probe(stored) {
		return Record{}
	}
	r, err := s.backend.Get(ctx, stored)
	if err != nil {
		return Record{}
	}
	return r.normal()
}

// ask judges what is stored: the operation is done, or refused, or a.claim is to
// be swapped in.
func (s *Store) ask(a *asking) (done *Record, err error) {
	ok, err := s.judge(a.present, a.fp)
	if err != nil {
		told := a.present
		if err == ErrMismatch {
			// The first payload's answer is none of this caller's business.
			told.Result, told.Checkpoint = Result{}, nil
		}
		return nil, s.fail("begin", a.key, told, err)
	}
	if ok {
		found := a.present
		return &found, nil
	}
	a.prepare(s)
	return nil, nil
}

// prepare makes the claim that takes the place of what is stored.
func (a *asking) prepare(s *Store) {
	token := "" // should a Swap not take place, the next is another one
	if a.c == nil {
		a.c, token = newClaim(a.stored, a.key)
		a.stored = a.c.stored
	}
	a.claim = s.claimRecord(a.c, token, a.present, a.fp)
}

// granted reports whether the claim has been swapped in.
func (a *asking) granted() bool { return a.present.Token == a.claim.Token }

// judge says what a request with fp is told where present is stored: the key is
// free for it (false, nil), done, or what is in the way.
func (s *Store) judge(present Record, fp Fingerprint) (done bool, err error) {
	switch present.Status {
	case 0, Released:
		return false, nil
	case InProgress, Completed:
	default:
		return false, fmt.Errorf("%w: unknown status %d", ErrCorrupt, present.Status)
	}
	switch {
	case present.Fingerprint != fp:
		return false, ErrMismatch
	case present.Status == Completed:
		return true, nil
	case !present.Lapsed():
		return false, ErrInProgress
	case s.opts.OnLapse == Hold:
		return false, ErrUnresolved
	}
	return false, nil
}

// claimRecord returns the record by which c takes the key from present, and
// tells c what it will hold if that succeeds. Without a token it draws one.
func (s *Store) claimRecord(c *Claim, token string, present Record, fp Fingerprint) Record {
	if token == "" {
		token = newToken(c.id)
	}
	now := time.Now() // before the first packet: that may be the one that counts
	c.leasedAt = now
	c.last = Record{
		Token:       token,
		Status:      InProgress,
		Attempt:     present.Attempt + 1,
		Fence:       max(present.Fence+1, now.UnixMicro()),
		Fingerprint: fp,
		Lease:       s.opts.Lease,
		TTL:         s.claimTTL(),
	}
	c.Takeover = present.Status == InProgress
	if c.Takeover {
		c.last.Checkpoint = present.Checkpoint
	}
	c.frees = !c.Takeover
	c.Attempt, c.Fence, c.Fingerprint = c.last.Attempt, c.last.Fence, fp
	c.Checkpoint = cloneBytes(c.last.Checkpoint)
	return c.last
}

// claimTTL is how long a record in progress is kept. A Store that goes on with a
// claim of another Store does not make that shorter: what is not forgotten by
// age under Hold is not forgotten because somebody with other options looked
// after it.
func (s *Store) claimTTL() time.Duration {
	if s.opts.OnLapse == Hold {
		return held
	}
	return s.opts.Lease + s.opts.Retention
}

// swapClaim puts the claim in the place of what is stored, and sets what is
// stored then.
func (s *Store) swapClaim(ctx context.Context, a *asking) error {
	if ctx.Err() != nil {
		return notAsked(ctx)
	}
	got, err := s.swap(ctx, a.stored, a.present.Token, a.claim)
	if err == nil {
		a.present = got
		return nil
	}
	failed := *a // the way of a storage that works costs no memory
	failed.err = err
	s.repeatClaims(ctx, []*asking{&failed})
	*a = failed
	return a.err
}

// repeatClaims goes on with claims of which those with an error have not been
// swapped in. If the storage has failed without saying whether it did, it repeats
// the same Swap, which then finds its own token, and gives the claim back at the
// end.
func (s *Store) repeatClaims(ctx context.Context, asks []*asking) {
	giveUp := asks[0].c.leasedAt.Add(repeatFor)
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, 500*time.Millisecond) {
		again := make([]*asking, 0, len(asks))
		for _, a := range asks {
			if a.err != nil && ambiguous(a.err) {
				a.unsure = true
				again = append(again, a)
			}
		}
		if len(again) == 0 || s.bound || time.Now().Add(delay).After(giveUp) || !pause(ctx, delay) {
			break
		}
		s.swapClaims(ctx, again)
	}
	var unsure []*asking
	for _, a := range asks {
		if a.err == nil {
			continue
		}
		a.err = classify(a.err)
		if a.unsure && !s.bound {
			lost := *a
			unsure = append(unsure, &lost)
		}
	}
	switch {
	case len(unsure) == 0:
	case ctx.Err() != nil:
		go s.giveBack(ctx, unsure) // the caller is not kept waiting
	default:
		s.giveBack(ctx, unsure)
	}
}

// swapClaims swaps the claims in once, and sets what is stored then or the error.
func (s *Store) swapClaims(ctx context.Context, asks []*asking) {
	swaps := make([]exchange, len(asks))
	for i, a := range asks {
		swaps[i] = exchange{stored: a.stored, old: a.present.Token, new: a.claim}
	}
	s.swapAll(ctx, swaps)
	for i, a := range asks {
		if a.err = swaps[i].err; a.err == nil {
			a.present = swaps[i].got
		}
	}
}

// giveBack tries once to undo claims that may or may not have been stored in the
// place of what was there.
func (s *Store) giveBack(ctx context.Context, asks []*asking) {
	ctx, cancel := detach(ctx)
	defer cancel()
	swaps := make([]exchange, len(asks))
	for i, a := range asks {
		end := s.endOfRelease(a.c, a.claim)
		end.Token = newToken(a.c.id)
		swaps[i] = exchange{stored: a.stored, old: a.claim.Token, new: end}
	}
	for tries := 0; len(swaps) > 0 && tries < 10; tries++ {
		s.swapAll(ctx, swaps)
		var again []exchange
		var of []*asking
		for i, x := range swaps {
			a := asks[i]
			arrived := x.got.Token == a.claim.Token
			if x.err != nil || x.got.Token == x.new.Token || !arrived && x.got.Token != a.present.Token {
				continue
			}
			// A claim that has not arrived may be on its way. What it would have
			// ended as, in its place already, makes it come too late, unless it
			// arrives just then.
			again, of = append(again, exchange{stored: x.stored, old: x.got.Token, new: x.new}), append(of, a)
		}
		swaps, asks = again, of
	}
}
