package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/review"
)

// duties says what a process that has the data folder open does with it.
type duties struct {
	serve bool // answer on the public address
	fill  bool // run the bot
	once  bool // the bot makes a single pass, and that ends the process
}

// daemon returns the action of the commands that run until they are told to end.
func (a *app) daemon(d duties) func(context.Context, []string) error {
	return func(ctx context.Context, _ []string) error {
		out := newTerminal(a.stderr)
		least := slog.LevelInfo
		if out.interactive {
			least = slog.LevelWarn // the bars tell the rest
		}
		p := &daemon{app: a, duties: d, terminal: out, logger: a.settings.newLogger(out, least), metrics: newRegistry()}
		return p.run(ctx)
	}
}

// daemon is a process at work: what it opened on the way up and closes, in reverse, on the way down.
type daemon struct {
	*app
	duties   duties
	terminal *terminal
	logger   *slog.Logger
	metrics  *registry
	folder   *folder
	secret   string           // of webhooks; "" for none
	reviewer *review.Reviewer // nil where pull requests are not looked at
	self     *process
}

func (p *daemon) run(parent context.Context) (err error) {
	ctx, end := context.WithCancel(parent)
	defer end()
	s := p.settings

	if p.duties.serve && s.readyFile != "" {
		if err := os.Remove(s.readyFile); err != nil && !errors.Is(err, fs.ErrNotExist) { // of one that was killed
			return fmt.Errorf("couldn't remove the old --ready-file: %w", err)
		}
	}
	if p.duties.serve {
		if err := errors.Join(s.checkPurging(), s.limitConnections(p.logger), s.checkRooms()); err != nil {
			return err
		}
	}
	if p.duties.serve && p.duties.fill {
		var err error
		if p.secret, err = p.hookSecret(); err != nil {
			return err
		}
		if err := p.checkReview(); err != nil {
			return err
		}
	}
	hub, err := p.openGitHub()
	if err != nil {
		return err
	}
	// Addresses first: where one is taken, nothing else has happened yet.
	public, private, err := p.listen()
	if err != nil {
		return err
	}
	defer closeAll(public, private) // harmless where a server has closed them

	shown := newProgress(p.terminal)
	defer shown.close()
	if p.folder, err = s.openFolder(p.logger, p.metrics.counting(shown.event)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.folder.close()) }()
	p.folder.working = true
	defer p.metrics.watch(p.folder.store)()
	var filler *bot.Bot
	if p.duties.fill {
		p.folder.follows = true
		if filler, err = p.folder.bot(); err != nil {
			return err
		}
		p.metrics.backlog(filler)
		p.metrics.catalogue(p.folder.keeper)
	}
	if hub != nil {
		p.folder.pusher = p.newLogPusher(hub)
	}
	socket, err := admin.Listen(s.data)
	if err != nil {
		return err
	}
	defer socket.Close()
	// The key that may be made here is announced, so nothing is left that the settings could have wrong.
	if err := s.openSigner(p.folder, p.logger, p.metrics); err != nil {
		return err
	}
	p.self = &process{PID: os.Getpid(), Version: version(), Started: time.Now().UTC()}

	// The private listener is the last to go: it tells that the others are going.
	if private != nil {
		p.self.Private = private.Addr().String()
		server := newPrivateServer(ctx, p.metrics, p.logger)
		go server.Serve(private)          //nolint:errcheck // it ends with Close
		defer p.stop(server, time.Second) // a scrape ends by then; a profile need not
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		p.limitMemory(ctx)
		return nil
	})
	group.Go(func() error {
		p.folder.signer.Run(ctx)
		return nil
	})
	if public != nil {
		p.self.Address = s.address(public)
		if p.folder.rooms, err = p.openRooms(ctx, group); err != nil {
			end()
			return errors.Join(err, group.Wait())
		}
		if p.reviewer, err = p.reviewInside(ctx, group, filler); err != nil {
			end()
			return errors.Join(err, group.Wait())
		}
		site, err := p.newSite(filler)
		if err != nil {
			end()
			return errors.Join(err, group.Wait())
		}
		p.serve(ctx, group, site, public)
		group.Go(func() error {
			p.folder.demand().Run(ctx)
			return nil
		})
		defer func() { // when all requests have been answered, and counted
			if err := p.folder.demand().Save(); err != nil {
				p.logger.Warn("what packages were asked for lately is forgotten", "err", err)
			}
		}()
		group.Go(func() error {
			p.folder.follower.run(ctx)
			return nil
		})
		if err := p.purge(ctx, group); err != nil {
			end()
			return errors.Join(err, group.Wait())
		}
		if err := p.announce(shown); err != nil {
			end()
			return errors.Join(err, group.Wait())
		}
		if s.readyFile != "" {
			defer os.Remove(s.readyFile)
		}
	}
	scheduled, err := p.runErrands(ctx, group)
	if err != nil {
		end()
		return errors.Join(err, group.Wait())
	}
	p.serve(ctx, group, newAdminServer(ctx, p.folder.operations(p.self, s.assetBaseAt(p.self.Address)), scheduled, p.logger), socket)
	switch {
	case p.duties.once:
		group.Go(func() error {
			defer end()
			return p.fillOnce(ctx, filler)
		})
	case p.duties.fill:
		group.Go(func() error { return p.keepFilling(ctx, filler) })
		group.Go(func() error {
			p.folder.keeper.Run(ctx, filler.SetCatalogue)
			return nil
		})
		if p.folder.pusher != nil {
			group.Go(func() error {
				p.folder.pusher.Run(ctx)
				return nil
			})
		}
	}
	defer context.AfterFunc(parent, func() {
		if p.terminal.interactive {
			fmt.Fprintln(p.terminal, "Stopping; Ctrl-C once more ends it at once.")
		}
		p.logger.Info("stopping")
	})()
	return group.Wait()
}

func (p *daemon) fillOnce(ctx context.Context, filler *bot.Bot) error {
	if err := p.folder.lookOnce(ctx, filler); err != nil {
		return err
	}
	summary, err := filler.Once(ctx)
	fmt.Fprintln(p.stdout, describeSummary(summary))
	if err == nil && summary.Failed > 0 {
		err = fmt.Errorf("%d failed and will be tried again; `larder status` tells why", summary.Failed)
	}
	if ctx.Err() == nil {
		err = errors.Join(err, p.folder.catchUp(ctx))
	}
	return err
}

// fillAgain is how long a bot that could not go on rests where the process serves.
const fillAgain = time.Minute

// keepFilling runs the bot until ctx ends. A full disk stops the bot, but is no reason to stop serving: it starts again
// after a while, when somebody may have made room.
func (p *daemon) keepFilling(ctx context.Context, filler *bot.Bot) error {
	for {
		err := filler.Run(ctx)
		if err == nil || ctx.Err() != nil || !p.duties.serve {
			return err
		}
		p.logger.Error("the bot stopped; serving goes on, and the bot starts again", "err", err, "after", fillAgain)
		select {
		case <-time.After(fillAgain):
		case <-ctx.Done():
			return nil
		}
	}
}
