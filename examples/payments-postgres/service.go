package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/postgres"
)

// A chargeRequest is the body of POST /charges.
type chargeRequest struct {
	Account int   `json:"account"`
	Cents   int64 `json:"cents"`
}

// A service charges accounts.
type service struct {
	backend *postgres.Backend
	store   *idem.Store
	charge  chargeFunc
}

// A chargeFunc carries out a charge in a transaction.
type chargeFunc func(ctx context.Context, tx pgx.Tx, request chargeRequest) (idem.Result, error)

// schema has the accounts and the book of charges. The business tables know
// nothing of idempotency.
const schema = `
CREATE TABLE IF NOT EXISTS accounts (id int PRIMARY KEY, cents bigint NOT NULL CHECK (cents >= 0));
CREATE TABLE IF NOT EXISTS charges (account int NOT NULL REFERENCES accounts, cents bigint NOT NULL, at timestamptz NOT NULL DEFAULT now())`

func newService(ctx context.Context, pool *pgxpool.Pool, charge chargeFunc) (http.Handler, error) {
	backend, err := postgres.New(pool, nil)
	if err != nil {
		return nil, err
	}
	if err := backend.Migrate(ctx); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return nil, err
	}
	store, err := idem.New(backend, &idem.Options{Scope: "charges"})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /charges", &service{backend, store, charge})
	return mux, nil
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 4<<10))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// The order of the members and white space make no other request.
	fingerprint, err := idem.FingerprintJSON(body)
	var request chargeRequest
	if err == nil {
		err = json.Unmarshal(body, &request)
	}
	if err != nil || request.Cents <= 0 {
		http.Error(w, "the body is not a charge", http.StatusBadRequest)
		return
	}
	out, err := s.backend.Do(r.Context(), s.store, r.Header.Get("Idempotency-Key"), fingerprint,
		func(ctx context.Context, tx pgx.Tx, _ *idem.Claim) (idem.Result, error) {
			return s.charge(ctx, tx, request)
		})
	if err != nil {
		refuse(w, err)
		return
	}
	if out.Replayed {
		w.Header().Set("Idempotency-Replayed", "true")
	}
	w.Header().Set("Content-Type", out.Result.Meta["Content-Type"])
	w.WriteHeader(out.Result.Code)
	_, _ = w.Write(out.Result.Body)
}

// charge takes the money off the account and books it. That there is not enough
// is an answer too: the duplicates get it as well.
func charge(ctx context.Context, tx pgx.Tx, request chargeRequest) (idem.Result, error) {
	answer := func(code int, v any) (idem.Result, error) {
		body, err := json.Marshal(v)
		return idem.Result{Code: code, Meta: map[string]string{"Content-Type": "application/json"}, Body: body}, err
	}
	var left int64
	err := tx.QueryRow(ctx, `UPDATE accounts SET cents = cents - $2 WHERE id = $1 AND cents >= $2 RETURNING cents`, request.Account, request.Cents).Scan(&left)
	if errors.Is(err, pgx.ErrNoRows) {
		return answer(http.StatusPaymentRequired, map[string]string{"error": "not enough money on the account"})
	}
	if err != nil {
		return idem.Result{}, fmt.Errorf("charge: %w", err)
	}
	if _, err := tx.Exec(ctx, `INSERT INTO charges (account, cents) VALUES ($1, $2)`, request.Account, request.Cents); err != nil {
		return idem.Result{}, fmt.Errorf("book: %w", err)
	}
	return answer(http.StatusCreated, map[string]int64{"charged": request.Cents, "left": left})
}

// refuse answers a request that got no result.
func refuse(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	switch {
	case errors.Is(err, idem.ErrKey):
		code = http.StatusBadRequest // no key, or a bad one
	case errors.Is(err, idem.ErrMismatch):
		code = http.StatusUnprocessableEntity // the key belongs to another charge
	case errors.Is(err, idem.ErrInProgress):
		code = http.StatusConflict // the client has gone, or does not want to wait
	case errors.Is(err, idem.ErrUnavailable), errors.Is(err, idem.ErrRetryTx):
		code = http.StatusServiceUnavailable // nothing is lost: send it again
	}
	if e, ok := errors.AsType[*idem.Error](err); ok && code >= http.StatusConflict {
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(e.RetryAfter().Round(time.Second)/time.Second))))
	}
	http.Error(w, err.Error(), code)
}
