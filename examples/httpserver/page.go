package main

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/idem-go/idem"
)

//go:embed page
var files embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"money": func(cents int64) string { return fmt.Sprintf("€ %d.%02d", cents/100, cents%100) },
	"clock": func(t time.Time) string { return t.Local().Format("15:04:05") },
	"iso":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"short": short,
}).ParseFS(files, "page/*.html"))

// short returns the end of a key, for a place where the whole does not fit. The
// beginning of a key of idem.NewKey is the time, the same for all of a minute.
func short(key string) string {
	runes := []rune(key)
	return string(runes[max(0, len(runes)-8):])
}

func (s *shop) addPages(mux *http.ServeMux) {
	mux.Handle("GET /{$}", withCustomer(http.HandlerFunc(s.page)))
	mux.Handle("GET /state", withCustomer(http.HandlerFunc(s.state)))
	mux.HandleFunc("POST /user", chooseCustomer)
	static, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // the folder is embedded
	}
	for _, name := range []string{"style.css", "shop.js", "icon.svg"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-cache")
			http.ServeFileFS(w, r, static, name)
		})
	}
}

// page shows the form, with a new key in it, and the state.
func (s *shop) page(w http.ResponseWriter, r *http.Request) {
	v := view{Customers: customers, Items: items, MaxAmount: maxAmount, KeyField: keyField, Key: idem.NewKey(), state: s.stateOf(r)}
	if !slices.Contains(customers, v.Customer) {
		v.Customers = append(slices.Clone(customers), v.Customer)
	}
	if n, err := strconv.ParseInt(r.FormValue("ordered"), 10, 64); err == nil && n >= 1 && n <= v.Orders {
		v.Ordered = n
	}
	// Whoever goes back gets the form as it was, with the key that it had: "no-store"
	// would make a new key of it, and a second order of the old form.
	w.Header().Set("Cache-Control", "private, no-cache")
	render(w, http.StatusOK, "page.html", v)
}

// state is the part of the page that changes, for the script.
func (s *shop) state(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	render(w, http.StatusOK, "state.html", s.stateOf(r))
}

// A view is what page.html shows.
type view struct {
	state
	Customers []string
	Items     []item
	MaxAmount int
	KeyField  string
	Key       string
	Ordered   int64 // the order that the form has just made; 0 if none
}

// A state is what state.html shows of a customer.
type state struct {
	summary
	Customer string
	Flights  []flight
	Outcomes []outcome
	Problem  string // why some of it is missing
}

// A flight is a claim that has not ended.
type flight struct {
	Key     string
	Attempt int
	Left    int  // seconds of its lease
	Lapsed  bool // its process is dead or hangs
}

// stateIn bounds how long the state may take to be read.
const stateIn = 3 * time.Second

func (s *shop) stateOf(r *http.Request) state {
	ctx, cancel := context.WithTimeout(r.Context(), stateIn)
	defer cancel()
	st := state{Customer: customerOf(r)}
	var err error
	if st.summary, err = s.books.summary(ctx, st.Customer); err == nil {
		st.Flights, err = s.flights(ctx, st.Customer)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Error("the state cannot be read", "err", err)
	}
	if err != nil {
		st.Problem = "The books cannot be read just now."
	}
	st.Outcomes = s.outcomes.of(st.Customer)
	return st
}

// flights lists the claims of a customer in the storage, those of other processes
// too. It looks at all of the customer's records, which is not for a shop with
// many.
func (s *shop) flights(ctx context.Context, customer string) ([]flight, error) {
	var all []flight
	q := idem.Query{Prefix: idem.ScopePrefix(scope, customer), Status: idem.InProgress, Limit: 20}
	for {
		entries, next, err := s.books.backend().List(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			_, key := idem.SplitKey(e.Key)
			all = append(all, flight{key, e.Record.Attempt, int(e.Record.LeaseLeft().Seconds() + 0.5), e.Record.Lapsed()})
		}
		if next == "" || len(all) >= q.Limit {
			return all, nil
		}
		q.Cursor = next
	}
}

// chooseCustomer sets the cookie that stands for a login.
func chooseCustomer(w http.ResponseWriter, r *http.Request) {
	name := r.PostFormValue("user")
	if !customerName.MatchString(name) {
		writeProblemPage(w, problem{Status: http.StatusBadRequest, Title: "Who is ordering?", Detail: "There is no customer of that name."})
		return
	}
	http.SetCookie(w, &http.Cookie{Name: customerCookie, Value: name, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode})
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

func writeProblemPage(w http.ResponseWriter, p problem) {
	w.Header().Del("Content-Length")
	w.Header().Set("Cache-Control", "no-store")
	render(w, p.Status, "problem.html", p)
}

func render(w http.ResponseWriter, status int, name string, data any) {
	var page bytes.Buffer
	if err := templates.ExecuteTemplate(&page, name, data); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(page.Bytes())
}

// secured lets pages load nothing but what the shop itself serves.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})
}
