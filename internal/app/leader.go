package app

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/priority"
	"github.com/larder-cdn/larder/logs/gitlog"
)

// A standaloneRole publishes and signs in a process that is not a node of a cluster.
type standaloneRole struct{ server Server }

// start implements [role]: it opens the parts that publish and sign without a cluster, and adds them to the run.
func (o standaloneRole) start(ctx context.Context, r *roleRun) error {
	return startPublishing(ctx, r, o.server, func() (*Writer, publisher, error) {
		w, err := r.openDataFolder(ctx, o.server.writerConfig(r), refuseReplacement)
		return w, standalone{}, err
	})
}

// A publisher is the part of a publishing role that serves the other nodes of its cluster, if any.
type publisher interface {
	// addClusterParts adds to the run the parts by which other nodes receive what the process signs. It may add to the options of
	// the site, which is opened afterwards. The log's signer is open. f is nil without a bot.
	addClusterParts(r *roleRun, site *siteOptions, f *filler) error
	// rooms returns how the nodes share the state and the settings of waiting rooms.
	rooms() roomsCluster
	// localCommands returns the operations, and the handler of the schedule, for commands on this machine. all and schedule are
	// those of the process; all is not changed.
	localCommands(all operations, schedule http.Handler) (operations, http.Handler)
	// serveOtherNodes serves the other nodes some of the operations in all, and the contents of f to recompress; f is nil without
	// a bot.
	serveOtherNodes(r *roleRun, all operations, f *filler)
}

// standalone is the publisher of a process that is not a node of a cluster.
type standalone struct{}

// addClusterParts implements [publisher]. It does nothing: there are no other nodes.
func (standalone) addClusterParts(*roleRun, *siteOptions, *filler) error { return nil }

// rooms implements [publisher]: it returns a cluster of no other nodes, so that waiting rooms are shared with none.
func (standalone) rooms() roomsCluster { return standaloneRooms{} }

// serveOtherNodes implements [publisher]. It does nothing: there are no other nodes.
func (standalone) serveOtherNodes(*roleRun, operations, *filler) {}

// localCommands implements [publisher]: it returns its arguments.
func (standalone) localCommands(all operations, schedule http.Handler) (operations, http.Handler) {
	return all, schedule
}

// writerConfig returns how the run opens the data folder for writing: the outbox sends what is due; if s.Fill is set, the bot
// may start before a remote catalogue was read; the bot's events are counted in new metrics of the run and passed to s.Events;
// and with s.Serve recompression leaves a processor to the site. It is called once in a run.
func (s Server) writerConfig(r *roleRun) writerConfig {
	c := writerConfig{
		open:   openOptions{working: true, address: r.self.Address},
		follow: s.Fill, events: sources.CountEvents(r.metrics, s.Events),
	}
	if s.Serve {
		c.encoders = max(1, priority.Processors()-1)
	}
	return c
}

// startPublishing opens the parts of a role that publishes and signs, and adds them to the run: signer, outbox and commands; as
// s says, site and bot; and as the settings say, scheduled backups. Then it reports that the process is ready. open opens the
// data folder and joins the cluster, if any; its publisher serves the other nodes.
func startPublishing(ctx context.Context, r *roleRun, s Server, open func() (*Writer, publisher, error)) error {
	secret, repository, err := s.readPublishingSettings(r)
	if err != nil {
		return err
	}
	if s.Serve {
		if err := errors.Join(r.asReadOnly(r.removeReadyFile()), checkLogKey(r.settings)); err != nil {
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
	if err := w.openSigner(r.logger, r.metrics); err != nil { // creates the key, so nothing that the settings may have wrong comes later
		return r.asReadOnly(err)
	}
	r.parts.Add(w.signature.signer.Part())
	site := newSiteOptions()
	site.signer, site.publishes, site.fills = w.signature.signer, s.Fill, s.Fill
	if err := p.addClusterParts(r, site, f); err != nil {
		return err
	}
	var pusher *gitlog.Pusher
	if repository != nil {
		pusher = r.newLogPusher(repository, w)
	}
	if s.Serve {
		if err := s.servePublished(ctx, r, w, f, site, p.rooms(), secret); err != nil {
			return err
		}
	}
	if err := r.addOutbox(w.folder); err != nil {
		return err
	}
	if err := s.serveCommands(r, socket, w, p, f); err != nil {
		return err
	}
	if r.settings.Backup != "" && !s.Once {
		r.parts.AddEarly(r.backupPart(w))
	}
	s.addBot(r, w, f, pusher)
	return r.markReady(s.Stopping)
}

// readPublishingSettings returns the secret of incoming webhooks, and the GitHub client that pushes the log. secret is "" if
// the settings have none, or if s does not both serve and fill; repository is nil if the settings name none, or if s does not
// fill. Errors are mistakes in these settings.
func (s Server) readPublishingSettings(r *roleRun) (secret string, repository *git.GitHubClient, err error) {
	if s.Serve && s.Fill {
		if secret, err = r.settings.HookSecret(); err != nil {
			return "", nil, err
		}
	}
	if s.Fill && r.settings.LogRepository != (gitlog.Remote{}) {
		repository, err = newLogRepositoryClient(r.settings, r.logger)
	}
	return secret, repository, err
}

// servePublished opens the public site with its waiting rooms and the options site, adds the operations that withdraw releases
// and the purge hook, and has the run announce the site once all parts work. f adds what the bot has for visitors; it is nil
// without a bot. secret authenticates incoming webhooks, "" for none.
func (s Server) servePublished(ctx context.Context, r *roleRun, w *Writer, f *filler, site *siteOptions, rooms roomsCluster, secret string) error {
	if f != nil {
		if err := f.addToSite(r, w.folder, site, secret); err != nil {
			return err
		}
	}
	what, err := s.openSiteWithRooms(ctx, r, w.folder, site, roomsOptions{cluster: rooms, webhooks: true})
	if err != nil {
		return err
	}
	r.console.addOperations(withdrawals{w, what.awaitLog, r.settings.PurgeHook != ""}.addOperations)
	if err := r.addPurgeHook(ctx, w.folder); err != nil {
		return err
	}
	s.announceSite(r, w.folder)
	return nil
}

// serveCommands serves operations to the commands on this machine, over socket, the admin socket, and in a cluster to the other
// nodes. f is nil without a bot.
func (s Server) serveCommands(r *roleRun, socket net.Listener, w *Writer, p publisher, f *filler) error {
	e, err := w.folder.outbox.get()
	if err != nil {
		return err
	}
	all := r.publishingOperations(w)
	local, schedule := p.localCommands(all, e.Schedule.Handler(schedulePath))
	r.serveAdmin(socket, w.folder, local, schedule, s.checkSettings)
	p.serveOtherNodes(r, all, f)
	return nil
}

// addBot adds the part that runs the bot of f: for a single pass if s.Once is set, else until the role ends, with the part that
// follows its catalogue. f is nil without a bot; then s.Once must not be set, and addBot does nothing. pusher pushes the log to
// GitHub, after the single pass or all the time; it may be nil.
func (s Server) addBot(r *roleRun, w *Writer, f *filler, pusher *gitlog.Pusher) {
	if s.Once {
		push := func(ctx context.Context) error {
			if pusher == nil {
				return nil
			}
			return errors.Join(w.signature.signer.Sign(), pusher.CatchUp(ctx))
		}
		r.parts.Add(parts.Part{Name: "single pass", Run: func(ctx context.Context) error { return f.runOnce(ctx, s.Filled, push) }})
		return
	}
	if f == nil {
		return
	}
	r.parts.AddEarly(parts.Part{Name: "filling", Run: func(ctx context.Context) error { return f.runBot(ctx, s.Serve, r.logger) }})
	r.parts.AddEarly(f.watcher.Part(f.bot.SetCatalogue))
	if pusher != nil {
		r.parts.AddEarly(pusher.Part())
	}
}
