package app

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/api/site"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/client"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/accesslog"
	"github.com/larder-cdn/larder/server/acme"
	"github.com/larder-cdn/larder/server/content"
	"github.com/larder-cdn/larder/server/download"
	"github.com/larder-cdn/larder/server/lane"
	"github.com/larder-cdn/larder/server/purge"
)

// serving is a running process that serves. Other parts add to its site before that starts.
type serving struct {
	*running
	lacking       *Shortfall // what the folder lacks, of a process that only serves what is left
	unreadable    bool       // whether nothing at all can be read of it
	signed        tiles.Signer
	pages         site.Options
	api           api.PublicOptions
	hooks         map[string]http.Handler // by path
	inFront       []func(http.Handler) http.Handler
	inFrontOfLane []func(lane.Handler) lane.Handler
	hot           func(kvstore.Hash) // hears which files are in demand
	elsewhere     server.Elsewhere   // has what is not here; nil for nothing

	node         *clustered     // nil where the process is no node of a cluster
	shared       *sharedRooms   // nil where the process has its rooms by itself
	tells        bool           // whether webhooks hear of waiting rooms: the process sends
	accessLog    *accesslog.Log // nil for none
	libraries    *library.Index
	follower     *server.Follower
	certificates *acme.Manager // nil where none come from an ACME server
}

func newServing(s *running) *serving { return &serving{running: s, hooks: map[string]http.Handler{}} }

// server answers on the public address.
func (s *serving) server() part {
	return s.answering("site", func(context.Context) (_ *server.Server, at []net.Listener, err error) {
		if s.site, err = s.open(); err == nil {
			at, err = s.lasting.listen(s.settings.MaxConnections)
		}
		if err == nil {
			s.lasting.succession.set(s.site.Handler)
		}
		return s.site, at, err
	})
}

// open makes what answers: assets and the fast lane, the log, webhooks, API, pages and archives.
func (s *serving) open() (*server.Server, error) {
	logger := s.logger.With("part", "server")
	tags := purge.TagHeaders(s.settings.CacheTags)
	assets, err := server.New(server.Options{
		Store: s.folder.store, CacheBytes: s.settings.Cache, SendBytes: s.settings.Sending, Usage: s.folder.usage(), AccessLog: s.accessLog, Proxies: s.settings.Proxies, Hot: s.hot, Elsewhere: s.elsewhere, Complete: s.lacking == nil,
		CacheTags: tags, Lacking: s.lacking != nil, Page: func(path string) string { return site.OfFiles(s.settings.SiteBase, path) }, Logger: logger, Registerer: s.metrics,
	})
	if err != nil {
		return nil, err
	}
	if s.libraries, err = s.folder.libraries.get(); err != nil {
		return nil, err
	}
	s.follower = assets.Follow(s.folder.log)

	stopping := make(chan struct{})
	s.api.Stopping = stopping
	public, err := s.openAPI(tags)
	if err != nil {
		return nil, err
	}
	log, err := tiles.New(tiles.Options{Store: s.folder.store, Turns: s.api.Turns, Signer: s.signed, Logger: s.logger.With("part", "log"), Registerer: s.metrics})
	if err != nil {
		return nil, err
	}
	contents, err := content.New(content.Options{Store: s.folder.store, Logger: s.logger.With("part", "content"), Registerer: s.metrics})
	if err != nil {
		return nil, err
	}
	if s.lacking != nil {
		public = answers.Lacking(public)
	}
	s.lasting.site.Store(&public)
	handler := server.Route(assets, content.Route(contents, tiles.Route(log, withHooks(s.hooks, forAll(public)))))
	for _, wrap := range s.inFront {
		handler = wrap(handler)
	}
	hosts := server.NewHosts(s.settings.AssetBase, s.settings.SiteBase, s.settings.APIHost, tiles.Prefix, content.Prefix)
	handler = s.settings.Proxies.Handler(s.accessLog.Handler(hosts.Handler(handler))) // in front of all that looks at the client
	o := server.HTTPOptions{
		H2C: s.settings.H2C, MaxConnections: s.settings.MaxConnections, Proxies: s.settings.Proxies, ProxyProtocol: s.settings.ProxyProtocol, Logger: logger,
		Successor: s.lasting.succession,
	}
	if s.settings.FastLane {
		o.Lane = assets
		for _, wrap := range s.inFrontOfLane {
			o.Lane = wrap(o.Lane)
		}
		o.Lane = hosts.Lane(o.Lane)
	}
	if o, err = s.withTLS(o); err != nil {
		return nil, err
	}
	if s.certificates != nil {
		o.TLS = s.certificates.TLS()
	}
	made := server.NewHTTPServer(handler, o)
	made.OnLeave(func() { close(stopping) }) // what never ends by itself
	return made, nil
}

// openAPI makes API, pages and archives.
func (s *serving) openAPI(tags purge.TagHeaders) (http.Handler, error) {
	c := s.settings
	s.pages.Library, s.pages.Usage, s.pages.AssetBase, s.pages.SiteBase, s.pages.Name = s.libraries, s.folder.usage(), c.AssetBase, c.SiteBase, c.Name
	s.pages.Document = func() []byte { return api.OpenAPI(c.Name, c.SiteBase) }
	if c.Vulnerabilities != "" {
		var err error
		if s.pages.Advisories, err = library.OpenAdvisories(c.Vulnerabilities, s.logger.With("part", "site")); err != nil {
			return nil, err
		}
	}
	turns := client.NewTurns(client.Processors()) // the other processors are for files
	s.pages.Turns, s.api.Turns = turns, turns
	s.pages.Logger = s.logger.With("part", "site")
	pages, err := site.New(s.pages)
	if err != nil {
		return nil, err
	}
	downloads, err := download.New(download.Options{Store: s.folder.store, Leaving: s.api.Stopping, CacheTags: tags, Logger: s.logger.With("part", "download"), Registerer: s.metrics})
	if err != nil {
		return nil, err
	}
	o := s.api
	o.Library, o.Usage, o.AssetBase, o.SiteBase, o.APIHost, o.Self, o.Name = s.libraries, s.folder.usage(), c.AssetBase, c.SiteBase, c.APIHost, s.self.Address, c.Name
	o.Site, o.Downloads, o.CacheTags, o.Logger = pages, downloads, tags, s.logger.With("part", "api")
	return api.Public(o), nil
}

// withHooks puts webhooks in front of what else answers.
func withHooks(hooks map[string]http.Handler, rest http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hook, ok := hooks[r.URL.Path]; ok {
			hook.ServeHTTP(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	})
}

// forOperator says where pages are, and answers, that only the operator sees, and what they show.
var forOperator = map[string]string{"/rooms": "The waiting rooms are", "/nodes": "The nodes are"}

// forAll has them not be there.
func forAll(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for path, what := range forOperator {
			if rest, ok := strings.CutPrefix(r.URL.Path, path); ok && (rest == "" || rest[0] == '/' || rest[0] == '.') {
				hidden := answers.Failure{Status: http.StatusNotFound, Message: what + " shown on the private address only (--private-listen)."}
				hidden.Send(w, r.Method == http.MethodHead, r.Header["Accept"])
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// usage counts what files are asked for.
func (s *serving) usage() part {
	return part{
		name: "usage",
		run:  func(ctx context.Context) error { return until(s.folder.usage().Run)(ctx) },
		stop: func() error { // when all requests have been answered, and counted
			if err := s.folder.usage().Save(); err != nil {
				s.logger.Warn("the last minute's counts of requests are lost", "err", err)
			}
			return nil
		},
	}
}

// logging writes a line for each request, where that is asked for.
func (s *serving) logging() part {
	return part{
		name: "access log",
		start: func(context.Context) (err error) {
			c := s.settings
			s.accessLog, err = accesslog.Open(accesslog.Options{
				File: c.AccessLog, Format: c.AccessLogFormat, Addresses: c.AccessLogAddresses, Sample: c.AccessLogSample,
				Logger: s.logger.With("part", "access log"),
			})
			if err != nil {
				return fmt.Errorf("%s: %w", c.Origin("access-log"), err)
			}
			s.reopen = s.accessLog.Reopen
			return nil
		},
		stop: func() error { return s.accessLog.Close() },
	}
}

// following has what is kept in memory follow the log.
func (s *serving) following() part {
	return part{name: "follower", run: func(ctx context.Context) error { return until(s.follower.Run)(ctx) }}
}

// indexPatience is how long a command waits for search and pages, which may still be reading all libraries. Nothing that
// is withdrawn is told by them as if it were not: releases are looked up.
const indexPatience = 10 * time.Second

// inForce returns when what is served goes by all that is in the log.
func (s *serving) inForce(ctx context.Context) error {
	entries := s.folder.log.Checkpoint().Size
	if err := s.follower.Wait(ctx, entries); err != nil {
		return err
	}
	patient, cancel := context.WithTimeout(ctx, indexPatience)
	defer cancel()
	if err := s.libraries.Wait(patient, entries); err != nil && ctx.Err() == nil {
		s.logger.Warn("search and lists may show for a while what was withdrawn", "err", err)
	}
	return ctx.Err()
}

// announce tells that the site serves.
func (s *serving) announce(context.Context) error {
	if s.lacking != nil {
		s.Serving(s.self.Address, nil)
		return nil
	}
	s.Serving(s.self.Address, func() (string, error) { return library.Example(s.folder.store) })
	return nil
}
