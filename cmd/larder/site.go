package main

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/api/site"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/cachetag"
	"github.com/larder-cdn/larder/server/download"
)

// newSite returns what answers on the public address, which p.self knows already, over the open folder. filler, where
// there is one, hears which files are in demand.
func (p *daemon) newSite(filler *bot.Bot) (*server.Server, error) {
	s := p.settings
	logger := p.logger.With("part", "server")
	options := server.Options{Store: p.folder.store, CacheBytes: s.cache, SendBytes: s.sending, Demand: p.folder.demand(), CacheTags: cachetag.Headers(s.cacheTags), Logger: logger, Registerer: p.metrics}
	if filler != nil {
		options.Hot = filler.Hot
	}
	assets, err := server.New(options)
	if err != nil {
		return nil, err
	}
	libraries, err := p.folder.libraries()
	if err != nil {
		return nil, err
	}
	p.folder.follower = newFollower(p.folder, assets.Forget, libraries, logger)
	pageOptions := site.Options{
		Library: libraries, AssetBase: s.assetBase, SiteBase: s.siteBase, Name: s.name,
		Document: func() []byte { return api.OpenAPI(s.name, s.siteBase) }, Logger: p.logger.With("part", "site"),
	}
	if p.folder.rooms != nil {
		pageOptions.Rooms = p.folder.rooms
	}
	if p.folder.catalogueState() != nil && !p.folder.keeper.Static() {
		pageOptions.Catalogue = p.folder.shownCatalogue
	}
	if filler != nil { // else this process has no business with upstreams
		if pageOptions.Draft, err = s.newDrafts(p.logger.With("part", "site")); err != nil {
			return nil, err
		}
	}
	pages, err := site.New(pageOptions)
	if err != nil {
		return nil, err
	}
	downloads, err := download.New(download.Options{Store: p.folder.store, CacheTags: cachetag.Headers(s.cacheTags), Logger: p.logger.With("part", "download"), Registerer: p.metrics})
	if err != nil {
		return nil, err
	}
	stopping := make(chan struct{})
	publicOptions := api.PublicOptions{
		Library: libraries, AssetBase: s.assetBase, SiteBase: s.siteBase, APIHost: s.apiHost, Self: p.self.Address, Name: s.name,
		Site: pages, Downloads: downloads, CacheTags: cachetag.Headers(s.cacheTags), Stopping: stopping, Logger: p.logger.With("part", "api"),
	}
	if p.folder.rooms != nil {
		publicOptions.Rooms = p.folder.rooms
	}
	public := api.Public(publicOptions)
	httpOptions := server.HTTPOptions{H2C: s.h2c, MaxConnections: s.maxConnections, Logger: logger}
	if s.fastLane {
		httpOptions.Lane = assets
		if p.folder.rooms != nil {
			httpOptions.Lane = p.folder.rooms.Lane(assets)
		}
	}
	if s.tlsCert != "" {
		if httpOptions.TLS, err = server.Certificate(s.tlsCert, s.tlsKey, logger); err != nil {
			return nil, fmt.Errorf("%w; both files must be PEM and belong together", err)
		}
	}
	log, err := p.logHandler()
	if err != nil {
		return nil, err
	}
	handler := server.Route(assets, tiles.Route(log, p.withHook(filler, p.secret, p.withReviewer(public))))
	if p.folder.rooms != nil {
		handler = p.folder.rooms.Handler(handler)
	}
	made := server.NewHTTPServer(handler, httpOptions)
	made.RegisterOnShutdown(sync.OnceFunc(func() { close(stopping) })) // what never ends by itself
	return made, nil
}

// address is the URL at which a program on this machine reaches the site on l.
func (s *settings) address(l net.Listener) string {
	at := l.Addr().(*net.TCPAddr)
	return siteURL(s.tlsCert != "", at.IP.String(), strconv.Itoa(at.Port))
}

// announce tells that the site serves, and what one can do with it.
func (p *daemon) announce(shown *progress) error {
	fmt.Fprintf(p.stdout, "Larder serves %s from %s.\n", p.self.Address, p.settings.data)
	fmt.Fprintf(p.stdout, "Open %s/ in a browser to find libraries and copy their tags.\n", p.self.Address)
	hint := func(w io.Writer, path string) {
		fmt.Fprintf(w, "Try: curl --compressed %s%s\n", p.self.Address, path)
	}
	path, ok := p.folder.example()
	switch {
	case ok:
		hint(p.stdout, path)
	case p.duties.fill:
		fmt.Fprintln(p.stdout, "Nothing is here yet; releases are served as soon as they are published.")
		shown.afterFirst(func() {
			w := p.stdout
			if p.terminal.interactive {
				w = p.terminal // above the bars
			}
			if path, ok := p.folder.example(); ok {
				hint(w, path)
			}
		})
	default:
		fmt.Fprintln(p.stdout, "Nothing is here yet; `larder add` and `larder import` publish releases.")
	}
	if p.settings.readyFile == "" {
		return nil
	}
	return writeReadyFile(p.settings.readyFile, p.self.Address)
}

// example returns the path of the main file in the latest version of a package, of the first one that has it.
func (f *folder) example() (path string, ok bool) {
	const mostLooked = 1000
	snapshot := f.store.Snapshot()
	defer snapshot.Close()
	looked := 0
	for item, err := range snapshot.Scan(kvstore.Packages, kvstore.Range{}) {
		if err != nil || looked == mostLooked {
			break // it is a courtesy; what is wrong shows elsewhere
		}
		looked++
		if l, _, err := library.Lookup(snapshot, string(item.Key)); err == nil && l.HasFile() {
			return library.AssetPath(l.Name, l.Version, l.Filename), true
		}
	}
	return "", false
}
