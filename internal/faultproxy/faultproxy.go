// Package faultproxy is a TCP proxy between a client and a storage that fails on
// command: it loses a request, or the answer to a request that the storage has
// carried out, it delays, cuts, and goes silent.
//
// It knows nothing of protocols. What it counts as a request is a run of bytes
// from the client after bytes from the storage.
package faultproxy

import (
	"net"
	"sync"
	"testing"
	"time"
)

// A Fate is what happens to one request.
type Fate int

const (
	Pass          Fate = iota
	LoseRequest        // the storage does not see it, and the connection is cut
	LoseReply          // the storage carries it out; the answer is lost and the connection is cut
	CutBoth            // it is passed on and both sides are cut at once: anything may have happened
	TruncateReply      // the storage carries it out; the client gets half of the answer, and the connection is cut
	Reset              // the storage carries it out; instead of the answer the client gets a reset
	Silence            // the storage carries it out, and nothing comes back any more; the connection stays open
)

// A Proxy passes connections on to a storage.
type Proxy struct {
	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	judge   func(request []byte) Fate
	delay   time.Duration // of every answer
	slice   int           // answers are passed on in pieces of so many bytes
	refused bool
	conns   map[*pair]bool
	closed  bool
}

type pair struct{ client, server net.Conn }

func (p *pair) close() {
	_ = p.client.Close()
	_ = p.server.Close()
}

// New starts a proxy in front of the address target and stops it after the test.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: target, listener: l, conns: make(map[*pair]bool)}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr returns where clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Judge makes judge decide over every request from now on; nil lets all pass. It
// is called for one connection at a time, with what has arrived of the request.
func (p *Proxy) Judge(judge func(request []byte) Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge = judge
}

// Delay delays every answer by d.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Slice passes answers on in pieces of n bytes; 0 as they come.
func (p *Proxy) Slice(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slice = n
}

// Refuse cuts all connections and, until it is called with false, every new one.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = refuse
	if refuse {
		for c := range p.conns {
			c.close()
		}
	}
}

// Cut cuts all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		c.close()
	}
	p.mu.Unlock()
	_ = p.listener.Close()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	refused := p.refused || p.closed
	p.mu.Unlock()
	if refused {
		_ = client.Close()
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	c := &pair{client, server}
	p.mu.Lock()
	if p.refused || p.closed {
		p.mu.Unlock()
		c.close()
		return
	}
	p.conns[c] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
		c.close()
	}()
	link := &link{proxy: p, pair: c}
	done := make(chan struct{})
	go func() {
		defer close(done)
		link.answers()
		c.close()
	}()
	link.requests()
	// A client that has gone does not keep the storage from finishing what it
	// was asked, as in life; only its answer has nowhere to go.
	c.close()
	<-done
}

// A link is one connection on its way through the proxy.
type link struct {
	proxy *Proxy
	pair  *pair

	mu       sync.Mutex
	answered bool // the last bytes came from the storage
	fate     Fate
}

func (l *link) requests() {
	buf := make([]byte, 64<<10)
	l.answered = true
	for {
		n, err := l.pair.client.Read(buf)
		if err != nil {
			return
		}
		l.mu.Lock()
		if l.answered && l.fate == Pass {
			l.proxy.mu.Lock()
			judge := l.proxy.judge
			l.proxy.mu.Unlock()
			if judge != nil {
				l.fate = judge(buf[:n])
			}
		}
		l.answered = false
		fate := l.fate
		l.mu.Unlock()
		if fate == LoseRequest {
			return
		}
		if _, err := l.pair.server.Write(buf[:n]); err != nil {
			return
		}
		if fate == CutBoth {
			return
		}
	}
}

func (l *link) answers() {
	buf := make([]byte, 64<<10)
	for {
		n, err := l.pair.server.Read(buf)
		if err != nil {
			return
		}
		l.mu.Lock()
		l.answered = true
		fate := l.fate
		l.mu.Unlock()
		switch fate {
		case LoseReply:
			return
		case TruncateReply:
			_, _ = l.pair.client.Write(buf[:n/2])
			return
		case Reset:
			// Without time to linger, closing discards what is unsent and resets.
			_ = l.pair.client.(*net.TCPConn).SetLinger(0)
			return
		case Silence:
			continue
		}
		l.proxy.mu.Lock()
		delay, slice := l.proxy.delay, l.proxy.slice
		l.proxy.mu.Unlock()
		if delay > 0 {
			time.Sleep(delay) // this is what a slow network does
		}
		if slice <= 0 {
			slice = n
		}
		for b := buf[:n]; len(b) > 0; {
			piece := b[:min(slice, len(b))]
			b = b[len(piece):]
			if _, err := l.pair.client.Write(piece); err != nil {
				return
			}
		}
	}
}
