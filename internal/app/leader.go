package app

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot/github"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/gitlog"
)

// startLeader starts the role of a process that publishes and signs: one that is alone, or the leader of a cluster.
func startLeader(ctx context.Context, r *roleRun, s Server, p plan) error {
	secret, repository, err := s.checkLeader(r)
	if err != nil {
		return err
	}
	if s.Serve {
		if err := r.removeReadyFile(); err != nil {
			return err
		}
	}
	w, leads, err := s.openPublisher(ctx, r, p)
	if err != nil {
		return err
	}
	var f *filler
	if s.Fill {
		if f, err = r.openFiller(w); err != nil {
			return err
		}
	}
	socket, err := r.openAdminSocket()
	if err != nil {
		return err
	}
	if err := r.addSigner(w); err != nil { // creates the key, so nothing that the settings may have wrong comes later
		return err
	}
	site := newSiteOptions()
	site.signer = w.signature.signer
	if leads != nil {
		if err := leads.publish(r, site); err != nil {
			return err
		}
	}
	var pusher *gitlog.Pusher
	if repository != nil {
		pusher = r.openPusher(repository, w)
	}
	r.addMemoryLimit(s.Serve)
	r.watchDisk(w.folder.store)
	if s.Serve {
		if err := s.serveLeader(ctx, r, p, leaderSite{writer: w, filler: f, node: leads.asNode(), secret: secret, options: site}); err != nil {
			return err
		}
	}
	if err := r.addErrands(w.folder); err != nil {
		return err
	}
	if err := s.answerCommands(r, socket, w, leads, f); err != nil {
		return err
	}
	s.addBot(r, w, f, pusher)
	return r.finish(s.Stopping)
}

// checkLeader returns the secret of webhooks, "" for none, and the client of GitHub that the log is pushed by, nil for none.
func (s Server) checkLeader(r *roleRun) (secret string, repository *github.Client, err error) {
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

// writing returns how a role by a plan opens the data folder.
func (s Server) writing(r *roleRun, p plan) writing {
	node := s.isNode(r.settings)
	return writing{
		open:   openOptions{working: true, follows: node && p.lead == nil, address: r.self.Address},
		follow: s.Fill, events: countEvents(r.metrics, s.Events), node: node,
	}
}

// openPublisher opens the data folder, and has a node of a cluster lead; leads is nil for a process that is alone.
func (s Server) openPublisher(ctx context.Context, r *roleRun, p plan) (w *Writer, leads *clusterLeader, err error) {
	o := s.writing(r, p)
	if !o.node {
		w, err = r.openDataFolder(ctx, o, p.again, keepShortfall)
		return w, nil, err
	}
	b, err := bucket.Open(r.settings.Bucket, r.settings.BucketEndpoint, r.settings.BucketRegion)
	if err != nil {
		return nil, nil, err
	}
	o.squeezed = func(h kvstore.Hash) { leads.shareEncoding(h) } // the bot, which calls it, is opened later
	w, err = r.openDataFolder(ctx, o, p.again, func(short *Shortfall) error { return r.setAside(b, short) })
	if err == nil {
		leads, err = openClusterLeader(ctx, r, w, b, *p.lead)
	}
	return w, leads, err
}

// leaderSite is what the site of a leader is made from.
type leaderSite struct {
	writer  *Writer
	filler  *filler // nil where no bot fills the folder
	node    *clusterNode
	secret  string // of webhooks; "" for none
	options *siteOptions
}

// serveLeader serves what the leader publishes.
func (s Server) serveLeader(ctx context.Context, r *roleRun, p plan, l leaderSite) error {
	if s.hasRooms(r.settings) {
		rooms := &roomsSite{settings: r.settings, logger: r.logger, run: r, folder: l.writer.folder, site: l.options, node: l.node, tells: true}
		if err := rooms.open(ctx); err != nil {
			return err
		}
	}
	if f := l.filler; f != nil {
		if err := f.showOnSite(r, l.options, l.secret); err != nil {
			return err
		}
		if err := r.addReviewer(f, l.writer.folder, l.options, l.secret); err != nil {
			return err
		}
		if err := r.addFallback(f, l.writer.folder, l.options); err != nil {
			return err
		}
	}
	what, err := r.openSite(l.writer.folder, l.options)
	if err != nil {
		return err
	}
	r.console.addOperations(withdrawals{l.writer, what.awaitLog, r.settings.PurgeHook != ""}.operations)
	if err := r.addPurgeHook(l.writer.folder); err != nil {
		return err
	}
	s.announce(r, p, l.writer.folder)
	return r.addReadyFile()
}

// announce reports that the site serves. A node of a cluster reports it once, in its first run.
func (s Server) announce(r *roleRun, p plan, folder *Reader) {
	if !p.again || !s.isNode(r.settings) {
		s.Serving(r.self.Address, func() (string, error) { return library.Example(folder.store) })
	}
}

// answerCommands answers commands on this machine, and in a cluster the other nodes.
func (s Server) answerCommands(r *roleRun, socket net.Listener, w *Writer, leads *clusterLeader, f *filler) error {
	e, err := w.folder.errands.get()
	if err != nil {
		return err
	}
	all, schedule := r.leaderOperations(w), e.schedule.Handler(schedulePath)
	if leads == nil {
		r.serveAdmin(socket, w.folder, all, schedule, s.check)
		return nil
	}
	all = leads.saving(all)
	forNodes := operations{}
	for _, name := range forwarded {
		forNodes[name] = all[name]
	}
	reportLogSize(all)
	r.serveAdmin(socket, w.folder, all, leads.savingHTTP(schedule), s.check)
	besides := map[string]http.Handler{}
	if f != nil {
		besides[squeezePath] = leads.lending(f.bot)
	}
	leads.node.serveNodes(r, forNodes, besides)
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
	r.parts.AddEarly(parts.Part{Name: "catalogue", Run: parts.Until(f.keepCatalogue)})
	if pusher != nil {
		r.parts.AddEarly(parts.Part{Name: "pushing", Run: parts.Until(pusher.Run)})
	}
}
