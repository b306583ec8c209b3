package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/larder-cdn/larder/api/admin"
)

// reach gives use a client of whoever can work on the data folder: the process that has it open, or else this one,
// which opens it with open meanwhile. settingsUsed are the flags that only count in the second case.
func (a *app) reach(ctx context.Context, settingsUsed []string, open func(*slog.Logger) (*folder, error), use func(*admin.Client) error) error {
	logger := a.settings.newLogger(a.stderr, slog.LevelError) // the command itself tells the rest
	client, err := admin.Dial(ctx, a.settings.data)
	if err == nil {
		a.warnUnused(settingsUsed)
		return use(client)
	}
	if !errors.Is(err, admin.ErrNoProcess) {
		return err
	}
	f, err := open(logger)
	if err != nil {
		return err
	}
	client, stop := admin.InProcess(admin.Handler(f.operations(nil, a.settings.assetBaseAt("")), logger))
	return errors.Join(use(client), stop(), f.close())
}

// warnUnused tells of flags that were given although the process that runs goes by its own.
func (a *app) warnUnused(names []string) {
	var given []string
	for _, name := range names {
		if a.settings.flags.Lookup(name).Changed {
			given = append(given, "--"+name)
		}
	}
	if given != nil {
		fmt.Fprintf(a.stderr, "larder: a larder process runs on %s and works with its own settings; not used: %s\n",
			a.settings.data, strings.Join(given, ", "))
	}
}

// openForWork is how commands that publish open the folder.
func (a *app) openForWork(logger *slog.Logger) (*folder, error) {
	return a.settings.openFolder(logger, nil)
}

// openExisting is openForWork for commands that have nothing to do where no store is.
func (a *app) openExisting(logger *slog.Logger) (*folder, error) {
	if err := a.settings.needStore(); err != nil {
		return nil, err
	}
	return a.openForWork(logger)
}
