package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idem-go/idem"
)

// SQLSTATEs that mean something of their own here.
const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	readOnlyTransaction  = "25006"
	abortedTransaction   = "25P02"
	undefinedTable       = "42P01"
	undefinedSchema      = "3F000"
	undefinedColumn      = "42703"
	insufficientRights   = "42501"
	noConflictIndex      = "42P10"
	unknownStatement     = "26000"
	changedResult        = "0A000" // of a prepared statement, among what is not supported
	duplicateStatement   = "42P05"
	protocolViolation    = "08P01"
	divisionByZero       = "22012"
	uniqueViolation      = "23505"
)

// sqlState returns the SQLSTATE that the server reported with err, or "".
func sqlState(err error) string {
	// Every driver's error has this method.
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState()
	}
	return ""
}

// conflict reports whether the server chose the statement as the loser of a
// conflict between transactions.
func conflict(err error) bool {
	state := sqlState(err)
	return state == serializationFailure || state == deadlockDetected
}

// refused reports whether the server answered with an ordinary error, which
// undoes the statement. After FATAL, or without an answer, the statement may have
// been committed.
func refused(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		severity := e.SeverityUnlocalized
		if severity == "" {
			severity = e.Severity
		}
		return severity == "ERROR"
	}
	state := sqlState(err)
	return state != "" && !strings.HasPrefix(state, "57P") && !strings.HasPrefix(state, "08") && !strings.HasPrefix(state, "XX")
}

// unsent reports whether err says that nothing has reached the server.
func unsent(err error) bool {
	_, dial := errors.AsType[*pgconn.ConnectError](err)
	return dial || pgconn.SafeToRetry(err) || errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, sql.ErrTxDone)
}

// lostConnection reports whether err says that a connection broke that had been
// there.
func lostConnection(err error) bool {
	_, none := errors.AsType[*unavailable](err)
	return !none && !refused(err) && !errors.Is(err, idem.ErrCorrupt)
}

func errStandby(what string) error {
	return fmt.Errorf("postgres: %s: the server is a standby, whose records may be old; connect to the primary", what)
}

// explain says what failed, why as far as that is known, and what to do.
func (b *Backend) explain(ctx context.Context, what string, err error) error {
	if ctxErr := ctx.Err(); ctxErr != nil && !errors.Is(err, ctxErr) {
		// The server may have been quicker to notice than the driver.
		err = fmt.Errorf("%w: %w", ctxErr, err)
	}
	advice := ""
	switch sqlState(err) {
	case readOnlyTransaction:
		advice = "the server is a standby, or read-only; connect to the primary"
	case undefinedTable, undefinedSchema:
		advice = fmt.Sprintf("there is no table %s; call Migrate, or run the SQL of Schema", b.table)
	case undefinedColumn, noConflictIndex:
		advice = fmt.Sprintf("the table %s is not as Schema creates it", b.table)
	case insufficientRights:
		advice = fmt.Sprintf("the role needs SELECT, INSERT, UPDATE and DELETE on %s", b.table)
	case abortedTransaction:
		advice = "an earlier statement of the transaction failed; roll it back"
	case unknownStatement, duplicateStatement, protocolViolation:
		advice = "behind a connection pooler pgx must not cache prepared statements; connect with default_query_exec_mode=exec, or cache_describe"
	}
	if strings.Contains(err.Error(), "transaction blocks not allowed") {
		advice = "the connection pooler is in statement mode, which has no transactions; put it in transaction mode"
	}
	if advice != "" {
		return fmt.Errorf("postgres: %s: %s: %w", what, advice, err)
	}
	return fmt.Errorf("postgres: %s: %w", what, err)
}

// failed returns the error of a statement by itself, which is undone if the
// server refused it.
func (b *Backend) failed(ctx context.Context, what string, err error) error {
	definite := refused(err) || unsent(err)
	err = b.explain(ctx, what, err)
	if definite {
		return idem.NoEffect(err)
	}
	return err
}

// failedBound returns the error of a statement in the caller's transaction. The
// transaction cannot be committed after it, so that it has no effect for certain.
func (b *Backend) failedBound(ctx context.Context, what string, err error) error {
	again := conflict(err)
	err = b.explain(ctx, what, err)
	if again {
		err = fmt.Errorf("%w: %w", idem.ErrRetryTx, err)
	}
	return idem.NoEffect(err)
}

// failedCommit returns the error of a COMMIT.
func (b *Backend) failedCommit(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, driver.ErrBadConn):
		// Nothing is known: drivers return it for a connection that is lost.
		return b.explain(ctx, "commit", err)
	case conflict(err):
		return idem.NoEffect(fmt.Errorf("%w: %w", idem.ErrRetryTx, b.explain(ctx, "commit", err)))
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return idem.NoEffect(b.explain(ctx, "commit", fmt.Errorf("a statement of the transaction had failed and its error was ignored: %w", err)))
	}
	return b.failed(ctx, "commit", err)
}
