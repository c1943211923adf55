package conformancetest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// Every sentence of the contract has a case, and every case of the contract
// quotes a sentence of it.
func TestRulesAreTheContract(t *testing.T) {
	docs := contract(t)
	var all strings.Builder
	quoted := make(map[string]bool)
	for _, g := range groups {
		for _, c := range g.cases {
			quoted[c.rule] = true
		}
	}
	for _, name := range []string{"Backend", "Lister", "Watcher", "Prober", "Batcher"} {
		all.WriteString(words(docs[name]) + "\n")
		rules := bullets(docs[name])
		if len(rules) < 2 {
			t.Fatalf("the documentation of %s has %d rules; it is not read as it should be", name, len(rules))
		}
		for _, rule := range rules {
			if !quoted[rule] {
				t.Errorf("no case proves this rule of %s: %s", name, rule)
			}
		}
	}
	for _, g := range groups {
		for _, c := range g.cases {
			if c.rule == "" {
				t.Errorf("%s/%s has no rule", g.name, c.name)
			}
			if !strings.HasPrefix(g.name, "Store") && !strings.Contains(all.String(), c.rule) {
				t.Errorf("%s/%s quotes what the contract does not say: %s", g.name, c.name, c.rule)
			}
		}
	}
}

// Names are unique, so that -run finds one case and a report means one.
func TestNamesAreUnique(t *testing.T) {
	seen := make(map[string]bool)
	for _, g := range groups {
		for _, c := range g.cases {
			name := g.name + "/" + c.name
			if seen[name] || strings.ContainsAny(name, " _") {
				t.Errorf("the name %q stands twice, or not as go test prints it", name)
			}
			seen[name] = true
		}
	}
}

// contract returns the documentation of the interfaces.
func contract(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../backend.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	docs := make(map[string]string)
	for _, decl := range file.Decls {
		if d, ok := decl.(*ast.GenDecl); ok && d.Tok == token.TYPE {
			docs[d.Specs[0].(*ast.TypeSpec).Name.Name] = d.Doc.Text()
		}
	}
	return docs
}

// bullets returns the items of the lists in a documentation.
func bullets(doc string) (items []string) {
	in := false
	for line := range strings.Lines(doc) {
		line = strings.TrimSuffix(line, "\n")
		item, begins := strings.CutPrefix(line, "  - ")
		switch {
		case begins:
			items = append(items, item)
			in = true
		case in && strings.HasPrefix(line, "    "):
			items[len(items)-1] += " " + strings.TrimSpace(line)
		default:
			in = false
		}
	}
	return items
}

func words(s string) string { return strings.Join(strings.Fields(s), " ") }
