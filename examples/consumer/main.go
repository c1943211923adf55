// The program consumer books the orders that a queue delivers, and each order
// once, however often it is delivered.
//
// A broker that delivers at least once delivers twice: because the order was
// published twice, because an acknowledgement was lost, because the consumer was
// killed before it could send one, or because it took longer than the broker
// waits. The broker here is NATS JetStream, and what is done about it is the same
// with any other:
//
//   - The key is the number of the order, which comes from whoever placed it. It is
//     not the sequence of the broker, which is another one for every copy.
//   - The booking and idem's record of it commit in one transaction (ledger.go), so
//     that no crash comes between the two.
//   - How the delivery is settled follows from the error of Do (consume.go):
//     acknowledged, delivered again, or put aside among the dead letters.
//   - While an order is worked on, its claim and the broker's deadline are extended
//     side by side.
//
// The demo publishes every order twice, kills its consumers in the middle of their
// work, and looks into the ledger:
//
//	go run . demo -orders 1000 -kills 5
//
// Or step by step, with a broker and consumers of their own:
//
//	go run . broker &
//	go run . publish -orders 1000
//	go run . consume    # until a signal; kill it, start it again
//	go run . report
//
// The ledger is a bolt file, which one process at a time can have open. With
// -ledger postgres://... any number of consumers share one.
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
	"time"
)

// settings are what the commands have in common.
type settings struct {
	broker  string        // URL
	ledger  string        // file, or URL of a PostgreSQL
	orders  int           // to publish
	workers int           // orders that one consumer works on at a time
	work    time.Duration // that an order takes
	ackWait time.Duration // the broker's deadline, and the lease of a claim
	kills   int           // of the demo
	procs   int           // consumers of the demo
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return errors.New("say what to do: demo, broker, publish, consume or report")
	}
	var s settings
	flags := flag.NewFlagSet("consumer "+args[0], flag.ContinueOnError)
	flags.StringVar(&s.broker, "broker", "nats://127.0.0.1:4222", "`URL` of the broker")
	flags.StringVar(&s.ledger, "ledger", "ledger.db", "`file` of the ledger, or the URL of a PostgreSQL")
	flags.IntVar(&s.orders, "orders", 1000, "`number` of orders to publish, each twice")
	flags.IntVar(&s.workers, "workers", 8, "`number` of orders that a consumer works on at a time")
	flags.DurationVar(&s.work, "work", 0, "`time` that an order takes")
	flags.DurationVar(&s.ackWait, "ack-wait", 5*time.Second, "`time` after which the broker and the ledger take a silent consumer for dead")
	flags.IntVar(&s.kills, "kills", 5, "`number` of times that demo kills a consumer")
	flags.IntVar(&s.procs, "consumers", 1, "`number` of consumers that demo runs; more than one takes a PostgreSQL")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "demo":
		return demo(ctx, s, stdout)
	case "broker":
		return serveBroker(ctx, s, stdout)
	case "publish":
		return publish(ctx, s, stdout)
	case "consume":
		return consume(ctx, s, stdout)
	case "report":
		return report(ctx, s, stdout)
	}
	return fmt.Errorf("%q is nothing that this program does: say demo, broker, publish, consume or report", args[0])
}
