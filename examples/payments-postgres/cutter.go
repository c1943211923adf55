package main

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
)

// A cutter is a proxy that cuts every connection after some bytes, in either
// direction: before a request has arrived, or after it has been carried out.
type cutter struct {
	target   string
	listener net.Listener
	cuts     atomic.Int64
	all      sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool
}

func newCutter(target string) (*cutter, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &cutter{target: target, listener: listener, conns: make(map[net.Conn]bool)}
	c.all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			c.all.Go(func() { c.serve(conn) })
		}
	})
	return c, nil
}

func (c *cutter) addr() string { return c.listener.Addr().String() }

func (c *cutter) close() {
	c.mu.Lock()
	c.closed = true
	for conn := range c.conns {
		_ = conn.Close()
	}
	c.mu.Unlock()
	_ = c.listener.Close()
	c.all.Wait()
}

// keep notes down a connection so that close can end it.
func (c *cutter) keep(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = conn.Close()
		return false
	}
	c.conns[conn] = true
	return true
}

func (c *cutter) drop(conn net.Conn) {
	_ = conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn)
}

func (c *cutter) serve(client net.Conn) {
	if !c.keep(client) {
		return
	}
	defer c.drop(client)
	server, err := net.Dial("tcp", c.target)
	if err != nil || !c.keep(server) {
		return
	}
	defer c.drop(server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.copy(client, server)
	}()
	c.copy(server, client)
	_ = client.Close()
	_ = server.Close()
	<-done
}

// copy passes on some bytes, a few requests' worth, and cuts the connection.
func (c *cutter) copy(to, from net.Conn) {
	n, err := io.CopyN(to, from, 1+rand.Int64N(2000))
	if err == nil && n > 0 {
		c.cuts.Add(1)
	}
	_ = to.Close()
	_ = from.Close()
}
