package conformancetest

import (
	"context"
	"errors"
	"time"

	"github.com/idem-go/idem"
)

const (
	ruleTx    = "A Swap in a transaction is visible to others when the transaction commits, and never if it rolls back."
	ruleOwnTx = "A transaction sees its own Swaps."
)

var txCases = []testCase{
	{name: "Commit", rule: ruleTx, needs: needInTx, run: testTxCommit},
	{name: "Rollback", rule: ruleTx, needs: needInTx, run: testTxRollback},
	{name: "OwnSwaps", rule: ruleOwnTx, needs: needInTx, run: testTxOwnSwaps},
	{name: "RefusedSwap", rule: ruleNoWrite, needs: needInTx, run: testTxRefusedSwap},
	{name: "LostRace", rule: ruleOneByOne, needs: needInTx, run: testTxLostRace},
	{name: "Race", rule: ruleOneByOne, needs: needInTx, run: testTxRace},
	{name: "Expired", rule: ruleNoRecord, needs: needInTx, timed: true, run: testTxExpired},
}

// errRollback makes a transaction roll back.
var errRollback = errors.New("the suite rolls back")

// outside returns what others see under key while a transaction is open. A
// storage may let them wait for its end: they have seen nothing then.
func (e *env) outside(key string) (r idem.Record, seen bool) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.ctx, 250*time.Millisecond)
	defer cancel()
	var err error
	e.promptly("Get beside a transaction", func() { r, err = e.b.Get(ctx, key) })
	return r, err == nil
}

func testTxCommit(e *env) {
	old := e.put("old", newRecord(idem.InProgress))
	created, replaced := newRecord(idem.Completed), newRecord(idem.Completed)
	err := e.inTx(func(tx idem.Backend) error {
		e.want("Get in a transaction", e.get(tx, "old"), old)
		e.want("Get of an absent key in a transaction", e.get(tx, "new"), idem.Record{})
		e.want("Swap in a transaction", e.swap(tx, "old", old.Token, replaced), replaced)
		e.want("Swap of an absent key in a transaction", e.swap(tx, "new", "", created), created)
		if r, seen := e.outside("new"); seen {
			e.want("Get by others before the commit", r, idem.Record{})
		}
		if r, seen := e.outside("old"); seen {
			e.want("Get by others before the commit", r, old)
		}
		return nil
	})
	if err != nil {
		e.fatalf("the transaction failed: %v", err)
	}
	for _, b := range e.handles(2) {
		e.want("Get after the commit", e.get(b, "old"), replaced)
		e.want("Get after the commit", e.get(b, "new"), created)
	}
}

func testTxRollback(e *env) {
	old := e.put("old", newRecord(idem.InProgress))
	err := e.inTx(func(tx idem.Backend) error {
		next := newRecord(idem.Completed)
		e.want("Swap in a transaction", e.swap(tx, "old", old.Token, next), next)
		e.want("Swap of an absent key in a transaction", e.swap(tx, "new", "", next), next)
		return errRollback
	})
	if !errors.Is(err, errRollback) {
		e.errorf("the error of the transaction is %v, want fn's", err)
	}
	for _, b := range e.handles(2) {
		e.want("Get after the rollback", e.get(b, "old"), old)
		e.want("Get after the rollback", e.get(b, "new"), idem.Record{})
	}
	e.put("new", newRecord(idem.InProgress))
	next := newRecord(idem.Completed)
	e.want("Swap after the rollback", e.swap(e.b, "old", old.Token, next), next)
}

// testTxOwnSwaps claims and completes in one transaction.
func testTxOwnSwaps(e *env) {
	first := e.put("old", newRecord(idem.InProgress))
	claim, done, other := newRecord(idem.InProgress), newRecord(idem.Completed), newRecord(idem.Completed)
	err := e.inTx(func(tx idem.Backend) error {
		e.want("Swap in a transaction", e.swap(tx, "k", "", claim), claim)
		e.want("Get of what the transaction has stored", e.get(tx, "k"), claim)
		e.want("Swap of a key that the transaction has taken", e.swap(tx, "k", "", other), claim)
		e.want("Swap that the transaction repeats", e.swap(tx, "k", "", claim), claim)
		e.want("Swap of what the transaction has stored", e.swap(tx, "k", claim.Token, done), done)
		e.want("Get of what the transaction has stored", e.get(tx, "k"), done)
		e.want("Swap in a transaction", e.swap(tx, "old", first.Token, other), other)
		e.want("Swap with the token that the transaction has replaced", e.swap(tx, "old", first.Token, newRecord(idem.Released)), other)
		return nil
	})
	if err != nil {
		e.fatalf("the transaction failed: %v", err)
	}
	e.wantStored("k", done)
	e.wantStored("old", other)
}

// testTxRefusedSwap goes on in a transaction after Swaps that were refused.
func testTxRefusedSwap(e *env) {
	r := e.put("k", newRecord(idem.InProgress))
	other := newRecord(idem.Completed)
	err := e.inTx(func(tx idem.Backend) error {
		e.want("Swap of a key that has a record", e.swap(tx, "k", "", newRecord(idem.InProgress)), r)
		e.want("Swap with a wrong token", e.swap(tx, "k", "no.such", newRecord(idem.InProgress)), r)
		e.want("Swap with a token of an absent key", e.swap(tx, "absent", "no.such", newRecord(idem.InProgress)), idem.Record{})
		e.want("Get after refused Swaps", e.get(tx, "k"), r)
		e.want("Swap after refused Swaps", e.swap(tx, "other", "", other), other)
		return nil
	})
	if err != nil {
		e.fatalf("the transaction failed after Swaps that were refused: %v", err)
	}
	e.wantStored("k", r)
	e.wantStored("other", other)
	e.wantStored("absent", idem.Record{})
}

// testTxLostRace lets another caller write before, between and after the look
// and the write of a transaction. Who is told that he has written has written.
func testTxLostRace(e *env) {
	for _, when := range []string{"before the look", "after the look", "after the write"} {
		key := when
		first := e.put(key, newRecord(idem.InProgress))
		theirs, ours := newRecord(idem.Completed), newRecord(idem.Completed)
		var theyWrote, weWrote bool
		interfere := func(now string) {
			if now != when {
				return
			}
			// A storage with one writer at a time lets the other one wait.
			ctx, cancel := context.WithTimeout(e.ctx, 250*time.Millisecond)
			defer cancel()
			e.promptly("Swap beside a transaction", func() {
				got, err := e.b.Swap(ctx, key, first.Token, theirs)
				theyWrote = err == nil && got.Token == theirs.Token
			})
		}
		err := e.inTx(func(tx idem.Backend) error {
			interfere("before the look")
			if seen, err := tx.Get(e.ctx, key); err != nil {
				return err
			} else if !theyWrote {
				e.want("Get in a transaction", seen, first)
			}
			interfere("after the look")
			got, err := tx.Swap(e.ctx, key, first.Token, ours)
			weWrote = err == nil && got.Token == ours.Token
			if err == nil && !weWrote {
				e.want("Swap in a transaction of a record that was replaced", got, theirs)
			}
			interfere("after the write")
			return err
		})
		weWrote = weWrote && err == nil
		switch now := e.get(e.b, key); {
		case theyWrote && weWrote:
			e.errorf("a transaction and another caller, %s of the transaction, both replaced the same record", when)
		case theyWrote:
			e.want("Get after a race that the transaction lost", now, theirs)
		case weWrote:
			e.want("Get after a race that the transaction won", now, ours)
		}
	}
}

// A crossing lets transactions overlap: whoever comes to it waits for another
// to come, for a moment only, since a storage may let in one at a time.
type crossing chan struct{}

func (c crossing) meet() {
	moment := time.NewTimer(10 * time.Millisecond)
	defer moment.Stop()
	select {
	case c <- struct{}{}:
	case <-c:
	case <-moment.C:
	}
}

// testTxRace counts with transactions and with single Swaps at the same time.
func testTxRace(e *env) {
	const callers, each = 4, 5
	between := make(crossing)
	e.put("k", newRecord(idem.InProgress)) // Attempt 1
	var did [callers]int
	together(callers, func(i int) {
		for did[i] < each && e.ctx.Err() == nil {
			var next, got idem.Record
			var err error
			attempt := func(b idem.Backend) error {
				now, err := b.Get(e.ctx, "k")
				if err != nil {
					return err
				}
				next = successor(now)
				got, err = b.Swap(e.ctx, "k", now.Token, next)
				if i%2 == 0 {
					between.meet()
				}
				return err
			}
			if i%2 == 0 {
				err = e.inTx(attempt)
			} else {
				err = attempt(e.b)
			}
			switch {
			case err == nil && got.Token == next.Token:
				did[i]++
			case err != nil && !errors.Is(err, idem.ErrRetryTx):
				e.errorf("a write that lost a race failed with an error that is not an ErrRetryTx: %v", err)
				return
			}
		}
	})
	if got := e.get(e.b, "k").Attempt; got != 1+callers*each {
		e.errorf("after %d writes that succeeded the count is %d, want %d", callers*each, got, 1+callers*each)
	}
}

func testTxExpired(e *env) {
	old := e.expired("k", idem.Completed)
	next := newRecord(idem.InProgress)
	err := e.inTx(func(tx idem.Backend) error {
		e.want("Get of an expired record in a transaction", e.get(tx, "k"), idem.Record{})
		e.want("Swap with the token of an expired record", e.swap(tx, "k", old.Token, newRecord(idem.Completed)), idem.Record{})
		e.want("Swap of an expired record's key in a transaction", e.swap(tx, "k", "", next), next)
		return nil
	})
	if err != nil {
		e.fatalf("the transaction failed: %v", err)
	}
	e.wantStored("k", next)
}
