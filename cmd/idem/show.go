package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/idem-go/idem"
)

type showCommand struct {
	Key string `arg:"" help:"Name of the operation, as given to idem run."`
	where
	JSON bool `name:"json" help:"Print one JSON object: idem show invoice-4711 --json | jq .result.code"`
	Body bool `help:"Print the stored output too, and the checkpoint: idem show invoice-4711 --body"`
}

const showUsage = "idem show KEY [FLAGS]"

const showHelp = `Prints a table on a terminal, else lines of a name, a tab and a value. With
--body each line of the output follows, named stdout, stderr or body, in the
order in which it was printed and with control characters escaped; --json has
the exact bytes.

` + readingHelp

// Run shows what is stored under the key.
func (c *showCommand) Run(s *session) error {
	t, err := c.at(c.Key, s.getenv)
	if err != nil {
		return badUsage("show", "%v", err)
	}
	if err := t.check(nil); err != nil {
		return t.refused("show", err)
	}
	backend, err := t.open(s.ctx, toRead)
	if err != nil {
		return t.refused("show", err)
	}
	defer func() { _ = backend.Close() }()
	store, err := t.on(backend, nil)
	if err != nil {
		return t.refused("show", err)
	}
	r, err := store.Lookup(s.ctx, c.Key)
	if err != nil {
		return t.refused("show", err)
	}
	if r.Status == 0 {
		return fail(exitAbsent, "it was never used, or has expired; see: "+t.listing(),
			"%v: there is no record in %s", t, t.name)
	}
	if c.JSON {
		return s.wrote(printJSON(s.stdout, viewOf(idem.Entry{Key: idem.ScopePrefix(c.Scope...) + c.Key, Record: r}, c.Body)))
	}
	return s.wrote(printPairs(s.stdout, c.pairs(r)))
}

// listing returns the call that lists the records around the key of t.
func (t target) listing() string {
	t.key = ""
	return strings.TrimSuffix(t.commandLine("list"), " ''")
}

// A pair is one line of what show prints.
type pair struct{ name, value string }

func (c *showCommand) pairs(r idem.Record) []pair {
	pairs := []pair{{"key", c.Key}}
	if len(c.Scope) > 0 {
		pairs = append(pairs, pair{"scope", scopeName(c.Scope)})
	}
	pairs = append(pairs,
		pair{"status", r.Status.String()},
		pair{"attempt", strconv.Itoa(r.Attempt)},
		pair{"age", brief(r.Age)},
	)
	if r.Status == idem.InProgress {
		pairs = append(pairs, pair{"lease", lease(r)})
	}
	pairs = append(pairs,
		pair{"expires in", expiry(r)},
		pair{"fence", strconv.FormatInt(r.Fence, 10)},
		pair{"fingerprint", r.Fingerprint.String()},
	)
	if len(r.Checkpoint) > 0 {
		pairs = append(pairs, pair{"checkpoint size", size(int64(len(r.Checkpoint)))})
	}
	if r.Status == idem.Completed {
		pairs = append(pairs, resultPairs(r.Result)...)
	}
	if c.Body {
		pairs = append(pairs, lines("checkpoint", r.Checkpoint)...)
		pairs = append(pairs, bodyPairs(r.Result)...)
	}
	return pairs
}

// resultPairs tells about a result without its body. What idem run keeps in
// Meta is told in its own words.
func resultPairs(r idem.Result) []pair {
	pairs := []pair{{"code", strconv.Itoa(r.Code)}}
	meta := maps.Clone(r.Meta)
	if _, recorded := meta[metaFormat]; recorded {
		for _, from := range []channel{stdout, stderr} {
			name := [channels]string{metaStdout, metaStderr}[from]
			pairs = append(pairs, pair{from.String() + " size", recordedSize(r, name)})
			delete(meta, name)
		}
		delete(meta, metaFormat)
	} else {
		pairs = append(pairs, pair{"body size", size(int64(len(r.Body)))})
	}
	if r.Omitted {
		pairs = append(pairs, pair{"omitted", "the output was too large to be kept, or is erased"})
	}
	for _, name := range slices.Sorted(maps.Keys(meta)) {
		pairs = append(pairs, pair{"meta " + name, meta[name]})
	}
	return pairs
}

// bodyPairs returns the lines of a stored output.
func bodyPairs(r idem.Result) []pair {
	if _, recorded := r.Meta[metaFormat]; !recorded {
		return lines("body", r.Body)
	}
	chunks, err := output(r)
	if err != nil {
		return []pair{{"error", err.Error()}}
	}
	var pairs []pair
	for _, c := range chunks {
		pairs = append(pairs, lines(c.from.String(), c.data)...)
	}
	return pairs
}

// lines returns each line of text as a pair, or all of it in hexadecimal if it
// is no text.
func lines(name string, text []byte) []pair {
	if !utf8.Valid(text) {
		return []pair{{name + " (hex)", hex.EncodeToString(text)}}
	}
	var pairs []pair
	for line := range strings.Lines(string(text)) {
		pairs = append(pairs, pair{name, strings.TrimSuffix(line, "\n")})
	}
	return pairs
}

// printPairs prints a table on a terminal, else tab-separated lines.
func printPairs(w io.Writer, pairs []pair) error {
	const column = 13 // as wide as the longest usual name, and two spaces
	var b strings.Builder
	for _, p := range pairs {
		if width(w) > 0 {
			fmt.Fprintf(&b, "%-*s%s\n", column, printable(p.name)+" ", printable(p.value))
		} else {
			fmt.Fprintf(&b, "%s\t%s\n", printable(p.name), printable(p.value))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
