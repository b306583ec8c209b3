package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/catalogue"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/server/demand"
	"github.com/larder-cdn/larder/server/waitingroom"
)

// folder is an open data folder, which no other process can open meanwhile:
//
//	store/      the key-value store
//	catalogue/  the last good catalogue, where that is from a git repository
//	tmp/        downloads and the like; emptied when the folder is opened
//	admin.sock  where the process that has it open listens for commands
type folder struct {
	dir   string
	store *kvstore.Store
	log   *logs.Log
	// bot makes the bot on first use: reading npm's configuration and the catalogue is not for commands that only look.
	bot  func() (*bot.Bot, error)
	made *bot.Bot // by bot
	// keeper keeps the catalogue, from bot on; who follows it takes what changes.
	keeper  *catalogue.Keeper
	follows bool
	// demand reads, on first use, how much each package is asked for.
	demand func() *demand.Demand
	// libraries begins to read all libraries on first use, and follows the log until the folder is closed.
	libraries func() (*library.Index, error)
	// errands opens, on first use, what is to be sent.
	errands     func() (*errands, error)
	ran         *errands           // by errands
	working     bool               // whether this is a process at work, which sends what is due
	stopReading func()             // what libraries began; nil where it has not
	follower    *follower          // of who serves; nil where nobody does
	purging     bool               // whether this process calls the purge hook
	signer      *signing.Signer    // of who signs the log; nil where nobody does
	pusher      *logPusher         // of who pushes the log to GitHub; nil where nobody does
	unsigned    string             // why there is no signer although the log was signed before
	rooms       *waitingroom.Rooms // of who serves; nil where there are none
	busy        sync.WaitGroup     // operations under way
}

func storeDir(data string) string { return filepath.Join(data, "store") }
func (f *folder) tmp() string     { return filepath.Join(f.dir, "tmp") }

// openFolder opens the data folder of the settings, and makes it where there is none. The bot's events go to events.
func (s *settings) openFolder(logger *slog.Logger, events func(bot.Event)) (*folder, error) {
	if err := os.MkdirAll(s.data, 0o700); err != nil {
		return nil, fmt.Errorf("couldn't make the data folder: %w; choose another with --data", err)
	}
	f, err := s.open(kvstore.Options{CacheBytes: s.storeCache}, logger)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.RemoveAll(f.tmp()), os.Mkdir(f.tmp(), 0o700)); err != nil {
		return nil, errors.Join(fmt.Errorf("couldn't empty the folder for temporary files: %w", err), f.close())
	}
	f.bot = sync.OnceValues(func() (_ *bot.Bot, err error) {
		f.made, err = s.newBot(f, logger, events)
		return f.made, err
	})
	return f, nil
}

// openFolderReadOnly opens a data folder that has a store, for a look at it.
func (s *settings) openFolderReadOnly(logger *slog.Logger) (*folder, error) {
	if err := s.needStore(); err != nil {
		return nil, err
	}
	f, err := s.open(kvstore.Options{ReadOnly: true, CacheBytes: s.storeCache}, logger)
	if err != nil {
		return nil, err
	}
	f.bot = func() (*bot.Bot, error) { return nil, errors.New("the store was opened to be read only") }
	return f, nil
}

func (s *settings) open(o kvstore.Options, logger *slog.Logger) (*folder, error) {
	o.Logger = logger.With("part", "store")
	store, err := kvstore.Open(storeDir(s.data), o)
	if errors.Is(err, kvstore.ErrLocked) {
		return nil, fmt.Errorf("another larder process has %s open; wait until it is done, stop it, or choose another folder with --data", s.data)
	}
	if err != nil {
		return nil, err
	}
	log, err := logs.Open(store)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	f := &folder{dir: s.data, store: store, log: log}
	f.demand = sync.OnceValue(func() *demand.Demand { return demand.Open(demand.Options{Store: store, Logger: logger}) })
	f.libraries = sync.OnceValues(func() (*library.Index, error) { return f.read(logger.With("part", "library")) })
	f.errands = sync.OnceValues(func() (_ *errands, err error) {
		f.ran, err = f.openErrands(logger.With("part", "errands"))
		return f.ran, err
	})
	return f, nil
}

func (f *folder) read(logger *slog.Logger) (*library.Index, error) {
	index, err := library.New(library.Options{Store: f.store, Log: f.log, Popularity: f.demand().Of, Logger: logger})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := index.Run(ctx); err != nil {
			logger.Error("what is published from now on does not show in search and pages; start again", "err", err)
		}
	}()
	f.stopReading = func() { cancel(); <-done }
	return index, nil
}

// close waits for the operations under way, whose contexts must have ended, and closes the folder. Whoever has the index
// of libraries must be done with it.
func (f *folder) close() error {
	f.busy.Wait()
	if f.stopReading != nil {
		f.stopReading()
	}
	if f.made != nil {
		f.made.Close()
	}
	var unsigned error
	if f.signer != nil {
		unsigned = f.signer.Close()
	}
	var undone error
	if f.ran != nil {
		undone = f.ran.close()
	}
	return errors.Join(unsigned, undone, f.store.Close())
}

func (s *settings) newBot(f *folder, logger *slog.Logger, events func(bot.Event)) (*bot.Bot, error) {
	logger = logger.With("part", "bot")
	config, err := npm.LoadConfig(".")
	if err != nil {
		return nil, err
	}
	getter, err := fetch.New(fetch.Options{
		UserAgent:   "larder/" + version(),
		Allow:       s.allowHosts,
		Concurrency: s.downloads + bot.PollsAtOnce, // of which the bot itself keeps count
		Logger:      logger,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.origin("allow-host"), err)
	}
	repositories, err := s.newGit(getter, logger)
	if err != nil {
		return nil, err
	}
	if f.keeper, err = s.newKeeper(f.catalogueDir(), repositories, logger); err != nil {
		return nil, err
	}
	first, err := f.openCatalogue()
	if err != nil {
		return nil, err
	}
	errands, err := f.errands()
	if err != nil {
		return nil, err
	}
	return bot.New(bot.Options{
		Runtime:     errands.runtime,
		Store:       f.store,
		Log:         f.log,
		Catalogue:   first,
		Npm:         npm.NewClient(config, getter, npm.Options{}),
		Git:         repositories,
		Releases:    s.releases,
		Interval:    s.interval,
		Downloads:   s.downloads,
		MemoryBytes: s.memory,
		TempDir:     filepath.Join(f.tmp(), "bot"),
		Logger:      logger,
		Events:      events,
	})
}

// needStore returns an error where the data folder has no store, for commands that have nothing to do in a new one.
func (s *settings) needStore() error {
	if _, err := os.Stat(storeDir(s.data)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s holds no store; name the data folder with --data, or fill this one with `larder up`", s.data)
	}
	return nil
}
