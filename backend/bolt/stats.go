package bolt

import (
	"context"
	"os"
	"time"
)

// Stats tell an operator about the file and the storage in it.
type Stats struct {
	Records int64 // those that are expired and not yet swept included
	Size    int64 // of the file, in bytes
	Free    int64 // of that, in pages that are empty and will be used again

	// Ahead is by how much the clock of the file is ahead of the machine's, because
	// that was set back: records grow older from where they were. 0 if it is not.
	Ahead time.Duration
}

// Stats looks at all pages of the file. It is an error in a transaction.
func (b *Backend) Stats(ctx context.Context) (s Stats, err error) {
	if err := b.check(ctx); err != nil {
		return Stats{}, err
	}
	defer b.leave()
	if b.bound != nil {
		return Stats{}, b.failed("stats", errBound)
	}
	err = b.view(ctx, func(t table) error {
		h, err := t.head()
		if err != nil {
			return err
		}
		wall, _ := b.clock.now()
		s.Records, s.Ahead = int64(h.records), max(0, time.Duration(h.stamp-wall))
		// The bucket at the top has all others in it.
		pages := t.tx.Cursor().Bucket().Stats()
		used := 2 + pages.BranchPageN + pages.BranchOverflowN + pages.LeafPageN + pages.LeafOverflowN
		info, err := os.Stat(b.path)
		if err != nil {
			return b.failed("stats", err)
		}
		s.Size = max(info.Size(), t.tx.Size())
		s.Free = max(0, s.Size-int64(used)*int64(t.tx.DB().Info().PageSize))
		return nil
	})
	return s, err
}
