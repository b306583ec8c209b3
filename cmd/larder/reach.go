package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/text"
)

// quietLogger returns a logger to standard error for commands that print everything else themselves: of errors only, unless
// --log-level is set in the settings. It sets the level of all loggers of these settings.
func (a *cli) quietLogger() *slog.Logger { return a.settings.NewLogger(a.stderr, slog.LevelError) }

// An opener opens the data folder in this process, for a command that finds no other process that has it open. Closing the
// client of the result closes the folder.
type opener func() (interface{ Client() *app.Client }, error)

// openForReading opens the data folder read-only, for a short command: other commands wait meanwhile. A folder without a store
// is an error. It is an [opener].
func (a *cli) openForReading() (interface{ Client() *app.Client }, error) {
	return app.OpenReader(a.settings, false, a.quietLogger())
}

// openForLongReading opens the data folder read-only, for a command that takes long: meanwhile it serves other commands that
// only read. A folder without a store is an error. It is an [opener].
func (a *cli) openForLongReading() (interface{ Client() *app.Client }, error) {
	return app.OpenReader(a.settings, true, a.quietLogger())
}

// openForWriting returns an opener for commands that change the data folder. o says whether the folder must have a store or is
// created if necessary, and whether the log must be signed, is signed if its key is there, or does not grow.
func (a *cli) openForWriting(o app.WriterOptions) opener {
	return func() (interface{ Client() *app.Client }, error) {
		return app.OpenWriter(a.settings, o, a.quietLogger())
	}
}

// appendingToLog are the options of commands that append to the log. They create a missing data folder, and sign if the log's
// key is there.
var appendingToLog = app.WriterOptions{Signing: app.SignedIfKey}

// withClient calls use with a client of the process that has the data folder open, or, if none has, of the folder opened by
// open in this process. In the former case it prints a warning that given flags in settingsUsed, names of flags, have no
// effect. Then it closes the client, and with it the folder that it has opened. It returns the errors of use and of closing, or
// the one of reaching a process or of open, in which case it does not call use.
func (a *cli) withClient(ctx context.Context, settingsUsed []string, open opener, use func(*app.Client) error) error {
	client, own, err := app.Reach(ctx, a.settings.Data, open)
	if err != nil {
		return err
	}
	if !own {
		a.warnUnused(settingsUsed)
	}
	return errors.Join(use(client), client.Close())
}

// runOperation runs the operation o with request in the process that has the data folder open, or in this one with the folder
// opened by open, and returns the response. settingsUsed are the names of the flags that apply only to the latter; if one of
// them was given in vain, a warning is printed. report, which may be nil, is called with each event.
func runOperation[Request, Event, Answer any](ctx context.Context, a *cli, settingsUsed []string, open opener, o app.Operation[Request, Event, Answer], request Request, report func(Event)) (answer Answer, err error) {
	err = a.withClient(ctx, settingsUsed, open, func(client *app.Client) (err error) {
		answer, err = o.Ask(ctx, client, request, report)
		return err
	})
	return answer, err
}

// runReadOperation runs the operation o, which reports no events, as [runOperation] does. If no process has the data folder
// open, it opens the folder read-only. An operation on waiting rooms returns an error then.
func runReadOperation[Request, Answer any](ctx context.Context, a *cli, settingsUsed []string, o app.Operation[Request, any, Answer], request Request) (Answer, error) {
	return runOperation(ctx, a, settingsUsed, a.openForReading, o, request, nil)
}

// setReadAction has cmd run the operation o, which only reads, with the request that newRequest makes of the arguments, and
// returns cmd. It prints the answer with print or, with the flag --json that it adds, as JSON. settingsUsed are as in
// [runOperation].
func setReadAction[Request, Answer any](a *cli, cmd *cobra.Command, settingsUsed []string, o app.Operation[Request, any, Answer], newRequest func(args []string) (Request, error), print func(Answer) error) *cobra.Command {
	return setResponseAction(a, cmd, func(ctx context.Context, args []string) (none Answer, err error) {
		request, err := newRequest(args)
		if err != nil {
			return none, err
		}
		return runReadOperation(ctx, a, settingsUsed, o, request)
	}, print)
}

// warnUnused prints a warning to standard error about those of the named flags that were given on the command line: they have
// no effect, because the running process has its own settings. If none was given, it prints nothing.
func (a *cli) warnUnused(names []string) {
	var given []string
	for _, name := range names {
		if a.settings.Flags.Lookup(name).Changed {
			given = append(given, "--"+name)
		}
	}
	if given != nil {
		fmt.Fprintf(a.stderr, "larder: a larder process runs on %s and works with its own settings; not used: %s\n",
			a.settings.Data, strings.Join(given, ", "))
	}
}

// warnUnsigned prints a warning to standard error if the process of client cannot sign the log to which the command has
// appended: its key is missing or another one, or the signer has a problem. A log that was never signed and has no key gets
// none, because the process that serves it will create the key. The command does not fail for that, because serving must not
// depend on the keys. An error of asking is ignored.
func (a *cli) warnUnsigned(ctx context.Context, client *app.Client) {
	why, err := app.OpUnsigned.Ask(ctx, client, struct{}{}, nil)
	if err == nil && why != "" {
		fmt.Fprintf(a.stderr, "larder: warning: the log is not signed, so what was done just now cannot be verified, and it is lost if another store is brought: %s\n", text.Plain(why))
	}
}
