package check

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/logs"
)

// SeenFile is the name in the key folder under which a Seen is kept by default.
const SeenFile = "seen"

// Seen is the checkpoint of a run that found the log sound, as it is kept in a file
// for the next one.
type Seen struct {
	logs.Checkpoint
	Time time.Time `json:"time"`
}

// ReadSeen reads the checkpoint that an earlier run recorded in the file at path. It returns the zero value if the file does not exist, and an error
// if it is damaged.
func ReadSeen(path string) (s Seen, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil && (json.Unmarshal(data, &s) != nil || s.Size < 0 || s.Root == tlog.Hash{} || s.Time.IsZero()) { // which no checkpoint has
		err = errors.New("the file is damaged")
	}
	if err != nil {
		return s, fmt.Errorf("couldn't read the checkpoint that was seen before, in %s: %w; put a good copy there, or delete the file to start without one", path, err)
	}
	return s, nil
}

// Write replaces the file at path, durably, by one with the checkpoint and the time, in UTC to the second.
func (s Seen) Write(path string) error {
	s.Time = s.Time.UTC().Truncate(time.Second)
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return disk.Replace(path, append(data, '\n'), 0o600)
}
