package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
)

// A charge is what the provider has booked.
type charge struct {
	Reference string `json:"reference"` // the caller's
	Cents     int64  `json:"cents"`
	Receipt   string `json:"receipt"`
}

// hangHeader makes the provider misbehave, for demonstration: it hangs at the step
// until its caller is gone.
const hangHeader = "Hang-At"

// A provider is a payment provider. It does not recognise repetitions: whoever
// charges twice has charged twice. But it can be asked what became of a reference.
//
//	POST /charges              books a charge: 201 and the charge
//	GET  /charges/{reference}  200 and the charges; 202 if a request is being worked
//	                           on; 404 if there is none
//	GET  /charges              all charges
type provider struct {
	*http.ServeMux
	hanging chan string // the references of requests that hang

	mu      sync.Mutex
	charges []charge
	pending map[string]int // requests by reference
}

func newProvider() *provider {
	p := &provider{ServeMux: http.NewServeMux(), hanging: make(chan string, 100), pending: map[string]int{}}
	p.HandleFunc("POST /charges", p.post)
	p.HandleFunc("GET /charges", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, p.booked("")) })
	p.HandleFunc("GET /charges/{reference}", p.find)
	return p
}

func (p *provider) post(w http.ResponseWriter, r *http.Request) {
	var c charge
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil || c.Reference == "" || c.Cents <= 0 {
		http.Error(w, "no reference, or no amount", http.StatusBadRequest)
		return
	}
	p.begin(c.Reference)
	defer p.end(c.Reference)
	hang := step(r.Header.Get(hangHeader))
	if hang == lost || hang == late {
		p.hang(r.Context(), c.Reference)
	}
	if hang == lost {
		return
	}
	c = p.book(c)
	if hang == unanswered {
		p.hang(r.Context(), c.Reference)
	}
	reply(w, http.StatusCreated, c)
}

// hang waits until the caller of a request is gone.
func (p *provider) hang(ctx context.Context, reference string) {
	select {
	case p.hanging <- reference:
	default: // nobody wants to know
	}
	<-ctx.Done()
}

func (p *provider) begin(reference string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending[reference]++
}

func (p *provider) end(reference string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending[reference]--; p.pending[reference] == 0 {
		delete(p.pending, reference)
	}
}

func (p *provider) book(c charge) charge {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.Receipt = fmt.Sprintf("receipt-%d", len(p.charges)+1)
	p.charges = append(p.charges, c)
	return c
}

// booked returns the charges with a reference, or all.
func (p *provider) booked(reference string) []charge {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := []charge{}
	for _, c := range p.charges {
		if reference == "" || c.Reference == reference {
			found = append(found, c)
		}
	}
	return found
}

func (p *provider) isPending(reference string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pending[reference] > 0
}

func (p *provider) find(w http.ResponseWriter, r *http.Request) {
	reference := r.PathValue("reference")
	pending := p.isPending(reference) // first: what ends in between is booked
	found := p.booked(reference)
	switch {
	case len(found) > 0:
		reply(w, http.StatusOK, found)
	case pending:
		reply(w, http.StatusAccepted, found)
	default:
		reply(w, http.StatusNotFound, found)
	}
}

func reply(w http.ResponseWriter, code int, doc any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(doc)
}

// What a provider says of a reference, if not that it is booked.
var (
	errNotFound = errors.New("the provider has no such charge")
	errPending  = errors.New("the provider is still working on the charge")
)
