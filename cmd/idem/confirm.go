package main

import (
	"bufio"
	"fmt"
	"strings"
)

// A consent holds the flags of the subcommands that change what a person may have
// to answer for.
type consent struct {
	Yes    bool `short:"y" help:"Do not ask: for scripts, and where there is no terminal."`
	DryRun bool `help:"Say what would be done, and change nothing."`
}

// possible refuses a call that would have to ask and has nobody to ask.
func (c consent) possible(s *session, verb string) error {
	if c.Yes || c.DryRun || isTerminal(s.stdin) && isTerminal(s.stderr) {
		return nil
	}
	return badUsage(verb, "there is no terminal to ask for confirmation; give --yes to do it without, or --dry-run to see what it would do; nothing was changed")
}

// given asks the question, unless the answer is given already. Anything but a yes
// is a no.
func (c consent) given(s *session, question string) error {
	if c.Yes {
		return nil
	}
	fmt.Fprintf(s.stderr, "%s [y/N] ", s.paint(s.stderr, bold, question))
	answer, err := bufio.NewReader(s.stdin).ReadString('\n')
	if err != nil {
		fmt.Fprintln(s.stderr) // the line that was not ended
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return fail(exitDeclined, "", "not confirmed; nothing was changed")
}

// A colour is the number by which terminals know it.
type colour string

const (
	bold   colour = "1"
	red    colour = "31"
	green  colour = "32"
	yellow colour = "33"
)

// coloured reports whether output to w is to have colours: on a terminal, unless
// the user wants none (https://no-color.org).
func (s *session) coloured(w any) bool {
	return isTerminal(w) && s.getenv("NO_COLOR") == "" && s.getenv("TERM") != "dumb"
}

// paint returns text in a colour, if output to w is to have any.
func (s *session) paint(w any, c colour, text string) string {
	if text == "" || !s.coloured(w) {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}
