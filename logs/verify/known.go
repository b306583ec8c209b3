package verify

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rogpeppe/go-internal/lockedfile"
)

// A KnownLog is what is remembered of a log.
type KnownLog struct {
	// Key is the verifier key that is trusted.
	Key string `json:"key"`
	// Former are the keys that led to it.
	Former []string `json:"former,omitempty"`
	// Servers are the URLs under which the log was seen.
	Servers []string `json:"servers"`
	// Checkpoint is the largest signed one that was seen and verified, and Seen when.
	Checkpoint string    `json:"checkpoint,omitempty"`
	Seen       time.Time `json:"seen"`
}

// Known is a file of logs that were seen before. Several processes may use it.
type Known struct {
	path string
	Logs []KnownLog
}

type knownFile struct {
	Format int        `json:"format"`
	Logs   []KnownLog `json:"logs"`
}

const knownFormat = 1

// ReadKnown reads the file of known logs, which need not be there yet.
func ReadKnown(path string) (*Known, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &Known{path: path}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't read the known logs: %w", err)
	}
	var f knownFile
	err = json.Unmarshal(data, &f)
	if err == nil && f.Format != knownFormat {
		err = fmt.Errorf("its format is %d, and this larder knows %d", f.Format, knownFormat)
	}
	for _, l := range f.Logs {
		if err == nil {
			err = CheckKey(l.Key)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't read the known logs in %s: %w; put it right, or move it away and pin the keys again", path, err)
	}
	return &Known{path: path, Logs: f.Logs}, nil
}

// OfServer returns what is remembered of the log of a server.
func (k *Known) OfServer(server string) (KnownLog, bool) {
	i := slices.IndexFunc(k.Logs, func(l KnownLog) bool { return slices.Contains(l.Servers, server) })
	if i < 0 {
		return KnownLog{}, false
	}
	return k.Logs[i], true
}

// OfKey returns what is remembered of the log that a key signs, or signed.
func (k *Known) OfKey(key string) (KnownLog, bool) {
	i := k.index(key)
	if i < 0 {
		return KnownLog{}, false
	}
	return k.Logs[i], true
}

func (k *Known) index(key string) int {
	return slices.IndexFunc(k.Logs, func(l KnownLog) bool { return l.Key == key || slices.Contains(l.Former, key) })
}

// Remember writes what was verified: the log under a server was trusted by a key,
// which may have led to another one, and has this checkpoint.
func (k *Known) Remember(server, trusted string, l *Log, now time.Time) error {
	if err := os.MkdirAll(filepath.Dir(k.path), 0o700); err != nil {
		return fmt.Errorf("couldn't remember the log: %w", err)
	}
	unlock, err := lockedfile.MutexAt(k.path + ".lock").Lock()
	if err != nil {
		return fmt.Errorf("couldn't remember the log: %w", err)
	}
	defer unlock()
	fresh, err := ReadKnown(k.path) // another process may have written it
	if err != nil {
		return err
	}
	fresh.add(server, trusted, l, now)
	if err := fresh.write(); err != nil {
		return fmt.Errorf("couldn't remember the log: %w", err)
	}
	k.Logs = fresh.Logs
	return nil
}

func (k *Known) add(server, trusted string, l *Log, now time.Time) {
	for i := range k.Logs { // a server has one log
		k.Logs[i].Servers = slices.DeleteFunc(k.Logs[i].Servers, func(s string) bool { return s == server })
	}
	i := k.index(trusted)
	if i < 0 {
		i = k.index(l.Key())
	}
	if i < 0 {
		i = len(k.Logs)
		k.Logs = append(k.Logs, KnownLog{})
	}
	known := &k.Logs[i]
	for _, former := range []string{known.Key, trusted} {
		if former != "" && former != l.Key() && !slices.Contains(known.Former, former) {
			known.Former = append(known.Former, former)
		}
	}
	known.Key = l.Key()
	known.Servers = append(known.Servers, server)
	slices.Sort(known.Servers)
	if tree, err := parseSeen([]byte(known.Checkpoint), l.Origin()); known.Checkpoint == "" || err != nil || tree.N <= l.Size() {
		known.Checkpoint = string(l.Note())
	}
	known.Seen = now.UTC().Truncate(time.Second)
}

func (k *Known) write() error {
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(knownFile{knownFormat, k.Logs}); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(k.path), filepath.Base(k.path)+".new-*")
	if err != nil {
		return err
	}
	_, err = file.Write(data.Bytes())
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), k.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}
