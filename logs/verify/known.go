package verify

import (
	"bytes"
	"cmp"
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

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// A KnownLog is the record that earlier runs have stored about a log.
type KnownLog struct {
	// Key is the verifier key that is trusted.
	Key string `json:"key"`
	// Former are the keys that led to it.
	Former []string `json:"former,omitempty"`
	// Servers are the URLs under which the log was seen.
	Servers []string `json:"servers"`
	// Checkpoint is the largest signed one that was seen and verified, and Seen when the log was last verified.
	Checkpoint string `json:"checkpoint,omitempty"`
	// Deferred are signed checkpoints that a later run has to compare with it: of a log that was smaller, too old, or not
	// cosigned by the required witnesses.
	Deferred []string  `json:"kept,omitempty"`
	Seen     time.Time `json:"seen"`
}

// Known is the content of the file of known logs, which several processes may use.
type Known struct {
	path   string
	Format int         `json:"format"`
	Logs   []KnownLog  `json:"logs"`
	Lists  []KnownList `json:"lists,omitempty"`
}

const knownFormat = 1

// ReadKnown reads the file of known logs. A missing file is no error: no log is known. A file with another format or an
// invalid key is one.
func ReadKnown(path string) (*Known, error) {
	k := &Known{path: path}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't read the known logs: %w", err)
	}
	err = json.Unmarshal(data, k)
	if err == nil && k.Format != knownFormat {
		err = fmt.Errorf("its format is %d, and this larder knows %d", k.Format, knownFormat)
	}
	for _, l := range k.Logs {
		if err == nil {
			err = CheckKey(l.Key)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't read the known logs in %s: %w; put it right, or move it away and pin the keys again", path, err)
	}
	return k, nil
}

// ByServer returns what is stored about the log of a server, given by its URL as it was stored, and reports whether there is
// anything.
func (k *Known) ByServer(server string) (KnownLog, bool) {
	return k.at(slices.IndexFunc(k.Logs, func(l KnownLog) bool { return slices.Contains(l.Servers, server) }))
}

// ByKey returns what is stored about the log that is, or was, signed with a verifier key, and reports whether there is
// anything.
func (k *Known) ByKey(key string) (KnownLog, bool) { return k.at(k.indexByKey(key)) }

// at returns the log with an index in k.Logs, and false for a negative index.
func (k *Known) at(i int) (KnownLog, bool) {
	if i < 0 {
		return KnownLog{}, false
	}
	return k.Logs[i], true
}

// indexByKey returns the index in k.Logs of the log that is, or was, signed with a verifier key, or -1.
func (k *Known) indexByKey(key string) int {
	return slices.IndexFunc(k.Logs, func(l KnownLog) bool { return l.Key == key || slices.Contains(l.Former, key) })
}

// Open opens and verifies the log of o.Server, and stores in the file what was verified of it, at the time now. If o has no
// key, it uses the one that is stored for the server. If none is stored and o has no root key, it uses the one that the
// server itself names, and firstUse is true. If the log has forked, the error is a [ForkError] that names the file with the
// evidence, or is joined with the error of storing that. If only storing the log fails, the log is returned with that
// error. A log that proves nothing is no error, see [Log.Unverified].
func (k *Known) Open(ctx context.Context, o Options, now time.Time) (l *Log, firstUse bool, err error) {
	if o, firstUse, err = k.completeOptions(ctx, o); err != nil {
		return nil, false, err
	}
	l, err = Open(ctx, o)
	if fork := (*ForkError)(nil); errors.As(err, &fork) {
		var failed error
		fork.File, failed = k.StoreEvidence(fork.Evidence)
		err = errors.Join(err, failed)
	}
	if err != nil {
		return nil, firstUse, err
	}
	return l, firstUse, k.RecordLog(o.Server, l.options.Trust.Key, l, now)
}

// completeOptions returns o with a key, if it has none: the one that is stored for the server, or else, unless o has a root
// key, the one that the server names, which it fetches; then firstUse is true. It also sets the functions by which [Open]
// reads what k has stored, and stores lists of keys.
func (k *Known) completeOptions(ctx context.Context, o Options) (_ Options, firstUse bool, err error) {
	if before, ok := k.ByServer(o.Server); o.Trust.Key == "" && ok {
		o.Trust.Key = before.Key
	}
	if o.Trust.Key == "" && o.Trust.Root == "" {
		firstUse = true
		if o.Trust.Key, err = FetchKey(ctx, o); err != nil {
			return o, firstUse, fmt.Errorf("couldn't get the log's key: %w", err)
		}
	}
	o.Known, o.KnownKeyList, o.StoreKeyList = k.ByKey, k.KeyList, k.StoreKeyList
	return o, firstUse, nil
}

// RecordLog stores in the file what was verified of a server's log: its key, to which the key trusted has led, its
// checkpoint, unless the stored one is larger, and the time now. Of a log that proves nothing, it stores only the server, a
// first key, and the comparisons that l has deferred or resolved. It removes the server from other logs. Then k has what is
// in the file.
func (k *Known) RecordLog(server, trusted string, l *Log, now time.Time) error {
	return k.updateFile(func(fresh *Known) { fresh.mergeLog(server, trusted, l, now) })
}

// updateFile reads the file of known logs again, under a lock, applies a change to that, and writes it. Then k has what is
// in the file. It creates the folder and, beside the file, a lock file. With an error, the file and k are unchanged.
func (k *Known) updateFile(change func(*Known)) error {
	err := os.MkdirAll(filepath.Dir(k.path), 0o700)
	var unlock func()
	if err == nil {
		unlock, err = lockedfile.MutexAt(k.path + ".lock").Lock()
	}
	if err != nil {
		return fmt.Errorf("couldn't store what was verified of the log: %w", err)
	}
	defer unlock()
	fresh, err := ReadKnown(k.path) // another process may have written it
	if err != nil {
		return err
	}
	change(fresh)
	fresh.Format = knownFormat
	var data bytes.Buffer
	if err = text.WriteJSON(&data, fresh); err == nil {
		err = disk.Replace(k.path, data.Bytes(), 0o600)
	}
	if err != nil {
		return fmt.Errorf("couldn't store what was verified of the log: %w", err)
	}
	*k = *fresh
	return nil
}

// StoreEvidence writes the evidence of a fork to a file beside the file of known logs, and returns its path. Equal evidence
// has the same path.
func (k *Known) StoreEvidence(e *signing.Evidence) (string, error) {
	data, err := e.Encode()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	path := filepath.Join(filepath.Dir(k.path), fmt.Sprintf("fork-%x.json", sum[:8]))
	err = os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = disk.Replace(path, data, 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("couldn't store the evidence that the log has forked: %w", err)
	}
	return path, nil
}

// mergeLog changes k, in memory, to what was verified of a server's log, as [Known.RecordLog] describes it.
func (k *Known) mergeLog(server, trusted string, l *Log, now time.Time) {
	for i := range k.Logs { // a server has one log
		k.Logs[i].Servers = slices.DeleteFunc(k.Logs[i].Servers, func(s string) bool { return s == server })
	}
	i := k.indexByKey(trusted)
	if i < 0 {
		i = k.indexByKey(l.Key())
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
	known.Deferred = slices.DeleteFunc(known.Deferred, func(head string) bool { return slices.Contains(l.resolved, head) })
	for _, head := range l.deferred {
		if !slices.Contains(known.Deferred, head) && len(known.Deferred) < maxDeferred {
			known.Deferred = append(known.Deferred, head)
		}
	}
	known.Key = cmp.Or(known.Key, l.Key())
	if l.unverified != nil {
		return
	}
	for _, former := range []string{known.Key, trusted} {
		if former != l.Key() && !slices.Contains(known.Former, former) {
			known.Former = append(known.Former, former)
		}
	}
	known.Key = l.Key()
	if size, err := logs.CheckpointSize([]byte(known.Checkpoint)); err != nil || size <= l.Size() {
		known.Checkpoint = string(l.Note())
	}
	known.Seen = now.UTC().Truncate(time.Second)
}

// servers returns the URLs of all servers whose logs are known, nil if there are none.
func (k *Known) servers() []string {
	var all []string
	for _, l := range k.Logs {
		all = append(all, l.Servers...)
	}
	return all
}
