// Command idem runs commands once per key, whatever starts them again: cron, a
// retry loop, a queue, a person who is not sure whether the first time worked.
//
//	idem run --key invoice-4711 -- ./charge.sh 4711
//
// runs the command; every later call with that key prints what the first one
// printed, to the same streams, and exits with the same code, without running
// anything. "idem show" and "idem list" tell what is stored, "idem resolve" and
// "idem forget" decide about attempts whose outcome is unknown, "idem migrate",
// "idem doctor" and others look after the store.
//
// The key names the operation (the invoice), not the attempt, and is made
// before the first attempt: a key with the time of the call in it protects from
// nothing. The command and its arguments belong to the key, and so does its
// standard input with --stdin; the working directory and the environment do
// not.
//
// # Outcomes
//
// A command that exits with one of --ok-codes is done. One that exits with
// another code, or is ended by a signal, may have had its effect or a part of
// it: idem passes its code on, and the next call runs the command again and
// tells it so in IDEM_TAKEOVER, or, with --on-lapse hold, refuses to. A command
// that cannot be started has had no effect; its key stays free.
//
// The command finds in its environment IDEM_KEY, IDEM_SCOPE (if it has one),
// IDEM_ATTEMPT (1, 2, ...), IDEM_TAKEOVER (1 if an earlier attempt ended
// without a known outcome, else 0) and IDEM_FENCE, a number that is larger for
// every attempt, for systems that can refuse a late one.
//
// SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the command, except for
// those that the keyboard has sent to it already. If idem itself is killed, on
// Linux the command is killed with it (SIGKILL, and not what the command has
// started itself), and the key is free for the next call, or held, when the
// lease is over. If idem is stopped for longer than the lease, another call may
// have taken over when it goes on; it then ends the command (SIGTERM, and after
// 10 s SIGKILL).
//
// The command's output goes through pipes, so it does not see a terminal, and a
// reader that goes away does not end it. When it has ended, idem waits until
// background processes have closed its output too, or have printed nothing for
// 5 s.
//
// Of a command's output 1 MiB is kept, with a few bytes for each change between
// the two streams. A command that prints more is done all the same: its output
// is shown in full by the first call, and left out by the others, which say so.
//
// # Stores
//
// The records are in a store, which --store or the environment variable IDEM_STORE
// names: a bolt file, by its path or as bolt:///PATH, PostgreSQL, as
// postgres://HOST/DATABASE, or Redis, as redis://HOST:PORT/DATABASE. It can be one
// that services use as well. The parameters of a URL are those of pgx and
// go-redis, and besides them
//
//	idem_schema, idem_table   PostgreSQL: the name of the table
//	idem_prefix               Redis: what the names of all keys begin with
//	idem_allow_eviction=true  Redis: run with a server that evicts records
//	addr=HOST:PORT            Redis Cluster: another node, may come several times
//
// In PostgreSQL "idem migrate" creates the table; files, and what there is in
// Redis, are made by the first run. No message has the password of a URL in it,
// but the system shows the arguments of a process to others: passwords are better
// kept in IDEM_STORE, and for PostgreSQL in ~/.pgpass or PGPASSWORD.
//
// # Unknown outcomes
//
// An attempt that was killed, failed or lost its machine has no known outcome.
// Under --on-lapse hold its key stays held until a person, who has found out what
// has happened, gives
//
//	idem resolve invoice-4711 --attempt 1 --code 0 --body-file receipt.txt
//	idem forget invoice-4711 --attempt 1
//
// The first records the outcome: later calls of idem run print the body to standard
// output and exit with the code, and a program that uses the library gets the body
// as it is. The second says that nothing has happened. Both name the attempt, and
// change nothing if another one is the present one by then.
//
// # Looking after a store
//
// "idem stats" counts what is stored, "idem doctor" says what is wrong with the store
// and what to do, and "idem sweep" deletes what has expired.
//
// "idem erase --scope tenant-7" takes the results out of a tenant's records, whose
// bodies may have personal data in them. The records stay, so that nothing runs
// twice, and expire when they would have expired; keys stay with them. What a storage
// keeps of its past is not reached: free pages of a file, dead rows, logs, backups.
//
// "idem export --to postgres://localhost/shop" copies all records to another store,
// of whatever kind, with what they guarantee: results, attempts, fences, and what is
// left of leases and retentions. Only the age of a record begins anew. Stop the
// writers first. In the end every record is compared.
//
// # Exit codes
//
//	  1      resolve, forget, erase, migrate --init: not confirmed; nothing was changed
//	  2      doctor: a check FAILs; erase: something was left alone; export: a record
//	         is not in the new store as in the old one
//	 64      bad flags, key, options or URL, or nobody to confirm; nothing was run
//	 65      the key belongs to another command or other input, or (resolve, forget)
//	         to another attempt, or is decided already; nothing was run
//	 66      all but run: no such record, or no store
//	 69      the store cannot be used: locked, full, no permission, no answer of its
//	         server; nothing was run
//	 70      the command was run, but its outcome could not be recorded
//	 74      the output could not be written; it is recorded and can be replayed
//	 75      another attempt is running (run --no-wait, resolve, forget); nothing was run
//	 76      an earlier attempt has no known outcome (run --on-lapse hold); nothing was run
//	 78      the store is damaged, lost, not set up or not a store; nothing was run
//	126      the command cannot be executed; the key stays free
//	127      the command was not found; the key stays free
//	128+n    the command, or idem before it had run it, was ended by signal n
//	others   the command's own
//
// The values from 64 to 78 are those of <sysexits.h>, which commands seldom
// use. One that does is told apart by standard error: every message of idem
// begins with "idem:".
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/alecthomas/kong"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

// A session is the surroundings of one call of idem.
type session struct {
	ctx            context.Context
	env            []string
	stdin          io.Reader
	stdout, stderr io.Writer
}

type grammar struct {
	Run        runCommand        `cmd:"" help:"Run a command once per key; later calls replay its output."`
	Show       showCommand       `cmd:"" help:"Show what is stored under a key."`
	List       listCommand       `cmd:"" help:"List what is stored."`
	Stats      statsCommand      `cmd:"" help:"Count what is stored, by status, scope and age."`
	Doctor     doctorCommand     `cmd:"" help:"Say what is wrong with a store and what to do."`
	Resolve    resolveCommand    `cmd:"" help:"Record the outcome of an attempt that ended without a known one."`
	Forget     forgetCommand     `cmd:"" help:"Free the key of an attempt that did not have its effect."`
	Erase      eraseCommand      `cmd:"" help:"Take the results of a scope, such as a tenant's, out of the store."`
	Export     exportCommand     `cmd:"" help:"Copy the records to another store, with all they guarantee."`
	Sweep      sweepCommand      `cmd:"" help:"Delete expired records."`
	Migrate    migrateCommand    `cmd:"" help:"Prepare a store: create the table in PostgreSQL."`
	Completion completionCommand `cmd:"" help:"Print the completion script of a shell."`
}

// run is the whole program. It returns the exit code.
func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	// Who stops reading our output must not kill us in the middle of an effect;
	// writing fails with EPIPE instead. To be notified, rather than to ignore
	// the signal, leaves it alone in the command.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	s := &session{ctx, env, stdin, stdout, stderr}
	err := s.dispatch(args)
	if err == nil {
		return 0
	}
	f, ok := errors.AsType[*failure](err)
	if !ok {
		f = &failure{code: exitUsage, fact: trimmed(err)}
	}
	for line := range strings.Lines(f.Error()) {
		s.say("%s", strings.TrimSuffix(line, "\n"))
	}
	return f.code
}

// say prints a message of idem itself.
func (s *session) say(format string, args ...any) {
	fmt.Fprintf(s.stderr, "idem: "+format+"\n", args...)
}

// tell prints what a subcommand has found or done.
func (s *session) tell(format string, args ...any) error {
	_, err := fmt.Fprintf(s.stdout, format+"\n", args...)
	return s.wrote(err)
}

func (s *session) getenv(name string) string {
	for i := len(s.env) - 1; i >= 0; i-- { // the last one counts, as in os/exec
		if value, ok := strings.CutPrefix(s.env[i], name+"="); ok {
			return value
		}
	}
	return ""
}

// dispatch parses the command line and runs the subcommand.
func (s *session) dispatch(args []string) error {
	var g grammar
	// Whatever comes after the first "--" belongs to the command that is to be
	// run, and is none of the parser's business.
	if len(args) > 0 && args[0] == "run" {
		for i, a := range args {
			if a == "--" {
				args, g.Run.command = args[:i], args[i+1:]
				break
			}
		}
	}
	// The parser would put U+FFFD in the place of other bytes, and so take two
	// keys for one.
	for _, a := range args {
		if !utf8.ValidString(a) {
			return fail(exitUsage, "see: idem --help", "the argument %q is not valid UTF-8", a)
		}
	}
	var help bytes.Buffer
	parser, err := kong.New(&g,
		kong.Name("idem"),
		kong.Description("Run a command once per key, and give every retry the same answer."),
		kong.Writers(&help, s.stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoAppSummary: true, WrapUpperBound: 80}),
		kong.Help(printHelp),
		kong.Exit(func(int) { panic(helpPrinted{}) }),
	)
	if err != nil {
		return err
	}
	parsed, err := parse(parser, args)
	switch {
	case err != nil:
		return misread(parsed, err)
	case parsed == nil:
		_, err := s.stdout.Write(help.Bytes())
		return s.wrote(err)
	}
	return parsed.Run(s)
}

// misread is the failure of a command line that cannot be parsed.
func misread(parsed *kong.Context, err error) error {
	verb, prefix := "", ""
	if parsed != nil && parsed.Selected() != nil {
		verb = parsed.Selected().Name + " "
		prefix = parsed.Selected().Name + ": "
	}
	fact := prefix + err.Error()
	if verb == "run " && strings.Contains(fact, "unexpected argument") {
		fact += "; the command comes after --, as in " + runUsage
	}
	return fail(exitUsage, fmt.Sprintf("see: idem %s--help", verb), "%s", fact)
}

// A helpPrinted is thrown where the parser would end the process.
type helpPrinted struct{}

// parse returns nil and no error if the call was for help, which the parser has
// written.
func parse(parser *kong.Kong, args []string) (parsed *kong.Context, err error) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(helpPrinted); !ok {
				panic(r)
			}
			parsed, err = nil, nil
		}
	}()
	parsed, err = parser.Parse(args)
	if e, ok := errors.AsType[*kong.ParseError](err); ok {
		parsed = e.Context
	}
	return parsed, err
}
