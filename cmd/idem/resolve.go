package main

import (
	"fmt"
	"io"
	"os"

	"github.com/idem-go/idem"
)

// maxBody is the largest body that resolve takes, in bytes. It is held in memory.
const maxBody = 64 << 20

type resolveCommand struct {
	Key string `arg:"" help:"Name of the operation, as given to idem run."`
	where
	Attempt  int    `required:"" placeholder:"N" help:"Number of the attempt that is decided about, as idem show tells it: --attempt 1."`
	Code     int    `required:"" placeholder:"CODE" help:"Code of the result: the exit code of a command, the status of an HTTP service: --code 0."`
	BodyFile string `placeholder:"FILE" complete:"file" help:"File with the body of the result, at most 64 MiB: --body-file out.txt. A dash is standard input. By default the body is empty."`
	consent
}

const resolveUsage = "idem resolve KEY --attempt N --code CODE [--body-file FILE] [FLAGS]"

const resolveHelp = `For an attempt that ended without a known outcome, when somebody has found out
that the operation was done. Every later call gets the code and the body: idem
run prints the body to standard output and exits with the code; a program gets
both as they are. The result is kept for as long as the attempt's own would have
been, and for 7 days if the attempt is held.

  idem resolve payout-7 --attempt 1 --code 0 --body-file payout-7.out

` + decidingHelp

// decidingHelp is what a user of resolve and forget has to know of the exit codes.
const decidingHelp = `Asks before it changes anything; without a terminal it needs --yes. If the
attempt is not the present one any more, nothing is changed.

Exit codes: 0, or 1 if it was not confirmed, 64 for bad flags or if there is no
terminal and no --yes, 65 if another attempt is the present one or it is decided
already, 66 if there is no such record or no store, 69 if the store cannot be
used, 75 if the attempt is running, 78 if the store is damaged or not set up.
The messages are on standard error and begin with "idem:".
`

// Run records the outcome of an attempt.
func (c *resolveCommand) Run(s *session) error {
	t, err := c.at(c.Key, s.getenv)
	if err != nil {
		return badUsage("resolve", "%v", err)
	}
	body, err := c.body(s)
	if err != nil {
		return badUsage("resolve", "--body-file: %v", err)
	}
	return decision{
		target: t, consent: c.consent, verb: "resolve", attempt: c.Attempt,
		result: &idem.Result{Code: c.Code, Body: body},
		plan:   fmt.Sprintf("record code %d and %s of output as the outcome of attempt %d", c.Code, size(int64(len(body))), c.Attempt),
		done:   fmt.Sprintf("attempt %d is recorded as completed with code %d and %s of output", c.Attempt, c.Code, size(int64(len(body)))),
	}.run(s)
}

// body returns what the file has.
func (c *resolveCommand) body(s *session) ([]byte, error) {
	in := s.stdin
	switch c.BodyFile {
	case "":
		return nil, nil
	case "-":
		if !c.Yes && !c.DryRun {
			return nil, fmt.Errorf("standard input cannot have both the body and the confirmation; give --yes")
		}
	default:
		f, err := os.Open(c.BodyFile)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	body, err := io.ReadAll(io.LimitReader(in, maxBody+1))
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("%s has more than %s", c.BodyFile, size(maxBody))
	}
	return body, err
}
