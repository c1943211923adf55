package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// demo publishes orders to a broker of its own, has consumers work on them, kills
// those in the middle of it, and returns an error unless each order is booked
// once. It takes a ledger without orders of an earlier demo.
func demo(ctx context.Context, s settings, stdout io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "idem-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if s.ledger == "ledger.db" {
		s.ledger = filepath.Join(dir, s.ledger)
	}
	broker, err := startBroker("127.0.0.1", -1, dir)
	if err != nil {
		return err
	}
	defer func() {
		broker.Shutdown()
		broker.WaitForShutdown()
	}()
	s.broker = broker.ClientURL()
	if err := publish(ctx, s, stdout); err != nil {
		return err
	}
	conn, js, err := connect(ctx, s)
	if err != nil {
		return err
	}
	defer conn.Close()
	d := &disorder{settings: s, stdout: stdout, events: make(chan event)}
	if err := d.run(ctx, js); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "consumers were killed %d times, and settled %d deliveries\n", d.killed, d.settled)
	if err := report(ctx, s, stdout); err != nil {
		return err
	}
	return d.checkLedger(ctx)
}

// disorder is how the consumers of a demo live.
type disorder struct {
	settings
	stdout  io.Writer
	events  chan event
	running sync.WaitGroup
	killed  int
	settled int // deliveries, as far as the consumers could tell
}

// An event is that a consumer has settled some deliveries, or that it ended.
type event struct {
	consumer *exec.Cmd
	settled  int
	ended    bool
}

// run keeps consumers running, kills one now and then, and stops them when the
// broker has nothing left.
func (d *disorder) run(ctx context.Context, js jetstream.JetStream) error {
	ctx, stop := context.WithCancel(ctx)
	defer d.running.Wait()
	defer stop() // ends what runs then
	for range d.procs {
		if err := d.start(ctx); err != nil {
			return err
		}
	}
	share := 2 * d.orders / (d.kills + 1)
	next := share/2 + rand.N(share/2+1)
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case e := <-d.events:
			d.settled += e.settled
			if e.ended {
				if err := d.start(ctx); err != nil {
					return err
				}
			} else if d.killed < d.kills && d.settled >= next {
				if err := e.consumer.Process.Kill(); err != nil {
					continue // it has ended by itself
				}
				d.killed++
				next = d.settled + share/2 + rand.N(share/2+1)
				fmt.Fprintf(d.stdout, "kill -9 %d after %d deliveries\n", e.consumer.Process.Pid, d.settled)
			}
		case <-look.C:
			left, _, err := remaining(ctx, js)
			if err != nil || left == 0 {
				return err
			}
		case <-ctx.Done():
			return errors.New("stopped by a signal")
		}
	}
}

// start starts a consumer, which tells of its life until ctx is done.
func (d *disorder) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.CommandContext(ctx, self, "consume", "-broker", d.broker, "-ledger", d.ledger,
		"-workers", strconv.Itoa(d.workers), "-work", d.work.String(), "-ack-wait", d.ackWait.String())
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 10 * time.Second
	c.Stderr = os.Stderr
	stdout, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	tell := func(e event) {
		select {
		case d.events <- e:
		case <-ctx.Done():
		}
	}
	d.running.Go(func() {
		last := 0
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			var settled, ack, retry, dead int
			if n, _ := fmt.Sscanf(lines.Text()+"\n", tallyLine, &settled, &ack, &retry, &dead); n == 4 {
				tell(event{consumer: c, settled: settled - last})
				last = settled
			}
		}
		_ = c.Wait() // however it ended, it is started again
		tell(event{consumer: c, ended: true})
	})
	return nil
}

// checkLedger proves that each order is booked once and none is missing.
func (d *disorder) checkLedger(ctx context.Context) (err error) {
	l, err := openLedger(ctx, d.ledger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	booked, err := l.entries(ctx)
	if err != nil {
		return err
	}
	for n := range d.orders {
		if id := nthOrder(n).ID; booked[id] != 1 {
			err = errors.Join(err, fmt.Errorf("%s is booked %d times", id, booked[id]))
		}
	}
	if err == nil {
		fmt.Fprintln(d.stdout, "each order is booked once, and none is missing")
	}
	return err
}
