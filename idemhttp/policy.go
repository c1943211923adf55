package idemhttp

import (
	"bytes"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/idem-go/idem"
)

// PolicyHandler serves the page that tells the authors of clients what to send and
// what to expect of a [Middleware] with the same store and options: the format of
// keys, how long answers are kept, which are kept, and what each problem means.
// Give its URL to Options.Policy. It panics where Middleware does.
func PolicyHandler(store *idem.Store, opts *Options) http.Handler {
	m, err := newMiddleware(store, opts)
	if err != nil {
		panic("idemhttp: policy: " + err.Error())
	}
	page := m.policy()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the policy can be read", http.StatusMethodNotAllowed)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Language", "en")
		h.Set("Cache-Control", "max-age=3600")
		h.Set("Content-Length", strconv.Itoa(len(page)))
		_, _ = w.Write(page)
	})
}

// policy renders the page once: it does not depend on the request.
func (m *middleware) policy() []byte {
	o := m.store.Options()
	var page bytes.Buffer
	err := policyPage.Execute(&page, struct {
		Methods   string
		Required  bool
		MaxKey    int
		MaxBody   int64
		MaxResult int
		Retention string
		Hold      bool
		Own       bool
		Endings   []statusEnding
		Headers   string
		Problems  []policyProblem
	}{
		Methods:   strings.Join(m.opts.Methods, " and "),
		Required:  m.opts.Required,
		MaxKey:    idem.MaxKey,
		MaxBody:   m.opts.MaxBody,
		MaxResult: o.MaxResult,
		Retention: inWords(o.Retention),
		Hold:      o.OnLapse == idem.Hold,
		Own:       m.opts.Ending != nil,
		Endings:   statusEndings(),
		Headers:   strings.Join(m.opts.Headers, ", "),
		Problems:  policyProblems(),
	})
	if err != nil {
		panic("idemhttp: policy: " + err.Error()) // the template and the data are this file's
	}
	return page.Bytes()
}

// A statusEnding is a line of the table of answers.
type statusEnding struct{ Statuses, Becomes string }

// statusEndings groups all statuses by what DefaultEnding makes of them.
func statusEndings() []statusEnding {
	exceptions := map[Ending][]string{}
	for status := 200; status < 600; status++ {
		if e := DefaultEnding(status); e == Release {
			exceptions[e] = append(exceptions[e], strconv.Itoa(status))
		}
	}
	return []statusEnding{
		{"2xx, 3xx, 4xx, except those below", "kept: a retry gets the same answer"},
		{strings.Join(exceptions[Release], ", "), "not kept, nothing was done: a retry is processed"},
		{"other 5xx", "not kept, the outcome is unknown: see below"},
	}
}

// A policyProblem is what the page says of a problem.
type policyProblem struct {
	Reason, Title, Detail string
	Status                int
}

func policyProblems() []policyProblem {
	var all []policyProblem
	for _, p := range problems {
		all = append(all, policyProblem{p.reason, p.title, p.detail, p.status})
	}
	return all
}

// inWords returns a duration as people say it.
func inWords(d time.Duration) string {
	days := d / (24 * time.Hour)
	switch {
	case days >= 2 && d%(24*time.Hour) == 0:
		return fmt.Sprintf("%d days", days)
	case d%time.Hour == 0:
		return fmt.Sprintf("%d hours", d/time.Hour)
	}
	return d.String()
}

var policyPage = template.Must(template.New("policy").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Idempotency-Key</title>
</head>
<body>
<h1>Idempotency-Key</h1>
<p>A request whose answer is lost can be sent again without doing the operation twice, if both requests have the
same Idempotency-Key. The second one gets the answer of the first.</p>

<h2 id="key">The key</h2>
<p>Send it with {{.Methods}}{{if .Required}}, where it is required{{else}}; without it, a retry is another operation{{end}}:</p>
<pre>Idempotency-Key: "8e03978e-40d5-43e8-bc93-6894a57f9324"</pre>
<ul>
<li>A string in double quotes (RFC 8941): 1 to {{.MaxKey}} visible ASCII characters and spaces, with a backslash before
quotation marks and backslashes. The quotes can be left out if there are no spaces, commas, semicolons, quotation marks and backslashes.</li>
<li>One header line. Parameters are ignored.</li>
<li>Make a key for each operation, such as a random UUID, before the first request; keep it, and send it with every retry.
Do not use it for anything else, and do not let it be guessed.</li>
<li>A retry is the same request: method, path, query and body. The body has at most {{.MaxBody}} bytes.</li>
</ul>

<h2 id="retention">How long</h2>
<p>An answer is kept for {{.Retention}}, counted from when it was given first. A request that comes later is a new operation.</p>

<h2 id="answers">Which answers are kept</h2>
<table>
<tr><th>Status</th><th>The answer is</th></tr>
{{range .Endings}}<tr><td>{{.Statuses}}</td><td>{{.Becomes}}</td></tr>
{{end}}</table>
{{if .Own}}<p>Single operations may differ; their documentation says so.</p>
{{end}}<p>{{if .Hold}}An operation whose outcome is unknown is not repeated: retries are answered with 409 until the outcome has been found out.
{{else}}An operation whose outcome is unknown is processed again by a retry with the same key.
{{end}}</p>
<p>A kept answer that is given again has <code>Idempotent-Replayed: true</code>, the status, the body, and of the headers: {{.Headers}}.
Streams and bodies of more than {{.MaxResult}} bytes are not kept: a retry gets the status and those headers, and
<code>Idempotent-Body-Omitted: true</code>; the operation is done.</p>

<h2 id="problems">Problems</h2>
<p>Their bodies are application/problem+json (RFC 9457), with the name as <code>reason</code> and at the end of <code>type</code>.</p>
<dl>
{{range .Problems}}<dt id="{{.Reason}}">{{.Status}} {{.Reason}}: {{.Title}}</dt>
<dd>{{.Detail}}</dd>
{{end}}</dl>
</body>
</html>
`))
