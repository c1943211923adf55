package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/faultproxy"
	"github.com/idem-go/idem/internal/testenv"
)

func itemsOf(prefix string, n int) []idem.Item {
	items := make([]idem.Item, n)
	for i := range items {
		items[i] = idem.Item{Key: fmt.Sprintf("%s-%d", prefix, i), Fingerprint: payloadA}
	}
	return items
}

// claimAll begins the items and wants a claim for each.
func claimAll(t testing.TB, s *idem.Store, items []idem.Item) []idem.Completion {
	t.Helper()
	done := make([]idem.Completion, len(items))
	for i, b := range s.BeginAll(context.Background(), items) {
		if b.Claim == nil || b.Claim.Attempt != 1 {
			t.Fatalf("%q: %+v", items[i].Key, b)
		}
		done[i] = idem.Completion{Claim: b.Claim, Result: idem.Result{Body: []byte(items[i].Key)}}
	}
	return done
}

// 500 keys are claimed in one transaction, and completed in another; replaying
// them is none.
func TestManyKeysAreOneTransaction(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4)
	s := newStore(t, f, nil)
	for try := range 5 {
		items := itemsOf(fmt.Sprint("try ", try), 500)
		first, _ := f.nextXID(t)
		done := claimAll(t, s, items)
		claimed, _ := f.nextXID(t)
		if err := errors.Join(s.CompleteAll(ctx, done)...); err != nil {
			t.Fatal(err)
		}
		completed, _ := f.nextXID(t)
		for i, b := range s.BeginAll(ctx, items) {
			if b.Done == nil || string(b.Done.Result.Body) != items[i].Key {
				t.Fatalf("%q: %+v", items[i].Key, b)
			}
		}
		replayed, _ := f.nextXID(t)
		if claimed-first == 1 && completed-claimed == 1 && replayed == completed {
			return
		}
		t.Logf("try %d: %d, %d and %d transactions", try, claimed-first, completed-claimed, replayed-completed) // some may be the server's own
	}
	t.Error("500 keys were never claimed in one transaction and completed in another")
}

// A batch of any number of keys takes one round trip, in a transaction too.
func TestManyKeysAreOneRoundTrip(t *testing.T) {
	ctx := context.Background()
	f, proxy := proxied(t, 1)
	s := newStore(t, f, nil)
	var trips atomic.Int64
	proxy.Judge(func([]byte) faultproxy.Fate { trips.Add(1); return faultproxy.Pass })
	for round := range 4 { // statements are prepared on the way
		items := itemsOf(fmt.Sprint("round ", round), 10)
		before := trips.Load()
		done := claimAll(t, s, items)
		claimed := trips.Load()
		if err := errors.Join(s.CompleteAll(ctx, done)...); err != nil {
			t.Fatal(err)
		}
		completed := trips.Load()
		if round > 1 && (claimed-before != 1 || completed-claimed != 1) {
			t.Errorf("10 keys were claimed in %d round trips and completed in %d", claimed-before, completed-claimed)
		}
	}
	for round := range 4 {
		tx, err := f.pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		bound := s.With(f.WithTx(tx))
		before := trips.Load()
		done := claimAll(t, bound, itemsOf(fmt.Sprint("transaction ", round), 10))
		claimed := trips.Load()
		if err := errors.Join(bound.CompleteAll(ctx, done)...); err != nil {
			t.Fatal(err)
		}
		completed := trips.Load()
		if round > 1 && (claimed-before != 1 || completed-claimed != 1) {
			t.Errorf("in a transaction 10 keys were claimed in %d round trips and completed in %d", claimed-before, completed-claimed)
		}
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// A key that somebody's open transaction has claimed does not hold up the
// others of its batch. DoAll waits for it when the others are done.
func TestManyBesideAnOpenTransaction(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	f := newFixture(t, 4)
	s := newStore(t, f, nil)
	tx, err := f.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	claim, _, err := s.With(f.WithTx(tx)).Begin(ctx, "held", payloadA)
	if err != nil {
		t.Fatal(err)
	}
	items := []idem.Item{{Key: "a", Fingerprint: payloadA}, {Key: "held", Fingerprint: payloadA}, {Key: "b", Fingerprint: payloadA}}
	begun := s.BeginAll(ctx, items)
	refused, _ := errors.AsType[*idem.Error](begun[1].Err)
	if begun[0].Claim == nil || begun[2].Claim == nil || !errors.Is(begun[1].Err, idem.ErrInProgress) || refused.RetryAfter() > time.Second {
		t.Fatalf("beside an open transaction: %+v", begun)
	}
	other, err := f.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback(ctx)
	inTx := s.With(f.WithTx(other)).BeginAll(ctx, []idem.Item{items[1], {Key: "c", Fingerprint: payloadA}})
	if !errors.Is(inTx[0].Err, idem.ErrInProgress) || inTx[1].Claim == nil {
		t.Fatalf("in a transaction beside another: %+v", inTx)
	}
	if err := errors.Join(s.ReleaseAll(ctx, []*idem.Claim{begun[0].Claim, begun[2].Claim})...); err != nil {
		t.Fatal(err)
	}
	ran := make(chan struct{})
	ends := make(chan []idem.Ending)
	go func() {
		ends <- s.DoAll(ctx, items, func(_ context.Context, tasks []*idem.Task) error {
			for _, task := range tasks {
				task.End(idem.Result{Body: []byte("by the batch")}, nil)
			}
			close(ran)
			return nil
		})
	}()
	<-ran
	if err := s.With(f.WithTx(tx)).Complete(ctx, claim, idem.Result{Body: []byte("by the transaction")}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	for i, end := range <-ends {
		want := "by the batch"
		if i == 1 {
			want = "by the transaction"
		}
		if end.Err != nil || string(end.Result.Body) != want || end.Replayed != (i == 1) {
			t.Errorf("%q: %+v, want the result %q", items[i].Key, end, want)
		}
	}
}

// Claims that are completed in an open transaction are not lost, whoever extends
// them meanwhile together with others.
func TestManyExtendedBesideTheirOwnCompletion(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4)
	s := newStore(t, f, nil)
	done := claimAll(t, s, itemsOf("k", 10))
	var claims []*idem.Claim
	for _, d := range done {
		claims = append(claims, d.Claim)
	}
	const completed = 6
	err := pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
		if err := errors.Join(s.With(f.WithTx(tx)).CompleteAll(ctx, done[:completed])...); err != nil {
			return err
		}
		soon, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		for i, err := range s.ExtendAll(soon, claims) {
			if i < completed && (!errors.Is(err, idem.ErrUnavailable) || errors.Is(err, idem.ErrLost)) || i >= completed && err != nil {
				t.Errorf("claim %d: %v", i, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.CompleteAll(ctx, done)...); err != nil {
		t.Error(err)
	}
}

// A record that is damaged is its own caller's alone, in a transaction too.
func TestManyWithADamagedRecord(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t, 4)
	s := newStore(t, f, nil)
	if _, _, err := s.Begin(ctx, "k-1", payloadA); err != nil {
		t.Fatal(err)
	}
	f.exec(t, `UPDATE `+f.schema+`.idem_records SET meta = '\x02ff'`)
	check := func(what string, begun []idem.Begun) {
		t.Helper()
		for i, b := range begun {
			if i == 1 && !errors.Is(b.Err, idem.ErrCorrupt) || i != 1 && b.Claim == nil {
				t.Errorf("%s, item %d: %+v", what, i, b)
			}
		}
	}
	begun := s.BeginAll(ctx, itemsOf("k", 3))
	check("by itself", begun)
	if err := errors.Join(s.ReleaseAll(ctx, []*idem.Claim{begun[0].Claim, begun[2].Claim})...); err != nil {
		t.Fatal(err)
	}
	if err := pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
		check("in a transaction", s.With(f.WithTx(tx)).BeginAll(ctx, itemsOf("k", 3)))
		return nil
	}); err != nil {
		t.Errorf("the transaction: %v", err)
	}
}

// Reliability rows 5 and 6, for batches: whatever is lost, a batch recognises
// what it has stored.
func TestRow5And6_LostBatches(t *testing.T) {
	ctx := context.Background()
	f, proxy := proxied(t, 4, "default_query_exec_mode", "exec")
	s := newStore(t, f, nil)
	for mode, fate := range fates {
		for i := range 10 {
			items := itemsOf(fmt.Sprint(mode, i), 50)
			proxy.Judge(once("INSERT INTO", fate))
			done := claimAll(t, s, items)
			proxy.Judge(once("UPDATE", fate))
			if err := errors.Join(s.CompleteAll(ctx, done)...); err != nil {
				t.Errorf("%s: %v", mode, err)
			}
			proxy.Judge(nil)
			if err := errors.Join(s.CompleteAll(ctx, done)...); err != nil {
				t.Errorf("%s, repeated: %v", mode, err)
			}
		}
	}
}

// The context of a batch ends at any point: a claim that was granted is there,
// and nothing is left behind that nobody was told of for longer than it takes to
// give it back.
func TestManyCancelledAnywhere(t *testing.T) {
	f := newFixture(t, 4)
	s := newStore(t, f, nil)
	rnd := testenv.Rand(t)
	for i := range 40 {
		items := itemsOf(fmt.Sprint("round ", i), 100)
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rnd.IntN(4000))*time.Microsecond)
		begun := s.BeginAll(ctx, items)
		cancel()
		for n, b := range begun {
			switch {
			case b.Claim != nil:
				if err := s.Complete(context.Background(), b.Claim, idem.Result{}); err != nil {
					t.Errorf("a claim that was granted: %v", err)
				}
			case !errors.Is(b.Err, context.DeadlineExceeded):
				t.Errorf("%q: %+v", items[n].Key, b)
			default:
				out, err := s.Do(context.Background(), items[n].Key, payloadA, func(context.Context, *idem.Claim) (idem.Result, error) { return idem.Result{}, nil })
				if err != nil || out.Replayed {
					t.Errorf("%q after a batch that was cancelled: %+v, %v", items[n].Key, out, err)
				}
			}
			if n == 5 {
				break
			}
		}
	}
}
