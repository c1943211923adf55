package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
)

// entriesBucket has the entries of the ledger by their number. It stands for
// whatever tables a real program has.
var entriesBucket = []byte("ledger")

// An entry is one booking.
type entry struct {
	Payment string `json:"payment"`
	Account string `json:"account"`
	Cents   int64  `json:"cents"`
}

// addEntry books a payment. It looks for nothing and locks nothing: that it runs
// once for each payment is idem's part.
func addEntry(entries *bbolt.Bucket, p payment) (idem.Result, error) {
	number, err := entries.NextSequence()
	if err != nil {
		return idem.Result{}, err
	}
	doc, err := json.Marshal(entry{p.id, p.account, p.cents})
	if err != nil {
		return idem.Result{}, err
	}
	if err := entries.Put(binary.BigEndian.AppendUint64(nil, number), doc); err != nil {
		return idem.Result{}, err
	}
	return idem.Result{Body: fmt.Appendf(nil, "entry %d", number)}, nil
}

// readEntries calls fn for each entry of the ledger.
func (im *importer) readEntries(fn func(entry)) error {
	return im.db.View(func(tx *bbolt.Tx) error {
		entries := tx.Bucket(entriesBucket)
		if entries == nil {
			return nil
		}
		return entries.ForEach(func(number, doc []byte) error {
			var e entry
			if err := json.Unmarshal(doc, &e); err != nil {
				return fmt.Errorf("ledger entry %d: %w", binary.BigEndian.Uint64(number), err)
			}
			fn(e)
			return nil
		})
	})
}

// balance prints what is in the ledger.
func balance(ledger string, w io.Writer) (err error) {
	im, err := openLedger(ledger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, im.db.Close()) }()
	cents, payments := map[string]int64{}, map[string]int{}
	total, count := int64(0), 0
	if err := im.readEntries(func(e entry) {
		cents[e.Account] += e.Cents
		payments[e.Account]++
		total += e.Cents
		count++
	}); err != nil {
		return err
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "account\tpayments\tamount\t")
	for _, account := range slices.Sorted(maps.Keys(cents)) {
		fmt.Fprintf(out, "%s\t%d\t%s\t\n", account, payments[account], money(cents[account]))
	}
	fmt.Fprintf(out, "all\t%d\t%s\t\n", count, money(total))
	return out.Flush()
}

func money(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }
