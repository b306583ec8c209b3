package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/verify"
)

// The files in the folder of a root key, besides [signing.KeyListFile].
const (
	rootKeyFile    = "root.key"
	rootPublicFile = "root.pub"
)

// newKey returns the group of commands `larder key`, which copy the log's keys, and create a root key and sign the list of the
// log's keys with it. None of them creates a key of the log.
func newKey(a *cli) *cobra.Command {
	return newGroup("key", "Copy the log's keys, and vouch for them with a root key that stays offline",
		`Vouch for the keys that sign the log, with a root key on a machine without a network. Clients that pin it
(larder verify --root) go by its list of the log's keys, whatever a key that was stolen has signed.`,
		"  larder key init --root ./root --name cdn.example.com/root\n  larder key sign --root ./root --add log.pub\n  cp root/key-list keys/",
		newKeyInit(a), newKeySign(a), newKeyBackup(a))
}

// newKeyBackup returns the command `larder key backup`, which copies the log's keys to another folder and records that for
// `larder doctor`. It asks no running process.
func newKeyBackup(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backup DIR",
		Short: "Copy the log's keys to another folder",
		Long: `Copy the keys of the key folder to DIR, which is made if it is missing, and record that for larder doctor. Without a
copy, a lost key cannot be replaced for clients that pin it. The last signed checkpoint is not copied: an old one would
hide a fork. Bring DIR to another machine, and protect it: who has log.key can sign a log of yours.`,
		Example: "  larder key backup /mnt/vault/larder-keys",
		Args:    checkArgumentCount(1, 1),
	}
	a.addFlags(cmd, dataFlags, signingFlags[:1])
	return withAction(cmd, a.withSettings(func(_ context.Context, args []string) error {
		files, err := app.BackUpKeys(a.settings, args[0])
		if err == nil {
			fmt.Fprintf(a.stdout, "Copied %s to %s: %s.\n", formatCount(len(files), "file", "files"), args[0], strings.Join(files, ", "))
		}
		return err
	}))
}

// newKeyInit returns the command `larder key init`, which creates a root key in the folder of --root, and prints its verifier
// key. A root key that is there already is an error.
func newKeyInit(a *cli) *cobra.Command {
	var dir, name string
	cmd := &cobra.Command{
		Use:   "init --root FOLDER",
		Short: "Create a root key",
		Long: `Create a root key in FOLDER: root.key, which must stay secret and offline, and root.pub, the verifier key, for those who
verify. Keep copies of the folder: without the key, a stolen key of the log cannot be
replaced for clients that pin it.`,
		Example: "  larder key init --root ./root --name cdn.example.com/root",
	}
	cmd.Flags().StringVar(&dir, "root", "", "the root key's `FOLDER`")
	cmd.Flags().StringVar(&name, "name", "", "the key's `NAME`: a host that is yours, and what you like behind it")
	return withAction(cmd, withoutSettings(func(context.Context, []string) error {
		if dir == "" || name == "" {
			return settings.Mistakef("key init needs the folder of the root key in --root and its --name")
		}
		private, public, err := signing.NewKey(name)
		if err != nil {
			return settings.Mistakef("--name %w", err)
		}
		if _, err := os.Stat(filepath.Join(dir, rootKeyFile)); !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(fmt.Errorf("%s has a root key already, which is never overwritten; give another folder with --root", dir), err)
		}
		err = os.MkdirAll(dir, 0o700)
		if err == nil {
			err = disk.Replace(filepath.Join(dir, rootKeyFile), []byte(private+"\n"), 0o600)
		}
		if err == nil {
			err = disk.Replace(filepath.Join(dir, rootPublicFile), []byte(public+"\n"), 0o644)
		}
		if err != nil {
			return fmt.Errorf("couldn't create the root key: %w", err)
		}
		fmt.Fprintf(a.stdout, "Created the root key in %s. Keep root.key offline; those who verify pin root.pub:\n%s\n", dir, public)
		return nil
	}))
}

// A keySigning has the flags of `larder key sign`. end and at are both "" if no key is ended.
type keySigning struct {
	dir, end, at string
	add          []string
	expires      time.Duration
}

// newKeySign returns the command `larder key sign`, which signs the next list of the log's keys with the root key, stores it in
// the folder of that, and prints it.
func newKeySign(a *cli) *cobra.Command {
	var s keySigning
	cmd := &cobra.Command{
		Use:   "sign --root FOLDER",
		Short: "Sign the next list of the log's keys",
		Long: `Sign a list of the keys that may sign the log: that of the version before, key-list in FOLDER, with the changes that the
flags name. The list has the next version and a new expiry. Copy it into the log's key folder, as key-list; a Larder
serves it from there, without a restart. Sign another one before it expires.

--end KEY ends a key: the last tree that it may sign is that of the checkpoint in --at, such as a copy of the file
checkpoint in the key folder, from before the key was stolen.`,
		Example: `  larder key sign --root ./root --add log.pub
  larder key sign --root ./root --add new.pub --end old.pub --at checkpoint`,
	}
	f := cmd.Flags()
	f.StringVar(&s.dir, "root", "", "the root key's `FOLDER`")
	f.StringArrayVar(&s.add, "add", nil, "a verifier `KEY` of the log, or a file with it, that may sign from now on; repeatable")
	f.StringVar(&s.end, "end", "", "a verifier `KEY` of the log, or a file with it, that may sign nothing after --at")
	f.StringVar(&s.at, "at", "", "a `FILE` with the last signed checkpoint for which the key in --end counts")
	f.DurationVar(&s.expires, "expires", 365*24*time.Hour, "how long the list counts")
	return withAction(cmd, withoutSettings(func(context.Context, []string) error {
		if s.dir == "" || (s.end == "") != (s.at == "") || s.expires <= 0 {
			return settings.Mistakef("key sign needs the folder of the root key in --root, --end and --at together, and an --expires over 0")
		}
		signed, err := s.sign(time.Now())
		if err == nil {
			_, err = a.stdout.Write(signed)
		}
		return err
	}))
}

// sign signs the next version of the list of keys: the previous one with the changes in the flags, valid for s.expires from now
// on. It writes the signed list to the root key's folder, in place of the previous one, and returns it.
func (s keySigning) sign(now time.Time) ([]byte, error) {
	private, err := os.ReadFile(filepath.Join(s.dir, rootKeyFile))
	if err != nil {
		return nil, fmt.Errorf("couldn't read the root key: %w; larder key init creates one", err)
	}
	root, public, err := signing.ParseKey(private)
	if err != nil {
		return nil, fmt.Errorf("couldn't read the root key in %s: %w", s.dir, err)
	}
	list, err := s.readPreviousList(public)
	if err != nil {
		return nil, err
	}
	for _, argument := range s.add {
		key, err := verify.ReadKey(argument)
		if err != nil {
			return nil, fmt.Errorf("--add: %w", err)
		}
		list.Origin, _, _ = strings.Cut(key, "+")
		list.Keys = append(list.Keys, signing.ListedKey{Key: key})
	}
	if len(list.Keys) == 0 {
		return nil, errors.New("the list has no key yet; give the log's verifier key, log.pub in its key folder, with --add")
	}
	if s.end != "" {
		if err := s.endKey(list); err != nil {
			return nil, err
		}
	}
	list.Version++
	list.Expires = now.UTC().Add(s.expires).Truncate(time.Second)
	signed, err := list.Sign(root)
	if err == nil {
		err = disk.Replace(filepath.Join(s.dir, signing.KeyListFile), signed, 0o644)
	}
	return signed, err
}

// readPreviousList reads the list of keys in the root key's folder. It returns an error unless rootKey, a verifier key, signed
// it. Without a file, it returns an empty list of version 0.
func (s keySigning) readPreviousList(rootKey string) (*signing.KeyList, error) {
	before, err := signing.ReadKeyList(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return &signing.KeyList{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't read the list before: %w", err)
	}
	return signing.OpenKeyList(before, rootKey)
}

// endKey records in list, in memory only, that the key in --end, a verifier key or a file with it, may sign nothing after the
// checkpoint in the file --at, which any key of the list must have signed. It replaces an end that the key has. A key that list does
// not have is an error.
func (s keySigning) endKey(list *signing.KeyList) error {
	key, err := verify.ReadKey(s.end)
	if err != nil {
		return fmt.Errorf("--end: %w", err)
	}
	last, err := os.ReadFile(s.at)
	if err != nil {
		return fmt.Errorf("--at: %w", err)
	}
	if err := list.EndKey(key, last); err != nil {
		return fmt.Errorf("couldn't end the key in --end with the checkpoint in --at: %w", err)
	}
	return nil
}
