package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
)

// refusals are the answers by which Redis says that it has not done what it was
// asked for, with what they mean for a storage of idempotency keys.
var refusals = map[string]string{
	"OOM":         "the server has reached maxmemory; it takes no new claims until there is room",
	"READONLY":    "the server is a read-only replica; connect to the master",
	"NOREPLICAS":  "fewer replicas than min-replicas-to-write are connected",
	"LOADING":     "the server is still loading its data",
	"MISCONF":     "the server cannot save its data to disk, and refuses writes",
	"MASTERDOWN":  "the replica has lost its master",
	"CLUSTERDOWN": "the cluster is down",
	"TRYAGAIN":    "the slot is being moved to another node",
	"MOVED":       "the slot has moved to another node",
	"ASK":         "the slot is being moved to another node",
	"CROSSSLOT":   "the server is part of a cluster; connect with a ClusterClient",
	"NOPERM":      "the user may not do this; see the package documentation for the rights that are needed",
	"NOAUTH":      "the server asks for a password",
	"WRONGPASS":   "the user or the password is wrong",
	"BUSY":        "the server is busy with another script",
	"NOSCRIPT":    "the server has lost the script",
	"MAXCLIENTS":  "the server has as many clients as it takes",
	"WRONGTYPE":   "the key is not a string: another program has written it",
}

// refusal returns the code of an error with which Redis refuses a command, or "".
// Redis 6 puts the code of a command inside a script in the middle of the text.
func refusal(err error) string {
	e, ok := errors.AsType[goredis.Error](err)
	if !ok {
		return ""
	}
	text := e.Error()
	code, _, _ := strings.Cut(text, " ")
	if _, known := refusals[code]; known {
		return code
	}
	switch {
	case strings.HasPrefix(text, "ERR max number of clients"):
		return "MAXCLIENTS"
	case strings.Contains(text, "user executing the script can't"):
		return "NOPERM"
	}
	if _, inner, ok := strings.Cut(text, ": -"); ok {
		code, _, _ = strings.Cut(inner, " ")
		if _, known := refusals[code]; known {
			return code
		}
	}
	return ""
}

// failed returns the error of a call, which says what was asked, what is true,
// and what to do. sent is how often the command was written to a connection.
func failed(op string, err error, sent int) error {
	code := refusal(err)
	advice := refusals[code]
	switch {
	case errors.Is(err, goredis.ErrClosed):
		advice = "the client is closed"
	case errors.Is(err, goredis.ErrPoolTimeout):
		advice = "all connections of the client's pool are in use; see its PoolSize"
	}
	switch {
	case code == "WRONGTYPE":
		err = fmt.Errorf("redis: %s: %w: %s: %w", op, idem.ErrCorrupt, advice, err)
	case advice != "":
		err = fmt.Errorf("redis: %s: %s: %w", op, advice, err)
	default:
		err = fmt.Errorf("redis: %s: %w", op, err)
	}
	// The client repeats by itself what it did not get an answer to, and an error
	// tells of the last try only. An earlier one may have been carried out.
	if sent == 0 || sent == 1 && code != "" {
		return idem.NoEffect(err)
	}
	return err
}

// classed gives the error of a call that no Store makes a class, if it has none.
func classed(op string, err error) error {
	for _, class := range []error{nil, idem.ErrUnavailable, idem.ErrStoreLost, idem.ErrOptions, idem.ErrCorrupt} {
		if errors.Is(err, class) {
			return err
		}
	}
	return fmt.Errorf("redis: %s: %w: %w", op, idem.ErrUnavailable, err)
}

func corrupt(key, format string, args ...any) error {
	return fmt.Errorf("redis: the record of %q: %w: %s; nothing was changed", key, idem.ErrCorrupt, fmt.Sprintf(format, args...))
}

// gaveUp is the error of a call whose context was done first.
func gaveUp(ctx context.Context, op, while string) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if !errors.Is(cause, err) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return fmt.Errorf("redis: %s: %s: %w", op, while, err)
}
