package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

// child is what the test binary does when it is the command that idem runs: the
// things that a shell does not do exactly enough.
func child(mode string) {
	switch mode, arg, _ := strings.Cut(mode, ":"); mode {
	case "signals":
		childSignals(arg)
	case "bytes":
		n, _ := strconv.Atoi(arg)
		os.Stdout.Write(allBytes(n))
		os.Stderr.Write(allBytes(n / 2))
	case "pieces":
		seed, _ := strconv.ParseUint(arg, 10, 64)
		for _, p := range pieces(seed) {
			[]*os.File{os.Stdout, os.Stderr}[p.from].Write(p.data)
		}
	default:
		fmt.Fprintln(os.Stderr, "no such mode:", mode)
		os.Exit(99)
	}
}

// childSignals reports to the FIFO "got" who runs it, and each signal until the
// last one comes, prints how often it received which, and exits with 7.
func childSignals(last string) {
	received := make(chan os.Signal, 64)
	signal.Notify(received, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	got, err := os.OpenFile("got", os.O_WRONLY, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(99)
	}
	fmt.Fprintln(got, "run by", os.Getppid())
	count := make(map[string]int)
	for s := range received {
		count[s.String()]++
		fmt.Fprintln(got, s)
		if s.String() == last {
			break
		}
	}
	fmt.Println(count)
	os.Exit(7)
}

// allBytes returns n bytes in which every value occurs.
func allBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8)
	}
	return b
}

// pieces returns output for both streams, changing between them.
func pieces(seed uint64) []chunk {
	rnd := rand.New(rand.NewPCG(seed, 1))
	var all []chunk
	for i := range 300 {
		data := bytes.Repeat([]byte{byte('a' + i%26)}, 1+rnd.IntN(40))
		all = append(all, chunk{channel(rnd.IntN(2)), append(data, '\n')})
	}
	return all
}
