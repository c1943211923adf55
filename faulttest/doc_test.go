package faulttest

import (
	"fmt"
	"os"
	"strings"
	"sync"
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
