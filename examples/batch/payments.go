package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"

	"github.com/idem-go/idem"
)

var header = []string{"payment", "account", "cents"}

// A payment is one row of a file.
type payment struct {
	id      string // of the payment in the system it comes from
	account string
	cents   int64
}

func parse(row []string) (payment, error) {
	p := payment{id: row[0], account: row[1]}
	if p.account == "" {
		return p, errors.New("the account is missing")
	}
	var err error
	if p.cents, err = strconv.ParseInt(row[2], 10, 64); err != nil || p.cents <= 0 {
		return p, fmt.Errorf("%q is no amount in cents", row[2])
	}
	return p, nil
}

// key names the operation: this payment, whoever sends it and however often. It
// does not have the name of the file in it, or a payment that is sent again in
// another file would be booked again.
func (p payment) key() string { return "payment " + p.id }

// fingerprint covers all that must be the same for two rows to be one payment.
func (p payment) fingerprint() idem.Fingerprint {
	return idem.FingerprintOf([]byte(p.id), []byte(p.account), strconv.AppendInt(nil, p.cents, 10))
}

// generate writes a file as they come: one row in ten is there a second time,
// and one in a hundred is there again with another amount.
func generate(w io.Writer, rows int, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 0))
	out := csv.NewWriter(w)
	if err := out.Write(header); err != nil {
		return err
	}
	var sent []payment
	for n := range rows {
		p := payment{fmt.Sprintf("P%07d", n), fmt.Sprintf("DE%02d", r.IntN(20)), 1 + r.Int64N(100_000)}
		switch dice := r.IntN(100); {
		case n == 0:
		case dice == 0:
			p = sent[r.IntN(len(sent))]
			p.cents++
		case dice <= 10:
			p = sent[r.IntN(len(sent))]
		}
		if p.id == fmt.Sprintf("P%07d", n) {
			sent = append(sent, p)
		}
		if err := out.Write([]string{p.id, p.account, strconv.FormatInt(p.cents, 10)}); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
