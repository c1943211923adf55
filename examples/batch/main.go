// The program batch imports files of payments, each payment once.
//
// Files of payments come as they come: with a row twice, sent a second time
// under another name, or with a payment that somebody has corrected without
// giving it a new number. And the import itself is killed and started again.
// Here the payment's number is the key and its content the fingerprint, and the
// ledger is in the same bolt file as idem's records: the claim, the booking and
// the result of each payment commit in one transaction. So wherever the program
// is stopped, starting it again with the same file books what is missing and
// nothing else.
//
//	go run ./examples/batch generate -rows 10000 > payments.csv
//	go run ./examples/batch import payments.csv
//	go run ./examples/batch import payments.csv    # again: nothing is booked
//	go run ./examples/batch balance
//
// The exit code is 0, or 1 if the import stopped, or 3 if it went through but
// has rows that a person has to look at.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// needsAPerson ends the program with code 3.
var errNeedsAPerson = errors.New("some rows were not booked; they are listed above")

func main() {
	// After a signal the batch at hand is finished, and then no other begun. It
	// would do no harm to be killed instead.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errNeedsAPerson):
		fmt.Fprintln(os.Stderr, "batch:", err)
		os.Exit(3)
	default:
		fmt.Fprintln(os.Stderr, "batch:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errors.New("say what to do: generate, import FILE or balance")
	}
	flags := flag.NewFlagSet("batch "+args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	ledger := flags.String("ledger", "ledger.db", "`file` of the ledger")
	rows := flags.Int("rows", 10_000, "`number` of rows to generate")
	seed := flags.Uint64("seed", 1, "`seed` of the generated rows")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "generate":
		return generate(stdout, *rows, *seed)
	case "import":
		if flags.NArg() != 1 {
			return errors.New("import takes one file")
		}
		return importFile(ctx, *ledger, flags.Arg(0), stdout, stderr)
	case "balance":
		return balance(*ledger, stdout)
	}
	return fmt.Errorf("%q is nothing that this program does: say generate, import FILE or balance", args[0])
}
