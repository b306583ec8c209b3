package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/text"
)

// quiet is the log of a command that tells the rest itself.
func (a *cli) quiet() *slog.Logger { return a.settings.NewLogger(a.stderr, slog.LevelError) }

// An opener opens the data folder for a command where no process runs.
type opener func() (interface{ Client() *app.Client }, error)

// reading is how commands that only look open the folder.
func (a *cli) reading() (interface{ Client() *app.Client }, error) {
	return app.OpenReader(a.settings, false, a.quiet())
}

// readingLong is reading for commands that take long.
func (a *cli) readingLong() (interface{ Client() *app.Client }, error) {
	return app.OpenReader(a.settings, true, a.quiet())
}

// writing is how commands open the folder that change something.
func (a *cli) writing(o app.WriterOptions) opener {
	return func() (interface{ Client() *app.Client }, error) {
		return app.OpenWriter(a.settings, o, a.quiet())
	}
}

// appending is for commands that append to the log.
var appending = app.WriterOptions{Signing: app.SignedIfKey}

// reach gives use a client of the process that has the data folder open, or else of what open opens meanwhile.
// settingsUsed are the flags that only count in the second case.
func (a *cli) reach(ctx context.Context, settingsUsed []string, open opener, use func(*app.Client) error) error {
	client, own, err := app.Reach(ctx, a.settings.Data, open)
	if err != nil {
		return err
	}
	if !own {
		a.warnUnused(settingsUsed)
	}
	return errors.Join(use(client), client.Close())
}

// ask has an operation done that only reads.
func ask[Request, Answer any](ctx context.Context, a *cli, settingsUsed []string, o app.Operation[Request, any, Answer], request Request) (answer Answer, err error) {
	err = a.reach(ctx, settingsUsed, a.reading, func(client *app.Client) (err error) {
		answer, err = o.Ask(ctx, client, request, nil)
		return err
	})
	return answer, err
}

// warnUnused tells of flags that were given although the process that runs goes by its own.
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

// tellUnsigned warns that what was appended just now is in a log that is not signed. It is appended all the same: what is
// served must not depend on the keys, and should the log be begun anew, all of it is in it.
func (a *cli) tellUnsigned(ctx context.Context, client *app.Client) {
	why, err := app.OpUnsigned.Ask(ctx, client, struct{}{}, nil)
	if err == nil && why != "" {
		fmt.Fprintf(a.stderr, "larder: warning: the log is not signed, so what was done just now cannot be verified, and it is lost if another store is brought: %s\n", text.Plain(why))
	}
}
