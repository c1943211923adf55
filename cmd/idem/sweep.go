package main

import (
	"fmt"

	"github.com/idem-go/idem"
)

// sweepBatch is how many records are deleted at a time. Others who use the store
// wait for no longer than one batch takes.
const sweepBatch = 1000

type sweepCommand struct{ place }

const sweepUsage = "idem sweep [FLAGS]"

const sweepHelp = `Deletes records that have expired, in all scopes, in batches that keep nobody
waiting, and prints how many there were. Expired records count as absent whether
they are deleted or not: sweeping gives back their room. It can be interrupted
and started again. Redis deletes expired records by itself.

  idem sweep --store postgres://localhost/shop

Exit codes: 0, or 64 for bad flags, 66 if there is no store, 69 if the store
cannot be used, 74 if the output cannot be written, 78 if the store is damaged
or not set up. The messages are on standard error and begin with "idem:".
`

// Run deletes what has expired.
func (c *sweepCommand) Run(s *session) error {
	t, err := c.whole(s.getenv)
	if err != nil {
		return badUsage("sweep", "%v", err)
	}
	backend, err := t.open(s.ctx, toOperate)
	if err != nil {
		return t.refused("sweep", err)
	}
	defer func() { _ = backend.Close() }()
	swept, err := sweep(s, backend)
	if err != nil {
		if swept > 0 {
			s.say("%d expired records were deleted before this:", swept)
		}
		return t.refused("sweep", err)
	}
	if backend.redis != nil {
		_, err = fmt.Fprintln(s.stdout, "nothing to do: Redis deletes expired records by itself")
	} else {
		_, err = fmt.Fprintf(s.stdout, "%d expired records deleted\n", swept)
	}
	return s.wrote(err)
}

// sweep deletes until there is nothing left to delete, and returns how much it
// was.
func sweep(s *session, b idem.Backend) (swept int, err error) {
	bar := s.progress("deleting expired records")
	defer bar.end()
	for {
		n, err := b.Sweep(s.ctx, sweepBatch)
		swept += n
		if err != nil || n < sweepBatch {
			return swept, err
		}
		bar.add(n)
	}
}
