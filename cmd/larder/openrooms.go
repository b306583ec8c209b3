package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/ticket"
)

// openRooms opens the waiting rooms of the settings, nil where there are none, and has them work until ctx ends.
func (p *daemon) openRooms(ctx context.Context, group *errgroup.Group) (*waitingroom.Rooms, error) {
	rooms, err := p.settings.configuredRooms()
	if err != nil || len(rooms) == 0 {
		return nil, err
	}
	keyFolder, err := p.settings.keyFolder()
	if err != nil {
		return nil, err
	}
	keys, err := ticket.OpenKeys(keyFolder)
	if err != nil {
		return nil, err
	}
	known, err := noteRooms(keyFolder, rooms)
	if err != nil {
		return nil, err
	}
	errands, err := p.folder.errands()
	if err != nil {
		return nil, err
	}
	const here = "local"
	logger := p.logger.With("part", "rooms")
	globals, err := waitingroom.OpenGlobals(waitingroom.GlobalOptions{
		Rooms: rooms, Runtime: errands.runtime, Salt: keys.Salt, DataCentres: []string{here}, Logger: logger,
		Known: func(name string) bool { return slices.Contains(known, name) },
	})
	if err != nil {
		return nil, err
	}
	opened, err := waitingroom.New(waitingroom.Options{
		Rooms: rooms, Keys: keys, Runtime: errands.runtime, Transport: globals, DataCentre: here, Sole: true, Logger: logger, Registerer: p.metrics,
	})
	if err != nil {
		return nil, err
	}
	group.Go(func() error {
		opened.Run(ctx)
		return nil
	})
	return opened, nil
}

// roomsFile is where the key folder says which rooms there have been. It is not in the data folder, so that a
// room knows that its state is lost where that is.
const roomsFile = "waiting-rooms.txt"

// noteRooms returns the rooms that there have been, and adds those that are new.
func noteRooms(keyFolder string, rooms []config.Room) (known []string, err error) {
	file := filepath.Join(keyFolder, roomsFile)
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("couldn't read which waiting rooms there have been: %w", err)
	}
	known = strings.Fields(string(text))
	all := slices.Clone(known)
	for _, r := range rooms {
		if !slices.Contains(all, r.Name) {
			all = append(all, r.Name)
		}
	}
	if len(all) == len(known) {
		return known, nil
	}
	fresh := file + ".new"
	if err = os.WriteFile(fresh, []byte(strings.Join(all, "\n")+"\n"), 0o600); err == nil {
		err = os.Rename(fresh, file)
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't note which waiting rooms there are: %w", err)
	}
	return known, nil
}
