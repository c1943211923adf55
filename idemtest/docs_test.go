package idemtest_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// OP-2: what people copy from makes one key for an operation, not one for each
// attempt: no key is made within a loop.
func TestOP2_DocumentationMakesKeysOutsideOfLoops(t *testing.T) {
	sources, keys := 0, 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		markdown := strings.HasSuffix(path, ".md")
		example := strings.HasSuffix(path, ".go") &&
			(strings.HasPrefix(filepath.Base(path), "example") || strings.HasPrefix(path, filepath.Join("..", "examples")))
		if !markdown && !example {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		snippets := []string{string(text)}
		if markdown {
			snippets = fenced(t, string(text))
			for _, line := range strings.Split(string(text), "\n") {
				if keyOfAttempt.MatchString(line) {
					t.Errorf("%s shows a key that differs in each attempt: %s", path, line)
				}
			}
		}
		for _, code := range snippets {
			sources++
			made, looped := keysIn(t, path, code)
			keys += made
			for _, line := range looped {
				t.Errorf("%s makes a key within a loop: %s", path, line)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if sources < 5 || keys < 1 {
		t.Errorf("only %d sources were looked at, in which %d keys are made", sources, keys)
	}
}

// The test finds what it looks for.
func TestOP2_KeysWithinLoopsAreFound(t *testing.T) {
	for code, want := range map[string]int{
		"key := idem.NewKey()\nfor range 3 { send(key) }":                                                    0,
		"for range 3 { send(idem.NewKey()) }":                                                                1,
		"for { key := NewKey(); if send(key) == nil { break } }":                                             1,
		"retry(func() error { for i := 0; i < 3; i++ { go func() { send(idem.NewKey()) }() }; return nil })": 1,
		"for key := idem.NewKey(); ; { send(key) }":                                                          0,
		"package p\nfunc f() { for _, x := range xs { send(x, idem.NewKey()) } }":                            1,
	} {
		if _, looped := keysIn(t, "snippet", code); len(looped) != want {
			t.Errorf("%d keys within loops, want %d, in\n%s", len(looped), want, code)
		}
	}
	for line, want := range map[string]bool{
		"idem run --key order-4711 -- ./charge":        false,
		"idem run --key \"report $(date +%F)\" -- ./r": false,
		"idem run --key $(uuidgen) -- ./charge":        true,
		"idem run --key=\"$RANDOM\" -- ./charge":       true,
		"-H \"Idempotency-Key: $(uuidgen)\"":           true,
	} {
		if keyOfAttempt.MatchString(line) != want {
			t.Errorf("a key that differs in each attempt: %v, want %v: %s", !want, want, line)
		}
	}
}

// Who pastes the first example of the package into a file has a test that passes.
func TestPackageExample(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "idemtest.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		t.Fatal(err)
	}
	code := `package pasted

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemtest"
)

`
	for line := range strings.Lines(file.Doc.Text()) {
		if strings.HasPrefix(line, "\t") {
			code += strings.TrimPrefix(line, "\t")
		}
	}
	pasted := filepath.Join(t.TempDir(), "pasted_test.go")
	if err := os.WriteFile(pasted, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "test", "-v", pasted).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestChargingIsIdempotent/RecordLost")) {
		t.Errorf("%v\n%s\n%s", err, out, code)
	}
}

// keyOfAttempt is a command line that makes another key each time it is run.
var keyOfAttempt = regexp.MustCompile(`(--key|Idempotency-Key)\S*\s*\S*(\$\(uuidgen|\$RANDOM|\$\$|date \+%s)`)

// fenced returns the Go code of a Markdown text.
func fenced(t *testing.T, text string) (code []string) {
	t.Helper()
	parts := strings.Split(text, "```")
	if len(parts)%2 == 0 {
		t.Error("a fence is not closed")
	}
	for i := 1; i < len(parts); i += 2 {
		if body, ok := strings.CutPrefix(parts[i], "go\n"); ok {
			code = append(code, body)
		}
	}
	return code
}

// keysIn counts the calls of NewKey in a file or a sequence of statements, and
// returns the lines of those that are run anew in each round of a loop.
func keysIn(t *testing.T, name, code string) (made int, looped []string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, code, 0)
	if err != nil {
		code = "package p\nfunc _() {\n" + code + "\n}"
		if file, err = parser.ParseFile(files, name, code, 0); err != nil {
			t.Errorf("%s: %v in\n%s", name, err, code)
			return 0, nil
		}
	}
	lines := bytes.Split([]byte(code), []byte("\n"))
	loop := func(body ast.Node) {
		ast.Inspect(body, func(n ast.Node) bool {
			if isNewKey(n) {
				looped = append(looped, strings.TrimSpace(string(lines[files.Position(n.Pos()).Line-1])))
			}
			return true
		})
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForStmt:
			loop(n.Body)
			return false
		case *ast.RangeStmt:
			loop(n.Body)
			return false
		}
		if isNewKey(n) {
			made++
		}
		return true
	})
	return made + len(looped), looped
}

func isNewKey(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	switch fun := call.Fun.(type) {
	case *ast.SelectorExpr:
		return fun.Sel.Name == "NewKey"
	case *ast.Ident:
		return fun.Name == "NewKey"
	}
	return false
}
