package idem

import "context"

// MaxStoredKey is the longest key that a Backend has to store, in bytes: the
// longest scope, the separator and the longest key. It is far below the
// smallest limit of the storages underneath (an index row of PostgreSQL holds
// 2,704 bytes).
const MaxStoredKey = 512

// A Backend is a compare-and-swap map from keys to records. It knows no rules:
// who may claim a key, when a lease is over and what a result means is decided
// in [Store], once for all storages.
//
// Programs do not call these methods, they use a Store. Whoever writes a
// Backend for another storage implements the following sentences; package
// conformancetest has a case for each of them and quotes the one that is
// broken.
//
// On writing:
//
//   - Swap stores new if the record under key has the token old; the empty old means that there must be no record.
//   - Swap returns what is stored under key afterwards: new if it was stored, else the record in the way, else the zero Record.
//   - Swaps of one key take effect one at a time, for all processes on that storage.
//   - Swap is idempotent by token: a Swap repeated because its reply was lost finds the token of new stored, writes nothing and succeeds.
//   - A Swap that does not swap writes nothing and leaves the transaction it runs in usable.
//   - A record that is replaced is replaced whole: nothing of the old record is left in the new one.
//   - A Swap in a transaction is visible to others when the transaction commits, and never if it rolls back.
//   - A transaction sees its own Swaps.
//
// On reading:
//
//   - Get returns the record stored under key, or the zero Record.
//   - Records come back byte for byte; an empty slice or map is the same as nil.
//   - Slices and maps are not shared with the caller, in either direction.
//   - Keys are distinct if their bytes are: no folding, trimming or normalising, and no character is a pattern.
//   - Every key of 1 to MaxStoredKey bytes of valid UTF-8 without NUL can be stored.
//   - What one handle has stored every other handle on the storage sees.
//
// On time:
//
//   - Age is the time since the Swap that stored the record, by one clock: the storage's own where it has one.
//   - Age is never negative, whatever the clock does.
//   - A record is expired once Age >= TTL.
//   - An expired record is no record, swept or not: Get does not return it and Swap treats the key as free.
//   - Reading does not make a record younger.
//
// On sweeping:
//
//   - Sweep deletes expired records only, and judges each at the moment it is deleted.
//   - Sweep deletes at most limit records and returns how many it deleted; with a limit below 1 it deletes none.
//   - Storage that expires records by itself may answer 0 to Sweep.
//   - A Sweep with a limit above the number of expired records leaves none of them.
//   - Sweep of an empty storage is no error.
//
// On failing:
//
//   - Methods may be called concurrently.
//   - A call whose context is done returns promptly with an error that wraps the context's.
//   - A call whose context was done before it began changes nothing.
//   - Absence and conflict are never errors.
//
// An error means that the storage failed and that the outcome of a Swap is
// unknown; the Store then repeats the Swap or leaves the matter to the caller.
// Where the backend knows for certain that a failed Swap has not been applied
// and will not be, it says so by returning [NoEffect] of the error, and the
// Store does not repeat it. What its caller has given up on should not be
// applied later, if that can be helped. Errors that wrap one of this package's
// sentinels ([ErrRetryTx], [ErrCorrupt], [ErrStoreLost], [ErrLocked]) keep
// their class on the way to the caller; all others become [ErrUnavailable].
//
// A transaction is just another Backend: backends whose storage has them offer
// a method WithTx that returns a Backend bound to the caller's transaction, to
// be used through [Store.With].
type Backend interface {
	// Get returns the record stored under key, or the zero Record.
	Get(ctx context.Context, key string) (Record, error)

	// Swap stores new under key if the token of the record now there is old
	// ("" = there must be none). It returns what is stored under key
	// afterwards: new if it was swapped in, else the record in the way.
	// new.Age is ignored.
	Swap(ctx context.Context, key, old string, new Record) (Record, error)

	// Sweep deletes expired records, at most limit, and returns how many it
	// deleted.
	Sweep(ctx context.Context, limit int) (int, error)
}

// A Lister is a Backend that can enumerate its records. It is found by type
// assertion.
//
//   - Listing to the end returns every record that was there the whole time at least once.
//   - List returns at most q.Limit entries; it may return fewer, even none, with more to come.
//   - The cursor is empty at the end of the listing and only there.
//   - List returns only entries that match the query, by prefix in bytes, by status and by lapsed lease.
//   - List does not return expired records.
//   - A cursor that List did not return is an error, never a fresh start.
type Lister interface {
	// List returns up to q.Limit entries and the cursor for the next call (""
	// at the end).
	List(ctx context.Context, q Query) (entries []Entry, next string, err error)
}

// A Watcher is a Backend that can tell when a record changes, so that nobody
// has to poll for it. It is found by type assertion.
//
//   - Watch returns nil when the record under key no longer has the token; it may return early.
//   - Watch returns at once if the record does not have the token to begin with.
//   - Watch returns the context's error when the context is done.
//
// A lease that runs out and a record that expires change nothing in the
// storage; Watch need not notice them.
type Watcher interface {
	// Watch returns nil when the record under key no longer has token (it may
	// return early), or ctx's error.
	Watch(ctx context.Context, key, token string) error
}

// A Batcher is a Backend that takes many Swaps in one call, for less than they
// cost one by one. It is found by type assertion; a Store on a Backend that is
// none swaps several at a time.
//
//   - SwapAll does with each of the swaps what Swap would, and returns what Swap would return, one for each and in their order.
//   - A swap that is refused or fails keeps no other from taking effect, unless it ends the transaction that they are part of.
//   - Swaps of one key in one call take effect in their order.
//   - SwapAll is idempotent by token, swap by swap: repeated because its reply was lost it finds what it has stored, and succeeds.
//   - Calls with the same keys never wait for each other in a circle, whatever the order of the keys.
//   - A SwapAll whose context is done returns promptly, with an error that wraps the context's for each swap whose outcome is unknown; if it was done before, nothing changes.
//   - SwapAll in a transaction is visible to others when the transaction commits, and never if it rolls back.
//
// A Swap that would have to wait for something, such as another transaction's
// end, must not hold up the others of its call: what is in the way is an attempt
// in progress, or the swap fails.
type Batcher interface {
	// SwapAll does the swaps and returns what became of them.
	SwapAll(ctx context.Context, swaps []Swap) []Swapped
}

// A Swap is one Swap of a [Batcher]'s call: its arguments.
type Swap struct {
	Key, Old string
	New      Record
}

// Swapped is what one Swap of a [Batcher]'s call returns.
type Swapped struct {
	Record Record
	Err    error
}

// InTurn calls swapAll with swaps of distinct keys, and again with those of keys
// that were there before: the order of swaps of one key, once for every [Batcher]
// that does a call's swaps all at once.
func InTurn(swaps []Swap, swapAll func([]Swap) []Swapped) []Swapped {
	seen := make(map[string]bool, len(swaps))
	for _, s := range swaps {
		seen[s.Key] = true
	}
	if len(seen) == len(swaps) {
		return swapAll(swaps)
	}
	clear(seen)
	var turns [2][]Swap // the first of their keys, and those after them
	var of [2][]int
	for i, s := range swaps {
		turn := 0
		if seen[s.Key] {
			turn = 1
		}
		seen[s.Key] = true
		turns[turn], of[turn] = append(turns[turn], s), append(of[turn], i)
	}
	swapped := make([]Swapped, len(swaps))
	for turn, some := range turns {
		for n, s := range InTurn(some, swapAll) {
			swapped[of[turn][n]] = s
		}
	}
	return swapped
}

// A Prober is a Backend that can tell from its own memory whether a key may have
// a record. It is found by type assertion. Where it may, a [Store] reads before
// it claims, and a replay costs no claim; a claim is decided by Swap as ever.
// Probe has no context and no error, since it does not ask the storage.
//
//   - Probe is true for a key with a record that has lately been stored through this Backend.
//   - Probe is false for most keys that have no record.
type Prober interface {
	// Probe reports whether there may be a record under key. It may be wrong
	// where others write to the storage, and about a key whose record is not one
	// of the last thousands: then the claim meets it.
	Probe(key string) bool
}

// An Entry is a record with the key under which it is stored. [SplitKey] takes
// the key apart.
type Entry struct {
	Key    string
	Record Record
}

// A Query selects what List returns. The zero Query selects everything.
type Query struct {
	Prefix string // of the stored key, in bytes; see ScopePrefix
	Cursor string // "" to begin, then what the previous call returned
	Status Status // 0 = any
	Lapsed bool   // only InProgress records whose lease is over
	Limit  int    // at most this many entries a call; below 1 the backend chooses
}

// Matches reports whether a record stored under key is one that q asks for:
// the filters of a query, once for every [Lister]. A backend may narrow the
// search with an index of its own first.
func (q Query) Matches(key string, r Record) bool {
	if len(key) < len(q.Prefix) || key[:len(q.Prefix)] != q.Prefix {
		return false
	}
	if q.Status != 0 && r.Status != q.Status {
		return false
	}
	return !q.Lapsed || r.Lapsed()
}
