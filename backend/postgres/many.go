package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem"
)

// SwapAll implements [idem.Batcher]: through a pool in round trips and commits of
// up to 512 swaps. Through database/sql it swaps one by one, some side by side.
//
// A key that a transaction of somebody else's has claimed is in progress, at once.
func (b *Backend) SwapAll(ctx context.Context, swaps []idem.Swap) []idem.Swapped {
	return idem.InTurn(swaps, func(swaps []idem.Swap) []idem.Swapped { return b.swapAll(ctx, swaps) })
}

func (b *Backend) swapAll(ctx context.Context, swaps []idem.Swap) []idem.Swapped {
	m := newMany(b, swaps)
	for i, sw := range m.swaps {
		sw.look = swaps[i].Old == "" && b.known.has(sw.op.key)
	}
	m.ask = func(ctx context.Context, ops []*operation) []result { return b.askAll(ctx, "swap", ops) }
	m.held = func(ctx context.Context, locks []int64) (held []bool, err error) {
		err = b.src.with(ctx, func(s session) error {
			held, err = heldAll(ctx, s, locks)
			return err
		})
		if err != nil {
			return nil, b.explain(ctx, "swap", err)
		}
		return held, nil
	}
	m.stuck = idem.ErrUnavailable
	return m.run(ctx)
}

// SwapAll implements [idem.Batcher]: with pgx in one pipeline.
func (t *bound) SwapAll(ctx context.Context, swaps []idem.Swap) []idem.Swapped {
	return idem.InTurn(swaps, func(swaps []idem.Swap) []idem.Swapped { return t.swapAll(ctx, swaps) })
}

func (t *bound) swapAll(ctx context.Context, swaps []idem.Swap) []idem.Swapped {
	m := newMany(t.b, swaps)
	m.ask = t.askAll
	m.held = func(ctx context.Context, locks []int64) ([]bool, error) {
		held, err := heldAll(ctx, t.s, locks)
		if err != nil {
			return nil, t.b.failedBound(ctx, "swap", err)
		}
		return held, nil
	}
	m.stuck = idem.ErrRetryTx
	return m.run(ctx)
}

// many are Swaps of distinct keys on their way.
type many struct {
	swaps   []*swap
	swapped []idem.Swapped
	open    []int // those that are not answered

	ask   func(ctx context.Context, ops []*operation) []result
	held  func(ctx context.Context, locks []int64) ([]bool, error)
	stuck error // what it is if a transaction is in the way for too long
}

// A result is the reply to one of many operations, or its error.
type result struct {
	reply reply
	err   error
}

func newMany(b *Backend, swaps []idem.Swap) *many {
	m := &many{swaps: make([]*swap, len(swaps)), swapped: make([]idem.Swapped, len(swaps))}
	for i, s := range swaps {
		m.swaps[i] = b.newSwap(s.Key, s.Old, s.New)
		if err := checkKey(s.Key); err != nil {
			m.answer(i, idem.Record{}, err)
			continue
		}
		m.open = append(m.open, i)
	}
	return m
}

// answer ends a Swap.
func (m *many) answer(i int, r idem.Record, err error) {
	m.swapped[i] = idem.Swapped{Record: r, Err: err}
}

func (m *many) run(ctx context.Context) []idem.Swapped {
	started := time.Now()
	tries := make([]int, len(m.swaps)) // writes, of each
	delay := time.Duration(0)
	for len(m.open) > 0 {
		if err := pause(ctx, delay); err != nil {
			for _, i := range m.open {
				m.answer(i, idem.Record{}, m.swaps[i].op.notDone(fmt.Errorf("postgres: swap: %w", err)))
			}
			break
		}
		now, later := m.open, []int(nil)
		ops := make([]*operation, len(now))
		for n, i := range now {
			if ops[n] = m.swaps[i].next(); ops[n].kind != get {
				tries[i]++
			}
		}
		var stuck []int
		for n, res := range m.ask(ctx, ops) {
			i := now[n]
			if res.err != nil {
				m.answer(i, idem.Record{}, res.err)
				continue
			}
			got, ok := m.swaps[i].settle(res.reply)
			m.answer(i, got, nil)
			switch {
			case ok:
			case tries[i] > 1 && res.reply.outcome != unwritten:
				stuck = append(stuck, i)
			default:
				later = append(later, i)
			}
		}
		if delay = 0; len(stuck) > 0 {
			// The second time it is more likely that somebody is in the way.
			delay = min(time.Since(started)/4+time.Millisecond, 20*time.Millisecond)
			later = append(later, m.wait(ctx, stuck, started)...)
		}
		m.open = later
	}
	return m.swapped
}

// wait looks why Swaps do not get ahead, and returns those that are to be tried
// again. What another transaction has claimed and not committed is in progress. A
// completion is not told that somebody is in its way: that may be its own
// heartbeat, or a duplicate that looks.
func (m *many) wait(ctx context.Context, stuck []int, started time.Time) (again []int) {
	locks := make([]int64, len(stuck))
	for n, i := range stuck {
		locks[n] = m.swaps[i].op.lock
	}
	held, err := m.held(ctx, locks)
	for n, i := range stuck {
		sw := m.swaps[i]
		switch {
		case err != nil:
			m.answer(i, idem.Record{}, sw.op.notDone(err))
		case held[n] && (sw.old == "" || m.swapped[i].Record.Attempt != sw.op.new.Attempt):
			m.answer(i, unknown(*sw.op.new), nil)
		case time.Since(started) > patience:
			m.answer(i, idem.Record{}, sw.op.notDone(fmt.Errorf("postgres: swap: another transaction that has the record is still open after %v: %w", patience, m.stuck)))
		default:
			again = append(again, i)
		}
	}
	return again
}

// askAll runs operations as ask does, many in one round trip.
func (b *Backend) askAll(ctx context.Context, what string, ops []*operation) []result {
	results := make([]result, len(ops))
	if err := ctx.Err(); err != nil {
		for n := range results {
			results[n].err = ops[n].notDone(fmt.Errorf("postgres: %s: %w", what, err))
		}
		return results
	}
	open := make([]int, len(ops))
	for n := range ops {
		open[n] = n
	}
	for tries := 1; len(open) > 0; tries++ {
		sent := make([]*operation, len(open))
		for k, n := range open {
			sent[k] = ops[n]
		}
		var again []int
		for k, res := range b.sendAll(ctx, sent) {
			n := open[k]
			results[n] = res
			if res.err != nil && lostConnection(res.err) && ctx.Err() == nil && tries < mostTries {
				ops[n].failedTry(res.err)
				again = append(again, n)
			}
		}
		open = again
	}
	for n := range results {
		res := &results[n]
		res.reply, res.err = b.finish(ctx, what, ops[n], res.reply, res.err)
	}
	return results
}

// sqlAtOnce is how many operations run side by side where none share a round
// trip.
const sqlAtOnce = 8

// sendAll is send for many operations.
func (b *Backend) sendAll(ctx context.Context, ops []*operation) []result {
	if b.pgx != nil {
		for _, op := range ops {
			if op.kind != get {
				return b.writes.askAll(ctx, ops)
			}
		}
		return b.reads.askAll(ctx, ops)
	}
	results := make([]result, len(ops))
	next := make(chan int)
	var all sync.WaitGroup
	for range min(len(ops), sqlAtOnce) {
		all.Go(func() {
			for n := range next {
				results[n].reply, results[n].err = b.alone(ctx, ops[n])
			}
		})
	}
	for n := range ops {
		next <- n
	}
	close(next)
	all.Wait()
	return results
}

// pipelineMost is how many statements of a transaction go together.
const pipelineMost = 512

// askAll runs operations in the transaction. After an error there is no more to
// be had from it.
func (t *bound) askAll(ctx context.Context, ops []*operation) []result {
	results := make([]result, len(ops))
	for n := 0; n < len(ops); {
		part := ops[n:min(n+pipelineMost, len(ops))]
		done, err := queryAll(ctx, t.s, len(part),
			func(i int) (string, []any) { return t.statement(part[i]), part[i].args() },
			func(i int, scan func(...any) error) error {
				res := &results[n+i]
				rep, err := scanReply(scan)
				if errors.Is(err, idem.ErrCorrupt) { // which is one record's alone
					res.err, err = t.b.failedBound(ctx, "swap", err), nil
				}
				if res.err == nil && err == nil {
					res.reply, res.err = t.safe(rep)
				}
				return err
			})
		if n += done; err != nil {
			for ; n < len(ops); n++ {
				results[n] = result{err: t.b.failedBound(ctx, "swap", err)}
			}
		}
	}
	return results
}

// heldAll is heldBySomebody for many locks.
func heldAll(ctx context.Context, s session, locks []int64) ([]bool, error) {
	held := make([]bool, len(locks))
	_, err := queryAll(ctx, s, len(locks),
		func(i int) (string, []any) { return heldSQL, heldArgs(locks[i]) },
		func(i int, scan func(...any) error) error { return scan(&held[i]) })
	return held, err
}

// queryAll runs n statements, with pgx in one pipeline. each is called for every
// row, with the number of its statement. It returns how many statements have
// succeeded before the error.
func queryAll(ctx context.Context, s session, n int, statement func(i int) (string, []any), each func(i int, scan func(...any) error) error) (done int, err error) {
	p, ok := s.(pgxSession)
	if !ok {
		for ; done < n; done++ {
			sql, args := statement(done)
			if err = s.query(ctx, sql, args, func(scan func(...any) error) error { return each(done, scan) }); err != nil {
				return done, err
			}
		}
		return done, nil
	}
	var batch pgx.Batch
	for i := range n {
		sql, args := statement(i)
		batch.Queue(sql, args...)
	}
	results := p.q.SendBatch(ctx, &batch)
	for ; done < n; done++ {
		if err = eachRow(results, func(scan func(...any) error) error { return each(done, scan) }); err != nil {
			break
		}
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	return done, err
}
