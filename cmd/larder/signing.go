package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
)

// signingSettings are those of whoever signs the log.
type signingSettings struct {
	keys      string
	logOrigin string
	witnesses []string
}

var signingFlags = []string{"keys", "log-origin", "witness"}

func (s *signingSettings) addTo(f *pflag.FlagSet) {
	f.Var(textValue(&s.keys, "folder"), "keys", "key `DIR`: the key that signs the log, and the last signed checkpoint; where it is not given, it is beside the data folder: keys for one that is called data, else its name and -keys")
	f.Var(originValue(&s.logOrigin), "log-origin", "`NAME` of the log for those who verify it, such as cdn.example.com/log; its key is made with it, and keeps it")
	f.Var(&listValue{target: &s.witnesses, kind: "url#key"}, "witness", "`URL#KEY` of a witness, who signs each checkpoint of the log too; repeatable")
}

// originValue is what a log may be called; or nothing.
func originValue(target *string) *value[string] {
	return &value[string]{target: target, kind: "name", format: verbatim, parse: func(s string) (string, error) {
		if s == "" {
			return "", nil
		}
		return s, signing.CheckOrigin(s)
	}}
}

// keyFolder returns where the keys are. It must not be in the data folder: what is restored there from a backup would
// take the last signed checkpoint back with it, and nobody could tell a fork of the log.
func (s *settings) keyFolder() (string, error) {
	data, err := filepath.Abs(s.data)
	if err != nil {
		return "", err
	}
	if s.keys == "" {
		if name := filepath.Base(data); name != "data" {
			return data + "-keys", nil
		}
		return filepath.Join(filepath.Dir(data), "keys"), nil
	}
	keys, err := filepath.Abs(s.keys)
	if err != nil {
		return "", err
	}
	if below, err := filepath.Rel(data, keys); err == nil && below != ".." && !strings.HasPrefix(below, ".."+string(filepath.Separator)) {
		return "", usageError{fmt.Errorf("%s: the key folder must not be in the data folder, because a backup of that must not take the last signed checkpoint back", s.origin("keys"))}
	}
	return keys, nil
}

// openSigner opens the key folder of the settings for the log in f, which closes it.
func (s *settings) openSigner(f *folder, logger *slog.Logger, registerer prometheus.Registerer) error {
	keys, err := s.keyFolder()
	if err != nil {
		return err
	}
	var witnesses []signing.Witness
	for _, text := range s.witnesses {
		w, err := signing.ParseWitness(text)
		if err != nil {
			return usageError{fmt.Errorf("%s: %q %w", s.origin("witness"), text, err)}
		}
		witnesses = append(witnesses, w)
	}
	f.signer, err = signing.Open(signing.Options{
		Dir: keys, Origin: s.logOrigin, Store: f.store, Log: f.log, Witnesses: witnesses,
		Logger: logger.With("part", "signing"), Registerer: registerer,
	})
	if err != nil {
		return fmt.Errorf("%w; --keys chooses another key folder", err)
	}
	return nil
}

// openToAppend opens the folder for a command that appends to the log where no process runs. Closing it signs what was
// appended, where there is a key of this log.
func (a *app) openToAppend(logger *slog.Logger) (*folder, error) {
	f, err := a.openForWork(logger)
	if err != nil {
		return nil, err
	}
	if err := a.settings.openSignerIfAny(f); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// openSignerIfAny opens the key folder, unless it is that of another log or of none: then f.unsigned says so. Neither
// that nor a key that cannot be used stops a command: a release must be withdrawn whatever became of the keys.
func (s *settings) openSignerIfAny(f *folder) error {
	keys, err := s.keyFolder()
	if err != nil {
		return err
	}
	before, err := signing.SignedBy(f.store)
	if err != nil {
		return err
	}
	_, key, err := signing.ReadFolder(keys)
	missing := key == "" && errors.Is(err, fs.ErrNotExist)
	switch {
	case missing && before == "": // nobody has signed it yet; whoever serves it will
		return nil
	case missing:
		f.unsigned = fmt.Sprintf("it was signed before, and there is no key in %s; name its key folder with --keys", keys)
		return nil
	case key != before:
		f.unsigned = fmt.Sprintf("the key in %s is not the one that signed it before; name its key folder with --keys, or bring a newer store if the key was changed since this one was copied", keys)
		return nil
	}
	// What goes wrong is told once, by tellUnsigned.
	err = s.openSigner(f, slog.New(slog.DiscardHandler), nil)
	if err != nil && !errors.As(err, new(usageError)) {
		f.unsigned, err = err.Error(), nil
	}
	return err
}

// whyUnsigned says why the log is not signed any more, and what to do; it is empty where nothing is wrong.
func (f *folder) whyUnsigned() string {
	if f.signer == nil {
		return f.unsigned
	}
	if _, err := f.signer.Checkpoint(); err != nil {
		return err.Error()
	}
	return ""
}

// tellUnsigned warns whoever has just appended to a log that is not signed. It is appended all the same: what is served
// must not depend on the keys, and should the log be begun anew, all of it is in it.
func (a *app) tellUnsigned(ctx context.Context, client *admin.Client) {
	why, err := admin.Call[string, any](ctx, client, "unsigned", unsignedRequest{}, nil)
	if err == nil && why != "" {
		fmt.Fprintf(a.stderr, "larder: warning: the log is not signed, so nobody can verify what was done just now, and it is lost if another store is brought: %s\n", plain(why))
	}
}

type unsignedRequest struct{}

// logHandler answers what is asked of the signed log.
func (p *daemon) logHandler() (http.Handler, error) {
	return tiles.New(tiles.Options{Store: p.folder.store, Signer: p.folder.signer, Logger: p.logger.With("part", "log"), Registerer: p.metrics})
}

// rotation is what changing the key comes to.
type rotation struct {
	signing.KeyChange
	Folder string `json:"folder"`
}

func (f *folder) rotateKey() (rotation, error) {
	if f.signer == nil {
		return rotation{}, errors.New("this process does not sign the log")
	}
	change, err := f.signer.Rotate(time.Now())
	return rotation{change, f.signer.Folder()}, err
}

func newRotateKey(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rotate-key",
		Short: "Sign the log with a new key from now on",
		Long: `Make a new key that signs the log from now on. The log names it in an entry that the present key signs, so that
whoever has pinned that one is led to the new one. Both sign until the old key's file, old-….key in the key folder, is
removed: do that once everybody had time to pin the new one, or at once where the old one has got into wrong hands.

It speaks to the larder process that runs on the data folder; where none runs, it works alone.`,
		Example: `  larder log rotate-key
  larder log rotate-key --data /var/lib/larder/data`,
		Args: arguments(0, 0),
	}
	used := []string{"keys", "log-origin"}
	a.uses(cmd, dataFlags, used)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = a.configured(func(ctx context.Context, _ []string) error {
		open := func(logger *slog.Logger) (*folder, error) {
			f, err := a.openExisting(logger)
			if err != nil {
				return nil, err
			}
			if err := a.settings.openSigner(f, logger, nil); err != nil {
				return nil, errors.Join(err, f.close())
			}
			return f, nil
		}
		return a.reach(ctx, used, open, func(client *admin.Client) error {
			done, err := admin.Call[rotation](ctx, client, "rotate-key", rotateRequest{}, func(struct{}) {})
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(a.stdout, done)
			}
			_, err = fmt.Fprintf(a.stdout, "The log is signed with a new key, as its entry %d says:\n%s\nThe old key signs too until its file is removed: old-….key in %s.\n",
				done.Index, done.Key, done.Folder)
			return err
		})
	})
	return cmd
}

type rotateRequest struct{}
