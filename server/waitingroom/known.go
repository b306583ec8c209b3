package waitingroom

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// knownFile lists, in the key folder, the rooms that have had state. It is outside the data folder, so that a room whose state is lost
// with that folder is recognised.
const knownFile = "waiting-rooms.txt"

// AddKnown adds the names of rooms to the list of rooms that have had state, which is a file in a key folder, and returns the
// names that were on the list before, nil for none. It removes none. After an error the list is as before.
func AddKnown(keyFolder string, rooms []config.Room) (known []string, err error) {
	file := filepath.Join(keyFolder, knownFile)
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("couldn't read the list of waiting rooms: %w", err)
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
	if err := disk.Replace(file, []byte(strings.Join(all, "\n")+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("couldn't write the list of waiting rooms: %w", err)
	}
	return known, nil
}
