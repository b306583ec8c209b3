package testkit

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// TamperReplace does what an attacker who has broken in would do: it gives a published file other bytes, with their own hash and
// integrity, so that checksums, tags and pages are all as they have to be. It changes
// everything but the log, which cannot be changed without its key.
func TamperReplace(store *kvstore.Store, pkg, version, path string, data []byte) error {
	v, err := views.LookupVersion(store, pkg, version)
	if errors.Is(err, kvstore.ErrNotFound) {
		return fmt.Errorf("%s %s is not here", pkg, version)
	}
	if err != nil {
		return err
	}
	entry, err := logs.ReadEntry(store, v.Entry)
	if err != nil {
		return err
	}
	change, err := views.Load(store, entry)
	if err != nil {
		return err
	}
	found := false
	for i := range change.Manifest.Files {
		if f := &change.Manifest.Files[i]; f.Path == path {
			f.Size, f.SHA256, f.SRI = int64(len(data)), kvstore.Sum(data), logs.SumSRI(data)
			found = true
		}
	}
	if !found {
		return fmt.Errorf("%s %s has no file %s", pkg, version, path)
	}
	if err := store.PutContent(kvstore.Sum(data), int64(len(data)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}); err != nil {
		return err
	}
	b := store.NewBatch()
	defer b.Close()
	if err := views.Apply(b, change); err != nil {
		return err
	}
	return b.Commit()
}

// TamperLog does what the holder of the log's key could do: it appends an entry as it is,
// whatever that says of what is live. The log in the store has to be opened again.
func TamperLog(store *kvstore.Store, e logs.Entry) error {
	before, err := logs.ReadCheckpoint(store)
	if err != nil {
		return err
	}
	e.Format = logs.EntryFormat
	raw, err := json.Marshal(e)
	if err != nil {
		return err
	}
	hashes, err := tlog.StoredHashes(before.Size, raw, logs.Hashes(store))
	if err != nil {
		return err
	}
	index := func(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }
	first := tlog.StoredHashIndex(0, before.Size)
	b := store.NewBatch()
	defer b.Close()
	b.Set(kvstore.LogEntries, index(before.Size), raw)
	for i, h := range hashes {
		b.Set(kvstore.LogHashes, index(first+int64(i)), h[:])
	}
	logs.AddToIndex(b, before.Size, e)
	root, err := tlog.TreeHash(before.Size+1, tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		var out []tlog.Hash
		for _, i := range indexes {
			if i >= first {
				out = append(out, hashes[i-first])
				continue
			}
			h, err := logs.Hashes(store).ReadHashes([]int64{i})
			if err != nil {
				return nil, err
			}
			out = append(out, h...)
		}
		return out, nil
	}))
	if err != nil {
		return err
	}
	b.Set(kvstore.LogState, kvstore.Key("checkpoint"), append(append([]byte{1}, index(before.Size+1)...), root[:]...))
	return b.Commit()
}

// TamperAppend is Replace with the bytes that there are and some more.
func TamperAppend(store *kvstore.Store, pkg, version, path string, more []byte) error {
	file, err := views.LookupFile(store, pkg, version, path)
	if errors.Is(err, kvstore.ErrNotFound) {
		return fmt.Errorf("%s %s has no file %s", pkg, version, path)
	}
	if err != nil {
		return err
	}
	data, err := store.Identity(file.Hash)
	if err != nil {
		return err
	}
	return TamperReplace(store, pkg, version, path, append(data[:len(data):len(data)], more...))
}

// Tamper is the program
//
//	tamper DATA PACKAGE VERSION PATH LINE
//
// It appends a line to a published file in a data folder that no process runs on, so that Larder serves the changed file
// and only the log can tell.
func Tamper() {
	if err := tamper(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tamper:", err)
		os.Exit(1)
	}
}

func tamper(args []string) error {
	if len(args) != 5 {
		return errors.New("usage: tamper DATA PACKAGE VERSION PATH LINE")
	}
	dir := filepath.Join(args[0], "store")
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	store, err := kvstore.Open(dir, kvstore.Options{})
	if err != nil {
		return err
	}
	return errors.Join(TamperAppend(store, args[1], args[2], args[3], []byte(args[4]+"\n")), store.Close())
}
