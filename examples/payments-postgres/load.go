package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem"
)

const (
	accounts    = 20
	initial     = 50_000 // cents on each of them
	duplicates  = 3      // how often each request is sent at the same time
	atTheSame   = 16     // charges at the same time
	givesUpWith = 200    // failures of one request
)

// load makes n charges, each by three requests at once that are repeated until
// they have an answer, and compares the books with the answers.
func load(ctx context.Context, pool *pgxpool.Pool, addr string, n int) (report string, err error) {
	if err := openAccounts(ctx, pool); err != nil {
		return "", err
	}
	proxy, err := newCutter(addr)
	if err != nil {
		return "", err
	}
	defer proxy.close()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 2 * atTheSame}}
	defer client.CloseIdleConnections()

	l := &loader{client: client, url: "http://" + proxy.addr() + "/charges"}
	work := make(chan int)
	var all sync.WaitGroup
	for range atTheSame {
		all.Go(func() {
			for range work {
				l.charge(ctx)
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	all.Wait()
	problems, err := l.audit(ctx, pool)
	report = fmt.Sprintf("%d charges, %d refused, in %d requests, of which %d failed and %d were answered by a replay\n%d connections were cut\n",
		l.charged.Load(), l.refused.Load(), l.sent.Load(), l.failed.Load(), l.replays.Load(), proxy.cuts.Load())
	if err != nil {
		return report, err
	}
	if len(problems) > 0 {
		return report, errors.New(strings.Join(problems, "\n"))
	}
	return report + "the books balance\n", nil
}

func openAccounts(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `TRUNCATE charges, accounts`); err != nil {
			return fmt.Errorf("is the service running? %w", err)
		}
		_, err := tx.Exec(ctx, `INSERT INTO accounts SELECT i, $1 FROM generate_series(1, $2::int) AS i`, initial, accounts)
		return err
	})
}

// A loader makes charges and keeps account of what it was told.
type loader struct {
	client *http.Client
	url    string

	sent, failed, replays, charged, refused atomic.Int64

	mu       sync.Mutex
	cents    [accounts + 1]int64 // charged, by account, as far as the answers tell
	problems []string
}

// charge sends one charge three times at the same time. All three have to get the
// same answer.
func (l *loader) charge(ctx context.Context) {
	request := chargeRequest{Account: 1 + rand.IntN(accounts), Cents: 1 + rand.Int64N(5000)}
	body, err := json.Marshal(request)
	if err != nil {
		l.problem("%v", err)
		return
	}
	key := idem.NewKey() // one for the charge, before the first attempt
	var answers [duplicates]string
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = l.send(ctx, key, body) })
	}
	all.Wait()
	for _, answer := range answers[1:] {
		if answer != answers[0] {
			l.problem("key %s got the answers %q and %q", key, answers[0], answer)
		}
	}
	switch {
	case strings.HasPrefix(answers[0], "201 "):
		l.charged.Add(1)
		l.mu.Lock()
		l.cents[request.Account] += request.Cents
		l.mu.Unlock()
	case strings.HasPrefix(answers[0], "402 "):
		l.refused.Add(1)
	default:
		l.problem("key %s got the answer %q", key, answers[0])
	}
}

// send sends a request until it is answered: the same key in every attempt.
func (l *loader) send(ctx context.Context, key string, body []byte) string {
	var last string
	for range givesUpWith {
		l.sent.Add(1)
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url, bytes.NewReader(body))
		if err != nil {
			return err.Error()
		}
		request.Header.Set("Idempotency-Key", key)
		response, err := l.client.Do(request)
		if err == nil {
			var text []byte
			text, err = io.ReadAll(response.Body)
			_ = response.Body.Close()
			last = fmt.Sprintf("%d %s", response.StatusCode, text)
			if err == nil && response.StatusCode != http.StatusConflict && response.StatusCode < 500 {
				if response.Header.Get("Idempotency-Replayed") != "" {
					l.replays.Add(1)
				}
				return last
			}
		}
		if err != nil {
			last = err.Error()
		}
		l.failed.Add(1)
		select {
		case <-ctx.Done():
			return ctx.Err().Error()
		case <-time.After(time.Duration(1+rand.IntN(20)) * time.Millisecond):
		}
	}
	return last
}

func (l *loader) problem(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.problems = append(l.problems, fmt.Sprintf(format, args...))
}

// audit compares balances, books and answers.
func (l *loader) audit(ctx context.Context, pool *pgxpool.Pool) ([]string, error) {
	rows, err := pool.Query(ctx, `SELECT id, a.cents, coalesce((SELECT sum(c.cents) FROM charges AS c WHERE c.account = a.id), 0)::bigint FROM accounts AS a`)
	if err != nil {
		return nil, err
	}
	var id int
	var left, booked int64
	_, err = pgx.ForEachRow(rows, []any{&id, &left, &booked}, func() error {
		if left+booked != initial {
			l.problem("account %d: %d cents are left and %d are booked, of %d", id, left, booked, initial)
		}
		if booked != l.cents[id] {
			l.problem("account %d: %d cents are booked, and the answers say %d", id, booked, l.cents[id])
		}
		return nil
	})
	var count int64
	if err == nil {
		err = pool.QueryRow(ctx, `SELECT count(*) FROM charges`).Scan(&count)
	}
	if err == nil && count != l.charged.Load() {
		l.problem("%d charges are booked, and the answers say %d", count, l.charged.Load())
	}
	return l.problems, err
}
