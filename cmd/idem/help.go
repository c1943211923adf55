package main

import (
	"fmt"
	"io"

	"github.com/alecthomas/kong"
)

// A page is what a subcommand's help has besides its flags.
type page struct{ usage, more string }

// pages are those of the subcommands; the one of idem itself is that of "".
var pages = map[string]page{
	"":           {"idem COMMAND [FLAGS]", mainHelp},
	"run":        {runUsage, runHelp},
	"show":       {showUsage, showHelp},
	"list":       {listUsage, listHelp},
	"stats":      {statsUsage, statsHelp},
	"doctor":     {doctorUsage, doctorHelp},
	"resolve":    {resolveUsage, resolveHelp},
	"forget":     {forgetUsage, forgetHelp},
	"erase":      {eraseUsage, eraseHelp},
	"export":     {exportUsage, exportHelp},
	"sweep":      {sweepUsage, sweepHelp},
	"migrate":    {migrateUsage, migrateHelp},
	"completion": {completionUsage, completionHelp},
}

const mainHelp = `Example:
  idem run --key invoice-4711 -- ./charge.sh 4711

The records are kept in a store, which --store or $IDEM_STORE names:
  /var/lib/idem/jobs.db                 a file, also as bolt:///PATH
  postgres://USER:PASSWORD@HOST/DB      a table of PostgreSQL, made by migrate;
                                        ?idem_schema=NAME&idem_table=NAME
  redis://USER:PASSWORD@HOST:PORT/0     Redis or Valkey; rediss:// with TLS,
                                        unix:///SOCKET; ?idem_prefix=PREFIX;
                                        a cluster: ?addr=HOST:PORT&addr=...
Other parameters are those of pgx and go-redis. A password is better kept out of
the command line: in $IDEM_STORE, or for PostgreSQL in ~/.pgpass or $PGPASSWORD.

` + exitTable

// printHelp puts the page around what the parser prints of the flags.
func printHelp(options kong.HelpOptions, ctx *kong.Context) error {
	p := pages[""]
	if selected := ctx.Selected(); selected != nil {
		p = pages[selected.Name]
	}
	fmt.Fprintf(ctx.Stdout, "Usage: %s\n", p.usage)
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
		return err
	}
	_, err := io.WriteString(ctx.Stdout, "\n"+p.more)
	return err
}
