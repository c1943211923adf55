package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/schollz/progressbar/v3"
	"go.etcd.io/bbolt"
	"golang.org/x/term"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/bolt"
)

// batchRows is how many rows commit together. A commit is a wait for the disk;
// what is lost with one that is cut short is done again, and not twice.
const batchRows = 100

// An importer books payments into a ledger.
type importer struct {
	db      *bbolt.DB
	backend *bolt.Backend
	store   *idem.Store
	add     func(entries *bbolt.Bucket, p payment) (idem.Result, error) // addEntry, but for tests
}

func openLedger(path string) (*importer, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return nil, fmt.Errorf("open the ledger %s: %w (is another import running?)", path, err)
	}
	im := &importer{db: db, add: addEntry}
	if im.backend, err = bolt.New(db, nil); err == nil {
		// A week, since a file may be sent again after a long weekend.
		im.store, err = idem.New(im.backend, &idem.Options{Scope: "payments", Retention: idem.MaxRetention})
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return im, nil
}

// importFile books the payments of a file that are not booked yet.
func importFile(ctx context.Context, ledger, path string, stdout, stderr io.Writer) (err error) {
	im, err := openLedger(ledger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, im.db.Close()) }()
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	progress := newProgress(stderr, info.Size())
	in := csv.NewReader(file)
	if first, err := in.Read(); err != nil && err != io.EOF {
		return fmt.Errorf("%s: %w", path, err)
	} else if !slices.Equal(first, header) {
		return fmt.Errorf("%s: the first line is %q, and has to be %q", path, first, header)
	}
	in.FieldsPerRecord = len(header)
	var total report
	for end := false; !end && ctx.Err() == nil; {
		var batch []row
		batch, end, err = readBatch(in, &total)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		booked, err := im.book(ctx, batch)
		if err != nil {
			return fmt.Errorf("stopped in the batch that begins at line %d, none of which is booked: %w; start the import again", batch[0].line, err)
		}
		total.add(booked)
		progress.show(in.InputOffset(), total.rows())
	}
	progress.end()
	total.print(stdout, path)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("stopped by a signal after %d rows; start the import again", total.rows())
	case len(total.problems) > 0:
		return errNeedsAPerson
	}
	return nil
}

// A row is a payment and where it stands.
type row struct {
	payment
	line int
}

// readBatch reads the next rows. What is no payment goes to the problems.
func readBatch(in *csv.Reader, total *report) (batch []row, end bool, err error) {
	for len(batch) < batchRows {
		fields, err := in.Read()
		if err == io.EOF {
			return batch, true, nil
		}
		if errors.Is(err, csv.ErrFieldCount) {
			line, _ := in.FieldPos(0)
			total.problem(line, "", err)
			continue
		}
		if err != nil {
			return nil, false, err
		}
		line, _ := in.FieldPos(0)
		p, err := parse(fields)
		if err != nil {
			total.problem(line, p.id, err)
			continue
		}
		batch = append(batch, row{p, line})
	}
	return batch, false, nil
}

// book books the payments of a batch in one transaction: all of it is in the
// ledger, with idem's records, or nothing. Within a transaction nobody waits and
// nothing is repeated, so an error other than a conflict ends it.
func (im *importer) book(ctx context.Context, batch []row) (done report, err error) {
	items := make([]idem.Item, len(batch))
	for i, r := range batch {
		items[i] = idem.Item{Key: r.key(), Fingerprint: r.fingerprint()}
	}
	err = im.db.Update(func(tx *bbolt.Tx) error {
		entries, err := tx.CreateBucketIfNotExists(entriesBucket)
		if err != nil {
			return err
		}
		ends := im.store.With(im.backend.WithTx(tx)).DoAll(ctx, items, func(_ context.Context, tasks []*idem.Task) error {
			for _, t := range tasks {
				t.End(im.add(entries, batch[t.Item].payment))
			}
			return nil
		})
		done, err = reportOf(batch, ends)
		return err
	})
	return done, err
}

// A progress tells how far the import is: as a bar on a terminal, elsewhere as a
// line now and then.
type progress struct {
	w      io.Writer
	bar    *progressbar.ProgressBar // nil elsewhere
	logged int
}

func newProgress(w io.Writer, size int64) *progress {
	p := &progress{w: w}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.bar = progressbar.NewOptions64(size,
			progressbar.OptionSetWriter(w),
			progressbar.OptionSetWidth(30),
			progressbar.OptionSetPredictTime(true),
			progressbar.OptionThrottle(50*time.Millisecond),
			progressbar.OptionClearOnFinish())
	}
	return p
}

func (p *progress) show(offset int64, rows int) {
	if p.bar != nil {
		p.bar.Describe(fmt.Sprintf("%d rows", rows))
		_ = p.bar.Set64(offset)
		return
	}
	if rows/1000 > p.logged {
		p.logged = rows / 1000
		fmt.Fprintf(p.w, "batch: %d rows done\n", rows)
	}
}

func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
