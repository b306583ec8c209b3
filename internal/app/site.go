package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/api/site"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/download"
	"github.com/larder-cdn/larder/server/waitingroom"
)

// siteOptions are the parts of a site. The parts of a role add to it before the site opens.
type siteOptions struct {
	signer    tiles.Signer // of the checkpoints that the site publishes
	pages     site.Options
	api       api.PublicOptions
	hooks     map[string]http.Handler // by path
	rooms     *waitingroom.Rooms      // in front of the site; nil for none
	waits     bool                    // requests that name a log size wait until it is here
	mayServe  func() bool             // reports whether requests may reach the site and the rooms now; nil for always
	hot       func(kvstore.Hash)      // is notified of files in demand; nil for nothing
	elsewhere server.Elsewhere        // serves what is missing here; nil for nothing
	readOnly  bool                    // nothing is written to the data folder
	publishes bool                    // the process publishes releases
	fills     bool                    // the process, or the leader of its cluster, keeps a catalogue filled
	lacking   bool                    // the data folder may lack files that were published; missing ones are 503, not 404
}

// newSiteOptions returns options of a site without hooks, to which the parts of a role add.
func newSiteOptions() *siteOptions { return &siteOptions{hooks: map[string]http.Handler{}} }

// published is the data of a site: a data folder, and the parts that follow its log.
type published struct {
	logger    *slog.Logger
	folder    *Reader
	libraries *library.Index
	follower  *server.Follower
}

// openSite opens the public site of a folder by the options o, and adds its parts to the run: access log, certificates, site
// server, counts of requests and plain server. In read-only mode it adds no part that counts requests or follows the log. Late
// requests on connections of earlier runs go to this site from now on. openSite returns the data that the site publishes.
func (r *roleRun) openSite(folder *Reader, o *siteOptions) (*published, error) {
	accessLog, err := r.openAccessLog(o.readOnly)
	if err != nil {
		return nil, err
	}
	certificates, err := r.openCertificates()
	if err != nil {
		return nil, err
	}
	made, what, err := r.newSite(folder, o, accessLog, certificates)
	if err != nil {
		return nil, err
	}
	at, err := r.supervisor.listenPublic(r.settings.MaxConnections)
	if err != nil {
		return nil, err
	}
	r.supervisor.late.succession.set(made.Handler)
	r.leaving = append(r.leaving, func() { r.drainServer(made) })
	r.addServer("site", made, at)
	if !o.readOnly {
		r.parts.Add(folder.usage().Part(r.logger))
		r.parts.Add(what.follower.Part())
	}
	return what, r.openPlainServer(certificates)
}

// newSite returns the server of the public site, which it does not start, and the data that the site publishes. The site has
// assets, also on the fast lane, contents by hash, the log, webhooks, API, pages and archives. newSite also adds to the run
// what these need: subscriptions, a readiness check, parts, and the site for the private address. accessLog may be nil.
// certificates is nil if no certificate comes from an ACME server.
func (r *roleRun) newSite(folder *Reader, o *siteOptions, accessLog *server.AccessLog, certificates *server.CertificateManager) (*server.Server, *published, error) {
	c, logger := r.settings, r.logger.With("part", "server")
	const tags server.CacheTags = true
	assets, err := server.New(server.Options{
		Store: folder.store, CacheBytes: c.Cache, SendBytes: c.Sending, Usage: folder.usage(), AccessLog: accessLog, Proxies: c.Proxies, Hot: o.hot, Elsewhere: o.elsewhere, Complete: !o.lacking, Dictionaries: c.Dictionaries,
		CacheTags: tags, Lacking: o.lacking, Page: func(path string) string { return site.FilesPageURL(c.SiteBase, path) }, Logger: logger, Registerer: r.metrics,
	})
	if err != nil {
		return nil, nil, err
	}
	r.subscribe(func(_ context.Context, fresh *settings.Settings) error {
		return assets.SetMemory(fresh.Cache, fresh.Sending)
	})
	what := &published{logger: r.logger, folder: folder}
	if what.libraries, err = folder.libraries.get(); err != nil {
		return nil, nil, err
	}
	r.supervisor.readiness.addCheck(checkLibraries(what.libraries))
	what.follower = assets.Follow(folder.log)

	stopping := make(chan struct{})
	o.api.Stopping = stopping
	public, err := r.newAPI(what, o, tags)
	if err != nil {
		return nil, nil, err
	}
	log, err := tiles.New(tiles.Options{
		Store: folder.store, Turns: o.api.Turns, Signer: o.signer, KeyList: func() ([]byte, error) { return signing.ReadKeyList(c.KeyFolder()) },
		Logger: r.logger.With("part", "log"), Registerer: r.metrics,
	})
	if err != nil {
		return nil, nil, err
	}
	contents, err := server.NewContents(server.ContentOptions{Store: folder.store, Dictionaries: c.Dictionaries, Logger: r.logger.With("part", "content"), Registerer: r.metrics})
	if err != nil {
		return nil, nil, err
	}
	if o.lacking {
		public = answers.UnavailableIfNotFound(public)
	}
	r.supervisor.private.site.Store(&public)
	handler := server.Route(assets, server.RouteContents(contents, tiles.Route(log, withHooks(o.hooks, hideOperatorPages(public)))))
	if o.rooms != nil {
		handler = o.rooms.Handler(handler)
	}
	if o.waits {
		handler = what.delayForLogSize(handler)
	}
	if o.mayServe != nil {
		handler = refuseUntil(o.mayServe, handler)
	}
	hosts := server.NewHosts(c.AssetBase, c.SiteBase, c.APIHost, tiles.Prefix, server.ContentPrefix, api.NPMPrefix)
	handler = c.Proxies.Handler(accessLog.Handler(hosts.Handler(handler))) // in front of all that looks at the client
	h := server.HTTPOptions{
		H2C: c.H2C, Proxies: c.Proxies, ProxyProtocol: c.ProxyProtocol, Logger: logger,
		Successor: r.supervisor.late.succession,
	}
	if c.FastLane {
		h.Lane = assets
		if o.rooms != nil {
			h.Lane = o.rooms.Lane(h.Lane)
		}
		if o.mayServe != nil {
			h.Lane = gatedLane{h.Lane, o.mayServe}
		}
		h.Lane = hosts.Lane(h.Lane)
	}
	if h, err = r.withTLS(h); err != nil {
		return nil, nil, err
	}
	if certificates != nil {
		h.TLS = certificates.TLS()
	}
	made := server.NewHTTPServer(handler, h)
	made.OnLeave(func() { close(stopping) }) // for responses that never end by themselves
	return made, what, nil
}

// newAPI returns the handler of API, pages and archives. It adds to the run the part that renders documents, the one that
// renders pages if the process publishes, and the one that requests known vulnerabilities if the settings say so. It sets Turns
// in the options o. tags says whether responses carry cache tags.
func (r *roleRun) newAPI(what *published, o *siteOptions, tags server.CacheTags) (http.Handler, error) {
	c, counts := r.settings, what.folder.usage()
	pages := o.pages
	pages.Library, pages.Usage, pages.AssetBase, pages.SiteBase, pages.Name = what.libraries, counts, c.AssetBase, c.SiteBase, c.Name
	pages.Renderer = what.folder.pages.renderer
	pages.Document = func() []byte { return api.OpenAPI(c.Name, c.SiteBase) }
	var err error
	if pages.Advisories, err = r.openAdvisories(o, what.libraries); err != nil {
		return nil, err
	}
	r.subscribe(func(context.Context, *settings.Settings) error {
		pages.Advisories.Recheck()
		return nil
	})
	o.api.Turns = answers.NewTurns(answers.PageProcessors()) // the other processors are for files
	pages.Turns, pages.Logger = o.api.Turns, r.logger.With("part", "site")
	made, err := site.New(pages)
	if err != nil {
		return nil, err
	}
	r.parts.Add(pages.Renderer.Part())
	if o.publishes { // elsewhere a mirror's first copy of a log would have all of its READMEs rendered
		r.parts.Add(made.Part())
	}
	downloads, err := download.New(download.Options{Store: what.folder.store, Leaving: o.api.Stopping, CacheTags: tags, Logger: r.logger.With("part", "download"), Registerer: r.metrics})
	if err != nil {
		return nil, err
	}
	a := o.api
	a.Library, a.Usage, a.AssetBase, a.SiteBase, a.APIHost, a.Self, a.Name = what.libraries, counts, c.AssetBase, c.SiteBase, c.APIHost, r.self.Address, c.Name
	a.Renderer, a.Advisories = pages.Renderer, pages.Advisories
	a.OtherCDNURLs = c.OtherCDNURLs
	a.Site, a.Downloads, a.CacheTags, a.Logger = made, downloads, tags, r.logger.With("part", "api")
	return api.Public(a), nil
}

// withHooks returns a handler that passes a request whose path is a key of hooks to that handler of an incoming webhook, and
// all other requests to rest. Paths are compared exactly.
func withHooks(hooks map[string]http.Handler, rest http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hook, ok := hooks[r.URL.Path]; ok {
			hook.ServeHTTP(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	})
}

// operatorPages are the paths of pages that only the private address has, and the beginning of the message about each.
var operatorPages = map[string]string{"/rooms": "The waiting rooms are", "/nodes": "The nodes are"}

// hideOperatorPages returns a handler for the public address that responds 404 to requests for operatorPages, also with a
// suffix such as /rooms.json or /rooms/NAME, and passes all other requests to next.
func hideOperatorPages(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for path, what := range operatorPages {
			if rest, ok := strings.CutPrefix(r.URL.Path, path); ok && (rest == "" || rest[0] == '/' || rest[0] == '.') {
				hidden := answers.Failure{Status: http.StatusNotFound, Message: what + " shown on the private address only (--private-listen)."}
				hidden.Send(w, r.Method == http.MethodHead, r.Header["Accept"])
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// openAccessLog opens the access log until the run ends, and has a reload reopen it. It returns nil and no error if the settings
// name none, or with readOnly if it cannot be opened, which it logs.
func (r *roleRun) openAccessLog(readOnly bool) (*server.AccessLog, error) {
	c := r.settings
	if c.AccessLog == "" {
		return nil, nil
	}
	opened, err := server.OpenAccessLog(server.AccessLogOptions{
		File: c.AccessLog, Format: c.AccessLogFormat, Addresses: c.AccessLogAddresses,
		Logger: r.logger.With("part", "access log"),
	})
	if err != nil && readOnly {
		r.logger.Warn("requests are not logged", "err", err)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Origin("access-log"), err)
	}
	r.reopen = append(r.reopen, opened.Reopen)
	r.parts.Add(opened.Part())
	return opened, nil
}

// indexTimeout is how long a withdrawal waits until search and pages show it; the index may still be reading all libraries. The
// site serves no file of a withdrawn release meanwhile, because requests for files look the release up.
const indexTimeout = 10 * time.Second

// awaitLog waits until the site serves files by all entries that the log has at the call. Then it waits up to indexTimeout for
// search and pages: if they take longer or fail, it only logs that. It returns the error of ctx if that ends first, else nil.
func (p *published) awaitLog(ctx context.Context) error {
	entries := p.folder.log.Checkpoint().Size
	if err := p.follower.Wait(ctx, entries); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, indexTimeout)
	defer cancel()
	if err := p.libraries.Wait(limited, entries); err != nil && ctx.Err() == nil {
		p.logger.Warn("search and lists may still show a withdrawn release for a while", "err", err)
	}
	return ctx.Err()
}
