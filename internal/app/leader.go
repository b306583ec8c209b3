package app

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/logs/gitlog"
)

// An aloneRole publishes and signs in no cluster.
type aloneRole struct{ server Server }

func (o aloneRole) start(ctx context.Context, r *roleRun) error {
	return startPublishing(ctx, r, o.server, func() (*Writer, publisher, error) {
		w, err := r.openDataFolder(ctx, o.server.writing(r), refuseReplacement)
		return w, alone{}, err
	})
}

// A publisher is what a process that publishes does for the other nodes of its cluster.
type publisher interface {
	// publish has the other nodes get what the process signs. It adds parts to the run.
	publish(r *roleRun, site *siteOptions) error
	// rooms returns what shares the waiting rooms.
	rooms() roomsCluster
	// commands returns the operations and the schedule for commands on this machine.
	commands(all operations, schedule http.Handler) (operations, http.Handler)
	// serveOthers serves the other nodes some of the operations, and contents to recompress for f, nil for no bot.
	serveOthers(r *roleRun, all operations, f *filler)
}

// alone is the publisher of a process that is no node of a cluster.
type alone struct{}

func (alone) publish(*roleRun, *siteOptions) error      { return nil }
func (alone) rooms() roomsCluster                       { return roomsAlone{} }
func (alone) serveOthers(*roleRun, operations, *filler) {}
func (alone) commands(all operations, schedule http.Handler) (operations, http.Handler) {
	return all, schedule
}

// writing returns how a role that publishes opens the data folder.
func (s Server) writing(r *roleRun) writing {
	return writing{
		open:   openOptions{working: true, address: r.self.Address},
		follow: s.Fill, events: bot.CountEvents(r.metrics, s.Events),
	}
}

// startPublishing starts a role that publishes and signs. open opens the data folder.
func startPublishing(ctx context.Context, r *roleRun, s Server, open func() (*Writer, publisher, error)) error {
	secret, repository, err := s.checkPublishing(r)
	if err != nil {
		return err
	}
	if s.Serve {
		if err := errors.Join(r.asReadOnly(r.removeReadyFile()), checkKey(r.settings)); err != nil {
			return err
		}
	}
	w, p, err := open()
	if err != nil {
		return err
	}
	var f *filler
	if s.Fill {
		if f, err = r.openFiller(w); err != nil {
			return err
		}
	}
	socket, err := s.openBase(r, w.folder)
	if err != nil {
		return err
	}
	if err := r.addSigner(w); err != nil { // creates the key, so nothing that the settings may have wrong comes later
		return err
	}
	site := newSiteOptions()
	site.signer, site.publishes = w.signature.signer, s.Fill
	if err := p.publish(r, site); err != nil {
		return err
	}
	var pusher *gitlog.Pusher
	if repository != nil {
		pusher = r.openPusher(repository, w)
	}
	if s.Serve {
		if err := s.servePublished(ctx, r, w, f, site, p.rooms(), secret); err != nil {
			return err
		}
	}
	if err := r.addOutbox(w.folder); err != nil {
		return err
	}
	if err := s.answerCommands(r, socket, w, p, f); err != nil {
		return err
	}
	s.addBot(r, w, f, pusher)
	return r.finish(s.Stopping)
}

// checkPublishing returns the secret of webhooks, "" for none, and the client of GitHub that the log is pushed by, nil for none.
func (s Server) checkPublishing(r *roleRun) (secret string, repository *git.GitHubClient, err error) {
	if s.Serve && s.Fill {
		if secret, err = r.settings.HookSecret(); err != nil {
			return "", nil, err
		}
	}
	if s.Fill && r.settings.LogRepository != (gitlog.Remote{}) {
		repository, err = logRepositoryClient(r.settings, r.logger)
	}
	return secret, repository, err
}

// servePublished serves what the process publishes, and what f, nil for no bot, has for visitors.
func (s Server) servePublished(ctx context.Context, r *roleRun, w *Writer, f *filler, site *siteOptions, rooms roomsCluster, secret string) error {
	if f != nil {
		if err := f.addToSite(r, w.folder, site, secret); err != nil {
			return err
		}
	}
	what, err := s.openSite(ctx, r, w.folder, site, roomsOptions{cluster: rooms, webhooks: true})
	if err != nil {
		return err
	}
	r.console.addOperations(withdrawals{w, what.awaitLog, r.settings.PurgeHook != ""}.operations)
	if err := r.addPurgeHook(w.folder); err != nil {
		return err
	}
	return s.announce(r, w.folder)
}

// answerCommands answers commands on this machine, and in a cluster the other nodes.
func (s Server) answerCommands(r *roleRun, socket net.Listener, w *Writer, p publisher, f *filler) error {
	e, err := w.folder.outbox.get()
	if err != nil {
		return err
	}
	all := r.leaderOperations(w)
	local, schedule := p.commands(all, e.Schedule.Handler(schedulePath))
	r.serveAdmin(socket, w.folder, local, schedule, s.check)
	p.serveOthers(r, all, f)
	return nil
}

// addBot runs the bot: once, until the role ends, or not at all.
func (s Server) addBot(r *roleRun, w *Writer, f *filler, pusher *gitlog.Pusher) {
	if s.Once {
		push := func(ctx context.Context) error {
			if pusher == nil {
				return nil
			}
			return errors.Join(w.signature.signer.Sign(), pusher.CatchUp(ctx))
		}
		r.parts.Add(parts.Part{Name: "single pass", Run: func(ctx context.Context) error { return f.passOnce(ctx, s.Filled, push) }})
		return
	}
	if f == nil {
		return
	}
	r.parts.AddEarly(parts.Part{Name: "filling", Run: func(ctx context.Context) error { return f.keepFilling(ctx, s.Serve, r.logger) }})
	r.parts.AddEarly(f.keeper.Part(f.bot.SetCatalogue))
	if pusher != nil {
		r.parts.AddEarly(pusher.Part())
	}
}
