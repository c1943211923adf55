package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

// A stage has a provider and starts the program as processes of its own, to kill
// them.
type stage struct {
	provider *provider
	server   *http.Server
	command  func(args ...string) *exec.Cmd
	args     []string // of every process
}

func newStage(orders string, lease time.Duration, command func(args ...string) *exec.Cmd) (*stage, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := newProvider()
	st := &stage{
		provider: p,
		server:   &http.Server{Handler: p, ReadHeaderTimeout: time.Second},
		command:  command,
		args:     []string{"-orders", orders, "-provider", listener.Addr().String(), "-lease", lease.String()},
	}
	go func() { _ = st.server.Serve(listener) }()
	return st, nil
}

func (st *stage) close() { _ = st.server.Close() }

// start returns the command that runs the program with args.
func (st *stage) start(args ...string) *exec.Cmd {
	return st.command(append(append([]string{}, st.args...), args...)...)
}

// run runs the program to its end and returns what it prints.
func (st *stage) run(args ...string) (string, error) {
	cmd := st.start(args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), err
}

// kill begins to charge an order and kills the process at the step.
func (st *stage) kill(at step, order string, cents string) error {
	// It has to hang until it is killed.
	cmd := st.start("-hang-at", string(at), "-timeout", "1m", "charge", order, cents)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	told := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		told <- strings.TrimSpace(line)
	}()
	var line string
	reached := false
	if (&hang{at: at}).atProvider() == "" {
		line = <-told
		reached = line == "hanging at "+string(at)
	} else {
		select {
		case <-st.provider.hanging:
			reached = true
		case line = <-told:
		}
	}
	if !reached {
		err = fmt.Errorf("it has not come to the step %s, but said %q", at, line)
	}
	err = errors.Join(err, cmd.Process.Kill())
	_ = cmd.Wait()
	return err
}

// demonstrate kills the program at each step, and shows what becomes of the order.
func demonstrate(ctx context.Context, w io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "recovery-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	st, err := newStage(filepath.Join(dir, "orders.db"), time.Second, func(args ...string) *exec.Cmd { return exec.CommandContext(ctx, self, args...) })
	if err != nil {
		return err
	}
	defer st.close()
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "killed\tthe janitor\tcharged again")
	for i, s := range steps {
		order := fmt.Sprintf("order-%d", i+1)
		if err := st.kill(s.step, order, "4999"); err != nil {
			return err
		}
		recovered, err := st.run("recover")
		if err != nil {
			return err
		}
		again, err := st.run("charge", order, "4999")
		if err != nil {
			return err
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", s.what, recovered, again)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	agree, err := st.run("compare")
	fmt.Fprintln(w, agree)
	return err
}
