package faulttest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// The lines of the table of figures that this run has, by their beginning.
var (
	reportMu sync.Mutex
	lines    = make(map[string]string)
)

// report notes down the figures of a campaign.
func report(storage, faults string, f figures, violations int) {
	reportMu.Lock()
	defer reportMu.Unlock()
	begins := fmt.Sprintf("| %s | %s |", storage, faults)
	lines[begins] = fmt.Sprintf("%s %d | %d | %d | %d | %d | %d | %d |", begins, f.Histories, f.Calls, f.Faults, f.Unknown, f.Takeovers, f.Refused, violations)
}

// reportRounds notes down the figures of a test that is no campaign.
func reportRounds(fault, storage string, rounds, violations int) {
	reportMu.Lock()
	defer reportMu.Unlock()
	begins := fmt.Sprintf("| %s | %s |", fault, storage)
	lines[begins] = fmt.Sprintf("%s %d | %d |", begins, rounds, violations)
}

// updateDoc puts the lines of this run into the tables of the document, in the
// place of those that begin like them.
func updateDoc(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	doc := strings.Split(string(text), "\n")
	for begins, line := range lines {
		found := false
		for i := range doc {
			if strings.HasPrefix(doc[i], begins) {
				doc[i], found = line, true
			}
		}
		if !found {
			return fmt.Errorf("%s has no line that begins with %q", path, begins)
		}
	}
	return os.WriteFile(path, []byte(strings.Join(doc, "\n")), 0o644)
}

// The tests that the document names are there.
func TestDocumentNamesTests(t *testing.T) {
	doc, err := os.ReadFile("../docs/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "conformancetest") {
			return err
		}
		text, err := os.ReadFile(path)
		code.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "## Fault by fault")
	table, _, _ = strings.Cut(table, "## ")
	test, story := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`"), regexp.MustCompile("`([A-Z]{2}-[0-9]+[A-Za-z/]*|[A-Z][A-Za-z]+(?:/[A-Za-z]+)?)`")
	named := 0
	for _, name := range test.FindAllStringSubmatch(table, -1) {
		named++
		if !strings.Contains(code.String(), "func "+name[1]) {
			t.Errorf("there is no test %s", name[1])
		}
	}
	for _, name := range story.FindAllStringSubmatch(table, -1) {
		if strings.HasPrefix(name[1], "Err") || strings.HasPrefix(name[1], "Test") || strings.HasPrefix(name[1], "Fuzz") {
			continue
		}
		switch name[1] {
		case "Begin", "Complete", "Do", "Sweep": // calls
			continue
		}
		named++
		if !strings.Contains(code.String(), `name: "`+name[1]) {
			t.Errorf("there is no case %s", name[1])
		}
	}
	if named < 60 {
		t.Errorf("the table names %d tests only", named)
	}
}
