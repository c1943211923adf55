package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemhttp"
)

// A plain HTML form cannot send a header. It has the key in a hidden field, which is
// made when the form is rendered: pressing the button twice, reloading the answer,
// or going back and pressing again sends the same key.
const keyField = "idempotency_key"

// maxForm is the largest form in bytes.
const maxForm = 4 << 10

// keyFromForm goes around the middleware and copies the hidden field into the
// header that the middleware reads.
func keyFromForm(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxForm))
		if err != nil {
			writeProblemPage(w, problem{Status: http.StatusBadRequest, Title: "The form could not be read", Detail: "Nothing was ordered. Send it again."})
			return
		}
		// A form without a key, or with one that no header can carry, is refused
		// by the middleware.
		r.Header.Del(idemhttp.KeyHeader)
		if form, err := url.ParseQuery(string(body)); err == nil {
			if key, err := idemhttp.FormatKey(form.Get(keyField)); err == nil {
				r.Header.Set(idemhttp.KeyHeader, key)
			}
		}
		r.Body = io.NopCloser(bytes.NewReader(body)) // for the fingerprint and the handler
		next.ServeHTTP(w, r)
	})
}

// orderForm takes an order from the form and sends the browser on to the page, so
// that reloading it does not send the form again.
func (s *shop) orderForm(w http.ResponseWriter, r *http.Request) {
	amount, err := strconv.Atoi(r.PostFormValue("amount"))
	if err != nil {
		refuse(w, http.StatusBadRequest, "The order is not complete", "The amount is not a number.")
		return
	}
	o, err := newOrder(r, r.PostFormValue("item"), amount)
	if err != nil {
		refuse(w, http.StatusBadRequest, "The order is not complete", err.Error())
		return
	}
	s.place(w, r, o, func(o order) idem.Result {
		return idemhttp.NewResult(http.StatusSeeOther, http.Header{"Location": {"/?ordered=" + strconv.FormatInt(o.Number, 10)}}, nil)
	})
}

// A problem is an answer for programs: package idemhttp and this shop refuse
// requests with it (RFC 9457).
type problem struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	Reason string `json:"reason,omitempty"` // of those of package idemhttp
}

// forPeople says what the problems of package idemhttp that a form can have mean to
// who has sent it.
var forPeople = map[string]problem{
	"missing-key": {Title: "This form is not complete", Detail: "Nothing was ordered."},
	"key-reused":  {Title: "This form was sent before", Detail: "The order that was sent with it first stands, and nothing else was ordered."},
	"in-progress": {Title: "The order is still being packed", Detail: "Reload this page to hear of it. It is not ordered twice."},
	"unavailable": {Title: "The books cannot be reached", Detail: "Nothing was ordered. Reload this page to send the order again."},
}

const problemType = "application/problem+json"

// problemPages goes around the middleware and makes pages of its problems: who has
// sent a form is a person.
func problemPages(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := &problemWriter{ResponseWriter: w}
		next.ServeHTTP(p, r)
		if p.caught {
			var what problem
			if err := json.Unmarshal(p.body.Bytes(), &what); err != nil {
				what = problem{Status: http.StatusInternalServerError, Title: "Something went wrong", Detail: "Reload this page to send the order again. It is not ordered twice."}
			}
			if said, ok := forPeople[what.Reason]; ok {
				what.Title, what.Detail = said.Title, said.Detail
			}
			writeProblemPage(w, what)
		}
	})
}

// A problemWriter keeps back answers that are problems.
type problemWriter struct {
	http.ResponseWriter
	caught bool
	body   bytes.Buffer
}

func (p *problemWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *problemWriter) WriteHeader(status int) {
	if p.caught = p.Header().Get("Content-Type") == problemType; !p.caught {
		p.ResponseWriter.WriteHeader(status)
	}
}

func (p *problemWriter) Write(b []byte) (int, error) {
	if p.caught {
		return p.body.Write(b)
	}
	return p.ResponseWriter.Write(b)
}
