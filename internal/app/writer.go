package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/server/waitingroom"
)

// A Writer is a data folder that is open for writing, which no other process can open meanwhile.
type Writer struct {
	folder    *Reader
	signature signature
	// filler is opened on first use, because commands that only read need neither npm's configuration nor a catalogue.
	filler lazy[*filler]
}

// A filler is a bot with the watcher of the catalogue by which it publishes.
type filler struct {
	bot     *bot.Bot
	watcher *bot.CatalogueWatcher
}

// A writerConfig says how a Writer works.
type writerConfig struct {
	open   openOptions
	follow bool                // the catalogue is followed, so the bot may start before a remote one was read
	events func(sources.Event) // is called with the events of the bot
	node   bool                // the Writer is that of a node of a cluster, whose log comes from the bucket or the leader
	afresh bool                // the store is new or lacks signed entries, which come from there: that is no error
	// squeezed is called with each content that has a smaller encoding; it may be nil.
	squeezed func(kvstore.Hash)
	// deltaStored is called with each content that has a delta against a dictionary; it may be nil.
	deltaStored func(h, dictionary kvstore.Hash)
	encoders    int // see [bot.Limits]
}

// Signing says whether the log is signed by a [Writer].
type Signing int

// How a Writer signs.
const (
	Unsigned    Signing = iota // the Writer does not sign; it is for commands that do not append to the log
	SignedIfKey                // it signs if the key folder has the log's key, and otherwise reports why it does not ([OpUnsigned])
	Signed                     // it signs, and cannot be opened otherwise; a missing key is created
)

// WriterOptions say what a command needs a Writer for.
type WriterOptions struct {
	Existing bool // there must be a store already
	Signing  Signing
}

// OpenWriter opens a data folder for writing, and creates it if it is missing, unless o requires a store. It completes an
// interrupted repair, and opens the signer of the log if o says so. Until the Writer is closed, it serves read-only operations
// to other commands. For the errors see openWriter.
func OpenWriter(s *settings.Settings, o WriterOptions, logger *slog.Logger) (*Writer, error) {
	if err := finishRepair(s, logger); err != nil {
		return nil, err
	}
	if o.Existing {
		if err := checkStoreExists(s); err != nil {
			return nil, err
		}
	}
	w, err := openWriter(s, writerConfig{}, logger)
	if err != nil {
		return nil, err
	}
	switch o.Signing {
	case SignedIfKey:
		err = w.openSignerIfAny()
	case Signed:
		err = w.openSigner(logger, nil)
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	w.folder.serveReaders(func(s *Status) { s.Unsigned, s.Disputes = w.signature.problem(), w.signature.disputes() })
	return w, nil
}

// openWriter opens a data folder for writing by the settings and o, and creates it if it is missing. It completes an
// interrupted repair, empties the folder for temporary files, and removes stores that a repair replaced over a month ago. It
// returns a [*lockedError] if another process has the folder open, a [*Shortfall] if the store is damaged or lacks signed
// entries, unless o.afresh says that the node gets these from elsewhere, and a [settings.Mistake] if the folder is that of a
// cluster node and o.node is false.
func openWriter(s *settings.Settings, o writerConfig, logger *slog.Logger) (*Writer, error) {
	if err := finishRepair(s, logger); err != nil {
		return nil, err
	}
	var err error
	if o.open.store.Mark, err = checkFolder(s); err != nil && !o.afresh {
		return nil, err
	}
	if o.afresh {
		o.open.store.Mark = filepath.Join(s.KeyFolder(), markFile)
	}
	if err := os.MkdirAll(s.Data, 0o700); err != nil {
		return nil, fmt.Errorf("couldn't make the data folder: %w; choose another with --data", err)
	}
	r, err := openFolder(s, o.open, logger)
	if err != nil {
		return nil, err
	}
	if err := r.acceptBehind(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if joined, err := cluster.Joined(r.store); err != nil || joined && !o.node {
		if err == nil {
			err = settings.Mistakef("%s is that of a node of a cluster, whose log does not grow by itself: start it with its --bucket", s.Data)
		}
		return nil, errors.Join(err, r.Close())
	}
	if err := errors.Join(os.RemoveAll(tmpDir(s.Data)), os.Mkdir(tmpDir(s.Data), 0o700)); err != nil {
		return nil, errors.Join(fmt.Errorf("couldn't empty the folder for temporary files: %w", err), r.Close())
	}
	if r.store.Behind() == nil {
		removeReplaced(s.Data, logger)
	}
	w := &Writer{folder: r}
	w.filler.open = func() (*filler, error) { return w.newFiller(o, logger.With("part", "bot")) }
	w.filler.close = func(f *filler) { f.bot.Close() }
	return w, nil
}

// acceptBehind accepts the present state of a store that lacks its last changes, as after restoring a copy, and logs them; for
// another store it does nothing. No signed entry is missing, but the waiting rooms may have admitted users since, so
// acceptBehind has them recover.
func (r *Reader) acceptBehind() error {
	behind := r.store.Behind()
	if behind == nil {
		return nil
	}
	r.logger.Warn("the store is missing its last changes, as after restoring a backup: no signed entry is missing, but smaller encodings, schedules and grants of waiting rooms may be; the rooms recover",
		"lacks", behind.String())
	if err := waitingroom.Forget(r.store); err != nil {
		return fmt.Errorf("couldn't have the waiting rooms recover: %w", err)
	}
	r.store.KeepMark()
	return nil
}

// Close waits for running operations, whose contexts must have ended, closes the bot, if it was opened, signs the new entries
// of the log if w has a signer, and closes the folder. It does each step also after an error, and returns all errors.
func (w *Writer) Close() error {
	return w.folder.closeAfter(parts.StopBy(w.filler.closeIfOpen), w.signature.close)
}

// dependencies are the parts of a filler besides the folder. Opening them can fail because of wrong settings or a wrong
// catalogue.
type dependencies struct {
	clients      *bot.Clients
	attestations *npm.AttestationVerifier
	downloads    func(context.Context, string) (int64, error) // nil for none
	watcher      *bot.CatalogueWatcher
	first        *packages.Catalogue // the first catalogue of the bot; nil if it starts without one
}

// openDependencies opens what a filler needs besides the folder: clients of upstreams, verifier, catalogue. It may request the
// catalogue. follow says that the filler may start without a catalogue if that is remote. The caller closes d.clients; after an
// error they are closed.
func openDependencies(s *settings.Settings, follow bool, logger *slog.Logger) (d dependencies, err error) {
	if d.attestations, err = newAttestationVerifier(s); err != nil {
		return d, err
	}
	o := bot.ClientOptions{OwnConfig: true}
	o.Fetch.Concurrency = bot.DownloadsAtOnce + bot.RequestsAtOnce // of which the bot itself keeps count
	if d.clients, err = openClients(s, o, logger); err != nil {
		return d, err
	}
	d.downloads, err = newDownloadLookup(s, d.clients)
	if err == nil {
		d.watcher, err = newCatalogueWatcher(s, filepath.Join(s.Data, "catalogue"), d.clients, logger)
	}
	if err == nil {
		d.first, err = openCatalogue(d.watcher, follow)
	}
	if err != nil {
		d.clients.Close()
	}
	return d, err
}

// newFiller opens the bot on the folder, with its catalogue and its clients of upstreams, and does not run it. The caller
// closes the bot. logger is that of the bot.
func (w *Writer) newFiller(o writerConfig, logger *slog.Logger) (_ *filler, err error) {
	s := w.folder.settings
	d, err := openDependencies(s, o.follow, logger)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.clients.Close()
		}
	}()
	outbox, err := w.folder.outbox.get()
	if err != nil {
		return nil, err
	}
	made, err := bot.New(bot.Options{
		Runtime:   outbox.Runtime,
		Store:     w.folder.store,
		Log:       w.folder.log,
		Catalogue: d.first,
		Upstreams: bot.Upstreams{Npm: d.clients.Npm, Git: d.clients.Git, Provenance: d.attestations, Feed: s.Feed, CountDownloads: d.downloads},
		Limits:    bot.Limits{Releases: s.Releases, Interval: s.Interval, MemoryBytes: s.Memory, Encoders: o.encoders},
		TempDir:   filepath.Join(tmpDir(s.Data), "bot"),
		Logger:    logger,
		Events:    o.events,
		Changed:   func(name string) { w.folder.pages.changes.RecordChange(name) },

		Recompression: bot.Recompression{Dictionaries: s.Dictionaries, Squeezed: o.squeezed, DeltaStored: o.deltaStored},
	})
	if err != nil {
		return nil, err
	}
	return &filler{made, d.watcher}, nil
}

// newAttestationVerifier returns the verifier of npm's build attestations, with the Sigstore root of the settings or the
// built-in one. An error is a mistake in the settings, such as a file that cannot be read.
func newAttestationVerifier(s *settings.Settings) (*npm.AttestationVerifier, error) {
	var root []byte
	if s.SigstoreRoot != "" {
		var err error
		if root, err = s.ReadFile("sigstore-root", s.SigstoreRoot); err != nil {
			return nil, err
		}
	}
	v, err := npm.NewAttestationVerifier(root)
	if err != nil {
		return nil, settings.Mistakef("%s: %w", s.Origin("sigstore-root"), err)
	}
	return v, nil
}

// openTime is how long [openCatalogue] may take to read a catalogue from its source.
const openTime = time.Minute

// openCatalogue returns the first catalogue of the bot: the copy that was stored before, if the catalogue is remote and there is
// one, else it reads the catalogue for up to openTime. If follow is true and a remote catalogue has no copy, it returns nil
// without an error.
func openCatalogue(watcher *bot.CatalogueWatcher, follow bool) (*packages.Catalogue, error) {
	c, ok := watcher.UseCached()
	if ok || follow && watcher.Remote() {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), openTime)
	defer cancel()
	return watcher.Open(ctx)
}
