package postgres_test

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/idem-go/idem/internal/testpg"
)

// The examples print what the comments at their ends say. They need a server, so
// it is not left to go test to run them.
func TestExamples(t *testing.T) {
	srv := testpg.New(t)
	t.Setenv("DATABASE_URL", srv.URL())
	testpg.Exec(t, srv.URL(), `CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL)`, `INSERT INTO accounts VALUES (1, 100), (2, 100)`)
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, example := range []struct {
		name string
		run  func()
	}{
		{"ExampleBackend_Do", ExampleBackend_Do},
		{"ExampleBackend_Do_serializable", ExampleBackend_Do_serializable},
		{"ExampleBackend_WithTx", ExampleBackend_WithTx},
		{"ExampleBackend_DoSQL", ExampleBackend_DoSQL},
	} {
		_, text, ok := strings.Cut(string(source), "func "+example.name+"() {\n")
		text, _, end := strings.Cut(text, "\n}\n")
		if !ok || !end {
			t.Fatalf("%s is not in the file", example.name)
		}
		var want []string
		lines := strings.Split(text, "\n")
		for i := len(lines) - 1; strings.HasPrefix(lines[i], "\t// "); i-- {
			want = append([]string{strings.TrimPrefix(lines[i], "\t// ")}, want...)
		}
		if got := printed(t, example.run); got != strings.Join(want, "\n")+"\n" {
			t.Errorf("%s prints\n%swant\n%s", example.name, got, strings.Join(want, "\n"))
		}
	}
}

// printed returns what fn prints.
func printed(t *testing.T, fn func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = stdout }()
	fn()
	w.Close()
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
