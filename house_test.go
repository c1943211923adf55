package idem_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What idem pulls into a program is the standard library. The same goes for the
// suites that others import.
func TestImportsTheStandardLibraryOnly(t *testing.T) {
	const module = "github.com/idem-go/idem"
	allowed := map[string]string{
		".":                 "",
		"./conformancetest": module,
		"./idemtest":        module,
		"./backend/memory":  module,
		"./janitor":         module,
		"./idemhttp":        module,
	}
	for pkg, own := range allowed {
		out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", pkg).CombinedOutput()
		if err != nil {
			t.Fatalf("go list %s: %v\n%s", pkg, err, out)
		}
		for _, dep := range strings.Fields(string(out)) {
			if dep != module+strings.TrimPrefix(pkg, ".") && dep != own {
				t.Errorf("%s imports %s", pkg, dep)
			}
		}
	}
}

// Every package says what it is for.
func TestEveryPackageHasADocComment(t *testing.T) {
	docs := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != "." || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			return err
		}
		dir := filepath.Dir(path)
		docs[dir] = docs[dir] || describes(file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(docs) < 2 {
		t.Errorf("only %d packages found", len(docs))
	}
	for dir, ok := range docs {
		if !ok {
			t.Errorf("package %s has no doc comment", dir)
		}
	}
}

func describes(f *ast.File) bool {
	doc := f.Doc.Text()
	return strings.HasPrefix(doc, "Package "+f.Name.Name+" ") || f.Name.Name == "main" && len(doc) > 40
}

// Files stay short enough to tell one story.
func TestFilesAreShort(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		b, err := os.ReadFile(path)
		if lines := strings.Count(string(b), "\n"); lines > 500 {
			t.Errorf("%s has %d lines, more than 500", path, lines)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
