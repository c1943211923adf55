package idemhttp

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The documentation lists the headers that are kept, and they are in the form in
// which they are looked for.
func TestKeptHeaders(t *testing.T) {
	source, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(strings.ReplaceAll(string(source), "//", "")), " ")
	listed := regexp.MustCompile(`together with Options.Headers: (.*?)\.`).FindStringSubmatch(text)
	if listed == nil {
		t.Fatal("the documentation has no list")
	}
	var documented []string
	for _, name := range strings.Split(strings.ReplaceAll(listed[1], " and ", ", "), ", ") {
		documented = append(documented, http.CanonicalHeaderKey(name))
	}
	if !slices.Equal(documented, keptHeaders) {
		t.Errorf("documented: %q\nkept: %q", documented, keptHeaders)
	}
	for _, name := range keptHeaders {
		if isNeverKept(name) {
			t.Errorf("%s is kept and never kept", name)
		}
	}
}

// The documentation has every problem, with its status.
func TestDocumentedProblems(t *testing.T) {
	source, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if !regexp.MustCompile(fmt.Sprintf(`(?m)^//\t.* %d +%s\b`, p.status, p.reason)).Match(source) {
			t.Errorf("%d %s is not in the table", p.status, p.reason)
		}
	}
}
