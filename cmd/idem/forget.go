package main

import "fmt"

type forgetCommand struct {
	Key string `arg:"" help:"Name of the operation, as given to idem run."`
	where
	Attempt int `required:"" placeholder:"N" help:"Number of the attempt that is decided about, as idem show tells it: --attempt 1."`
	consent
}

const forgetUsage = "idem forget KEY --attempt N [FLAGS]"

const forgetHelp = `For an attempt that ended without a known outcome, when somebody has found out
that the operation was not done. The key is free: the next call runs the
operation again, whatever its command and input.

  idem forget payout-7 --attempt 1

` + decidingHelp

// Run frees the key of an attempt.
func (c *forgetCommand) Run(s *session) error {
	t, err := c.at(c.Key, s.getenv)
	if err != nil {
		return badUsage("forget", "%v", err)
	}
	return decision{
		target: t, consent: c.consent, verb: "forget", attempt: c.Attempt,
		plan: fmt.Sprintf("free the key, as attempt %d did not have its effect", c.Attempt),
		done: fmt.Sprintf("attempt %d is forgotten and the key is free; the next call runs the operation", c.Attempt),
	}.run(s)
}
