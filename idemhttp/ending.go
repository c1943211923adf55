package idemhttp

import "net/http"

// An Ending is what becomes of an operation that a handler has answered.
type Ending uint8

const (
	// Record keeps the answer: every retry gets it.
	Record Ending = iota + 1

	// Omit records that the operation is done, without the body: a retry gets
	// the status and the kept headers. It is for answers with a secret in
	// them.
	Omit

	// Release says that nothing happened: the key is free at once, and the next
	// request with it runs.
	Release

	// Abandon says that the outcome is unknown: the next request with the key
	// runs as a takeover, or is refused under [idem.Hold] until somebody has
	// decided.
	Abandon
)

// DefaultEnding returns what becomes of an operation by the status of its answer;
// the documentation of the package has the table.
func DefaultEnding(status int) Ending {
	switch status {
	case http.StatusTemporaryRedirect, http.StatusPermanentRedirect,
		http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooEarly,
		http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return Release
	}
	if status >= 500 {
		return Abandon
	}
	return Record
}
