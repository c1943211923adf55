package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemhttp"
)

// A shop takes orders.
type shop struct {
	books    books
	store    *idem.Store
	packing  time.Duration // how long an order takes
	log      *slog.Logger
	outcomes outcomes
}

const (
	// scope keeps the keys of this shop apart from others in the same storage. A
	// customer's keys are in a scope of the customer's own below it.
	scope = "shop"

	// lease is how long the order of a process that was killed stays claimed.
	lease = 5 * time.Second

	// formWait is how long a form that was sent twice waits for the first answer.
	// A person has no use for "come back later"; a program does.
	formWait = 30 * time.Second

	// bookIn bounds how long the books may take.
	bookIn = 10 * time.Second
)

func newShop(b books, packing time.Duration, log *slog.Logger) (http.Handler, error) {
	s := &shop{books: b, packing: packing, log: log}
	// An order commits together with its record. So whoever takes over from an
	// attempt that died cannot book a second time: the default, idem.Takeover,
	// is right.
	store, err := idem.New(b.backend(), &idem.Options{Scope: scope, Lease: lease, Observe: observe})
	if err != nil {
		return nil, err
	}
	s.store = store

	options := idemhttp.Options{Scope: customerOf, Required: true, Ending: ending, Policy: "/idempotency", Log: log}
	api := idemhttp.Middleware(store, &options)
	formOptions := options
	formOptions.Wait = formWait
	form := idemhttp.Middleware(store, &formOptions)

	mux := http.NewServeMux()
	mux.Handle("POST /api/orders", withCustomer(losesReplies(s.watched("fetch", api(http.HandlerFunc(s.orderAPI))))))
	mux.Handle("POST /orders", withCustomer(keyFromForm(s.watched("form", problemPages(form(http.HandlerFunc(s.orderForm)))))))
	mux.Handle("GET /api/orders", withCustomer(http.HandlerFunc(s.list)))
	mux.Handle("GET /idempotency", idemhttp.PolicyHandler(store, &options))
	s.addPages(mux)
	// Forms of other sites must not order in the name of a customer.
	return secured(http.NewCrossOriginProtection().Handler(mux)), nil
}

// items are what the shop has, with the price of each in cents.
var items = []item{{"beans", "Coffee beans", 1250}, {"filters", "Filter papers", 320}, {"mug", "Mug", 990}}

type item struct {
	ID    string
	Name  string
	Cents int64
}

// maxAmount is how many of an item one order may have.
const maxAmount = 99

// newOrder returns the order that a request asks for, or what is wrong with it.
func newOrder(r *http.Request, id string, amount int) (order, error) {
	for _, it := range items {
		if it.ID != id {
			continue
		}
		if amount < 1 || amount > maxAmount {
			return order{}, fmt.Errorf("the amount is %d; it has to be 1 to %d", amount, maxAmount)
		}
		o := order{Customer: customerOf(r), Item: it.Name, Amount: amount, Cents: int64(amount) * it.Cents, At: time.Now().UTC().Truncate(time.Millisecond)}
		if c, ok := idemhttp.ClaimFrom(r.Context()); ok {
			o.Key = c.Key
		}
		return o, nil
	}
	return order{}, fmt.Errorf("there is no item %q", id)
}

// orderAPI takes an order from a program.
func (s *shop) orderAPI(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Item   string `json:"item"`
		Amount int    `json:"amount"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		refuse(w, http.StatusBadRequest, "The order cannot be read", err.Error())
		return
	}
	o, err := newOrder(r, request.Item, request.Amount)
	if err != nil {
		refuse(w, http.StatusBadRequest, "The order is not complete", err.Error())
		return
	}
	s.place(w, r, o, func(o order) idem.Result {
		body, _ := json.Marshal(o) // strings and numbers: cannot fail
		return idemhttp.NewResult(http.StatusCreated, http.Header{"Content-Type": {"application/json"}}, append(body, '\n'))
	})
}

// place books an order. The answer to it is recorded in the transaction that books
// it, so there is no moment at which one is there without the other.
func (s *shop) place(w http.ResponseWriter, r *http.Request, o order, answerTo func(order) idem.Result) {
	time.Sleep(s.packing) // stands for what takes its time, before the transaction

	// A customer who has hung up has ordered all the same, and asks again.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), bookIn)
	defer cancel()
	var answer idem.Result
	err := s.books.book(ctx, o, func(tx idem.Backend, o order) error {
		answer = answerTo(o)
		return idemhttp.Complete(ctx, tx, answer)
	})
	switch {
	case errors.Is(err, errNotBooked):
		// 503 frees the key: a retry runs.
		s.log.Error("order not booked", "customer", o.Customer, "key", o.Key, "err", err)
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, "The order was not booked", "Send it again, with the same key.")
	case err != nil:
		// 500 leaves it open: a retry takes over, and finds what was committed.
		s.log.Error("the commit of an order failed", "customer", o.Customer, "key", o.Key, "err", err)
		refuse(w, http.StatusInternalServerError, "Whether the order was booked is not known", "Send it again, with the same key: it is not booked twice.")
	default:
		idemhttp.WriteResult(w, answer) // after the commit
	}
}

// ending frees the key of an order that was refused because something is wrong in
// it, so that it can be corrected and sent with the same key. Otherwise the status
// decides.
func ending(_ *http.Request, status int, _ http.Header) idemhttp.Ending {
	if status == http.StatusBadRequest {
		return idemhttp.Release
	}
	return 0
}

// refuse answers with a problem, as package idemhttp does.
func refuse(w http.ResponseWriter, status int, title, detail string) {
	w.Header().Set("Content-Type", problemType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(problem{Status: status, Title: title, Detail: detail}) // a client that is gone asks again
}

// list tells a customer's orders to a program.
func (s *shop) list(w http.ResponseWriter, r *http.Request) {
	sum, err := s.books.summary(r.Context(), customerOf(r))
	if err != nil {
		s.log.Error("orders cannot be read", "err", err)
		refuse(w, http.StatusServiceUnavailable, "The books cannot be read", "Try again.")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(sum)
}

// Who is ordering stands here in a header or a cookie that anybody can set. A real
// shop takes it from its login.
const (
	customerHeader = "X-Shop-User"
	customerCookie = "shop_user"
)

var customers = []string{"ada", "grace", "linus"}

var customerName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// customerOf returns whose keys and orders a request's are.
func customerOf(r *http.Request) string {
	name := r.Header.Get(customerHeader)
	if name == "" {
		if c, err := r.Cookie(customerCookie); err == nil {
			name = c.Value
		}
	}
	if name == "" {
		return customers[0]
	}
	return name
}

// withCustomer refuses requests of nobody.
func withCustomer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := customerOf(r); !customerName.MatchString(name) {
			refuse(w, http.StatusBadRequest, "Who is ordering?", "The name "+strconv.Quote(name)+" is not one of a customer: 1 to 32 of a-z, 0-9 and the hyphen.")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// lostReply is the header that asks the shop to do what it is asked, and to cut the
// connection instead of answering. It exists for the page's button only. It is a
// header because it must not make the request another one than the retry.
const lostReply = "Debug-Lose-Reply"

func losesReplies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(lostReply) == "" {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(&nowhere{header: make(http.Header)}, r)
		panic(http.ErrAbortHandler) // net/http cuts the connection
	})
}

// nowhere takes an answer that nobody will get.
type nowhere struct{ header http.Header }

func (n *nowhere) Header() http.Header         { return n.header }
func (n *nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (n *nowhere) WriteHeader(int)             {}
