package verify

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rogpeppe/go-internal/lockedfile"

	"github.com/larder-cdn/larder/logs/signing"
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
	Checkpoint string `json:"checkpoint,omitempty"`
	// Kept are signed checkpoints that are still to be compared with it: of a log that was
	// smaller, or not cosigned by the witnesses that were asked for.
	Kept []string  `json:"kept,omitempty"`
	Seen time.Time `json:"seen"`
}

// Known is a file of logs that were seen before. Several processes may use it.
type Known struct {
	path  string
	Logs  []KnownLog
	Lists []KnownList
}

type knownFile struct {
	Format int         `json:"format"`
	Logs   []KnownLog  `json:"logs"`
	Lists  []KnownList `json:"lists,omitempty"`
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
	return &Known{path: path, Logs: f.Logs, Lists: f.Lists}, nil
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

// Open opens a log and remembers what was verified of it. Without a key in o, the key counts that is remembered of the
// server, or else the one that the server names: then firstUse is true. The evidence of a fork is stored in a file.
func (k *Known) Open(ctx context.Context, o Options, now time.Time) (l *Log, firstUse bool, err error) {
	if before, ok := k.OfServer(o.Server); o.Trust.Key == "" && ok {
		o.Trust.Key = before.Key
	}
	if o.Trust.Key == "" && o.Trust.Root == "" {
		if o.Trust.Key, err = FetchKey(ctx, o); err != nil {
			return nil, false, fmt.Errorf("couldn't get the log's key: %w", err)
		}
		firstUse = true
	}
	o.Known, o.KnownList, o.KeepList = k.OfKey, k.ListOf, k.KeepList
	l, err = Open(ctx, o)
	if fork := (*ForkError)(nil); errors.As(err, &fork) {
		var failed error
		fork.File, failed = k.KeepEvidence(fork.Evidence)
		err = errors.Join(err, failed)
	}
	if err != nil {
		return nil, firstUse, err
	}
	return l, firstUse, k.Remember(o.Server, l.options.Trust.Key, l, now)
}

// Remember writes what was verified: the log under a server was trusted by a key,
// which may have led to another one, and has this checkpoint. If the log
// is unverified, its checkpoint does not replace the last one, and is kept to be compared with the log.
func (k *Known) Remember(server, trusted string, l *Log, now time.Time) error {
	return k.update(func(fresh *Known) { fresh.add(server, trusted, l, now) })
}

// update changes the file of known logs, as it is now.
func (k *Known) update(change func(*Known)) error {
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
	change(fresh)
	if err := fresh.write(); err != nil {
		return fmt.Errorf("couldn't remember the log: %w", err)
	}
	k.Logs, k.Lists = fresh.Logs, fresh.Lists
	return nil
}

// KeepEvidence writes the evidence of a fork beside the file of known logs, and returns
// the path. The same evidence is in the same file.
func (k *Known) KeepEvidence(e *signing.Evidence) (string, error) {
	data, err := e.Encode()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	path := filepath.Join(filepath.Dir(k.path), fmt.Sprintf("fork-%x.json", sum[:8]))
	err = os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = replace(path, data)
	}
	if err != nil {
		return "", fmt.Errorf("couldn't keep the evidence that the log has forked: %w", err)
	}
	return path, nil
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
	if !slices.Contains(known.Servers, server) {
		known.Servers = append(known.Servers, server)
		slices.Sort(known.Servers)
	}
	known.Kept = slices.DeleteFunc(known.Kept, func(head string) bool { return slices.Contains(l.settled, head) })
	for _, head := range l.kept {
		if !slices.Contains(known.Kept, head) && len(known.Kept) < maxKept {
			known.Kept = append(known.Kept, head)
		}
	}
	if known.Key == "" {
		known.Key = l.Key()
	}
	if l.unverified != nil {
		return
	}
	for _, former := range []string{known.Key, trusted} {
		if former != l.Key() && !slices.Contains(known.Former, former) {
			known.Former = append(known.Former, former)
		}
	}
	known.Key = l.Key()
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
	if err := encoder.Encode(knownFile{knownFormat, k.Logs, k.Lists}); err != nil {
		return err
	}
	return replace(k.path, data.Bytes())
}

// replace puts a file in its place at once.
func replace(path string, data []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

// servers are the URLs of all servers whose logs were seen.
func (k *Known) servers() []string {
	var all []string
	for _, l := range k.Logs {
		all = append(all, l.Servers...)
	}
	return all
}
