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

// quietLogger returns a logger of errors only, for commands that print everything else themselves.
func (a *cli) quietLogger() *slog.Logger { return a.settings.NewLogger(a.stderr, slog.LevelError) }

// An opener opens the data folder for a command if no process has it open.
type opener func() (interface{ Client() *app.Client }, error)

// openForReading opens the data folder read-only, for a short command. It is an [opener].
func (a *cli) openForReading() (interface{ Client() *app.Client }, error) {
	return app.OpenReader(a.settings, false, a.quietLogger())
}

// openForLongReading opens the data folder read-only, for a command that takes long: meanwhile it serves other commands that only
// read. It is an [opener].
func (a *cli) openForLongReading() (interface{ Client() *app.Client }, error) {
	return app.OpenReader(a.settings, true, a.quietLogger())
}

// openForWriting returns an opener for commands that change the data folder. o says whether it must exist and whether the log is
// signed.
func (a *cli) openForWriting(o app.WriterOptions) opener {
	return func() (interface{ Client() *app.Client }, error) {
		return app.OpenWriter(a.settings, o, a.quietLogger())
	}
}

// appendingToLog are the options of commands that append to the log.
var appendingToLog = app.WriterOptions{Signing: app.SignedIfKey}

// withClient calls use with a client of the process that has the data folder open. If none exists, it opens the folder with
// open. If there is one, it warns of given flags in settingsUsed, which are those that apply only without it. It closes the
// client afterwards.
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
// opened by open. settingsUsed are the names of the flags that apply only to the latter. report, which may be nil, is called with
// each event.
func runOperation[Request, Event, Answer any](ctx context.Context, a *cli, settingsUsed []string, open opener, o app.Operation[Request, Event, Answer], request Request, report func(Event)) (answer Answer, err error) {
	err = a.withClient(ctx, settingsUsed, open, func(client *app.Client) (err error) {
		answer, err = o.Ask(ctx, client, request, report)
		return err
	})
	return answer, err
}

// runReadOperation runs the operation o as [runOperation] does, with the folder opened read-only.
func runReadOperation[Request, Answer any](ctx context.Context, a *cli, settingsUsed []string, o app.Operation[Request, any, Answer], request Request) (Answer, error) {
	return runOperation(ctx, a, settingsUsed, a.openForReading, o, request, nil)
}

// setReadAction has cmd run the operation o, which only reads, with the request that newRequest makes of the arguments. It prints
// the answer with print or, with the flag --json that it adds, as JSON. settingsUsed are as in [runOperation].
func setReadAction[Request, Answer any](a *cli, cmd *cobra.Command, settingsUsed []string, o app.Operation[Request, any, Answer], newRequest func(args []string) (Request, error), print func(Answer) error) *cobra.Command {
	asJSON := addJSONFlag(cmd)
	cmd.RunE = a.withSettings(func(ctx context.Context, args []string) error {
		request, err := newRequest(args)
		if err != nil {
			return err
		}
		answer, err := runReadOperation(ctx, a, settingsUsed, o, request)
		if err != nil {
			return err
		}
		return a.printResponse(*asJSON, answer, func() error { return print(answer) })
	})
	return cmd
}

// warnUnused prints a warning about those of the named flags that were given: they have no effect, because the running process
// has its own settings.
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

// warnUnsigned prints a warning if the log to which the command has appended is not signed. The command does not fail for that,
// because serving must not depend on the keys.
func (a *cli) warnUnsigned(ctx context.Context, client *app.Client) {
	why, err := app.OpUnsigned.Ask(ctx, client, struct{}{}, nil)
	if err == nil && why != "" {
		fmt.Fprintf(a.stderr, "larder: warning: the log is not signed, so what was done just now cannot be verified, and it is lost if another store is brought: %s\n", text.Plain(why))
	}
}
