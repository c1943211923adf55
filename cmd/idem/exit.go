package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/idem-go/idem"
)

// The exit codes of idem itself. They are in the range of <sysexits.h>, with
// its meanings where it has one, because commands seldom use it. A command may
// exit with the same number: what idem says is on standard error and begins
// with "idem:".
const (
	exitDeclined = 1 // what was to be confirmed was not; nothing was changed
	exitFindings = 2 // doctor: a check FAILs; erase: something was left alone; export: a record is not in the new store as in the old one

	exitUsage       = 64 // EX_USAGE: bad flags, key or options; nothing was run
	exitMismatch    = 65 // EX_DATAERR: the key belongs to another command or other input, or to another attempt than the one to be decided about; nothing was run
	exitAbsent      = 66 // EX_NOINPUT: there is no such record, or no store (all but run)
	exitUnavailable = 69 // EX_UNAVAILABLE: the store cannot be used; nothing was run
	exitNotRecorded = 70 // EX_SOFTWARE: the command was run, but what became of it is not recorded
	exitOutput      = 74 // EX_IOERR: the output could not be written; the result is recorded and can be replayed
	exitInProgress  = 75 // EX_TEMPFAIL: another attempt is running (--no-wait); nothing was run
	exitUnresolved  = 76 // EX_PROTOCOL: an earlier attempt has no known outcome (--on-lapse hold); nothing was run
	exitDamaged     = 78 // EX_CONFIG: the store is damaged, lost, not set up or not a store; nothing was run

	// As every shell reports them.
	exitCannotRun = 126 // the command cannot be executed; the key is free
	exitNotFound  = 127 // the command was not found; the key is free
	exitSignal    = 128 // plus n: the command, or idem before it ran one, was ended by signal n
)

// exitTable is the part of the constants above that a user has to know.
const exitTable = `Exit codes:
  With run, the command's own code, also when it is replayed. Besides, with a
  message on standard error that begins with "idem:"
     1  resolve, forget, erase, migrate --init: not confirmed; nothing changed
     2  doctor: a check FAILs; erase: something was left alone; export: a record
        is not in the new store as in the old one
    64  bad flags, key, options or URL; no terminal to confirm on, and no --yes
    65  the key belongs to another command or other input; resolve, forget: the
        attempt is not the present one, or is decided already
    66  all but run: no such record, or no store
    69  the store cannot be used: locked, full, no permission; its server does
        not answer or lets nobody in
    70  the command was run, but its outcome could not be recorded
    74  the output could not be written; it is recorded and can be replayed
    75  another attempt is running (run --no-wait, resolve, forget)
    76  an earlier attempt has no known outcome (run --on-lapse hold)
    78  the store is damaged, lost, not set up or not a store of idem
   126  the command cannot be executed; the key stays free
   127  the command was not found; the key stays free
   128+n  ended by signal n (130 after Ctrl-C)
  With 64 to 69 and 75 to 78 nothing was run.
`

// readingHelp is what a user of show and list has to know of it.
const readingHelp = `Exit codes: 0, or 64 for bad flags, 66 if there is no such record or no store,
69 if the store cannot be used, 74 if the output cannot be written, 78 if the
store is damaged. The messages are on standard error and begin with "idem:".
`

// A failure is how a subcommand ends other than with 0: the exit code, and what
// to say about it, if anything.
type failure struct {
	code int
	fact string // what was asked and what is true
	hint string // what to do next
}

func (f *failure) Error() string {
	if f.hint == "" {
		return f.fact
	}
	return f.fact + "\n" + f.hint
}

func fail(code int, hint, fact string, args ...any) error {
	return &failure{code, fmt.Sprintf(fact, args...), hint}
}

// passOn is how a subcommand ends with the code of the command it ran.
func passOn(code int) error {
	if code == 0 {
		return nil
	}
	return &failure{code: code}
}

// badUsage is the failure of a call that cannot be meant.
func badUsage(verb, fact string, args ...any) error {
	return fail(exitUsage, fmt.Sprintf("see: idem %s --help", verb), verb+": "+fact, args...)
}

// refused explains why nothing was done for the key of t: an error that a Store
// or the opening of its store has returned.
func (t target) refused(verb string, err error) error {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	var record idem.Record
	cause := err
	if e, ok := errors.AsType[*idem.Error](err); ok {
		record, cause = e.Record, e.Err
	}
	switch {
	case errors.Is(err, idem.ErrKey), errors.Is(err, idem.ErrOptions):
		return badUsage(verb, "%v", cause)
	case errors.Is(err, idem.ErrMismatch):
		return fail(exitMismatch,
			"use another key for another operation; to see what is stored: "+t.commandLine("show"),
			"%v belongs to another command or other input: attempt %d %s; nothing was run", t, record.Attempt, state(record))
	case errors.Is(err, idem.ErrInProgress):
		return fail(exitInProgress,
			"run the same command again later, or without --no-wait to wait for the result",
			"%v: attempt %d is running, with %v of its lease left; nothing was run", t, record.Attempt, brief(record.LeaseLeft()))
	case errors.Is(err, idem.ErrUnresolved):
		attempt := strconv.Itoa(record.Attempt)
		return fail(exitUnresolved,
			"find out whether it had its effect; what is stored: "+t.commandLine("show")+
				"\nif it had: "+t.commandLine("resolve", "--attempt", attempt, "--code", "0")+
				"\nif it had not, so that it can run again: "+t.commandLine("forget", "--attempt", attempt),
			"%v: attempt %d %s, and is held; nothing was run", t, record.Attempt, state(record))
	}
	return t.unusable(verb, err, cause)
}

func trimmed(err error) string {
	return strings.TrimPrefix(err.Error(), "idem: ")
}
