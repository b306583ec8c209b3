package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/server"
)

// newSite returns what answers on the public address, over the open folder. filler, where there is one, hears which
// files are in demand.
func (p *daemon) newSite(filler *bot.Bot) (*http.Server, error) {
	s := p.settings
	logger := p.logger.With("part", "server")
	options := server.Options{Store: p.folder.store, CacheBytes: s.cache, Logger: logger, Registerer: p.metrics}
	if filler != nil {
		options.Hot = filler.Hot
	}
	assets, err := server.New(options)
	if err != nil {
		return nil, err
	}
	public := api.Public(api.PublicOptions{Examples: p.folder.examples, Logger: logger})
	httpOptions := server.HTTPOptions{H2C: s.h2c, Logger: logger}
	if s.tlsCert != "" {
		if httpOptions.TLS, err = server.Certificate(s.tlsCert, s.tlsKey, logger); err != nil {
			return nil, fmt.Errorf("%w; both files must be PEM and belong together", err)
		}
	}
	return server.NewHTTPServer(api.Root(assets, public), httpOptions), nil
}

// address is the URL at which a program on this machine reaches site on l.
func address(site *http.Server, l net.Listener) string {
	scheme := "http"
	if site.TLSConfig != nil {
		scheme = "https"
	}
	at := l.Addr().(*net.TCPAddr)
	host := at.IP.String()
	if at.IP.IsUnspecified() {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, fmt.Sprint(at.Port))
}

// announce tells that the site serves, and what one can ask of it.
func (p *daemon) announce(shown *progress) error {
	fmt.Fprintf(p.stdout, "Larder serves %s from %s.\n", p.self.Address, p.settings.data)
	hint := func(w io.Writer, path string) {
		fmt.Fprintf(w, "Try: curl --compressed %s%s\n", p.self.Address, path)
	}
	switch examples := p.folder.examples(); {
	case len(examples) > 0:
		hint(p.stdout, examples[0])
	case p.duties.fill:
		fmt.Fprintln(p.stdout, "Nothing is here yet; releases are served as soon as they are published.")
		shown.afterFirst(func() {
			w := p.stdout
			if p.terminal.interactive {
				w = p.terminal // above the bars
			}
			if examples := p.folder.examples(); len(examples) > 0 {
				hint(w, examples[0])
			}
		})
	default:
		fmt.Fprintln(p.stdout, "Nothing is here yet, so every answer is 404; `larder add` and `larder import` publish releases.")
	}
	if p.settings.readyFile == "" {
		return nil
	}
	return writeReadyFile(p.settings.readyFile, p.self.Address)
}

// examples returns paths of default files in the latest version of some packages.
func (f *folder) examples() []string {
	const most = 10
	snapshot := f.store.Snapshot()
	defer snapshot.Close()
	all, err := views.Packages(snapshot)
	if err != nil {
		return nil // they are a courtesy; what is wrong shows elsewhere
	}
	var paths []string
	for _, p := range all {
		if path, ok := example(snapshot, p.Name); ok {
			if paths = append(paths, path); len(paths) == most {
				break
			}
		}
	}
	return paths
}

func example(r kvstore.Reader, pkg string) (path string, ok bool) {
	published, err := views.Versions(r, pkg)
	if err != nil {
		return "", false
	}
	files := map[string]string{}
	var names []string
	for _, v := range published {
		if v.Withdrawn == nil && v.Default != "" {
			files[v.Version] = v.Default
			names = append(names, v.Version)
		}
	}
	if len(names) == 0 {
		return "", false
	}
	latest := packages.LatestVersion(names)
	return (&url.URL{Path: api.AssetPrefix + pkg + "/" + latest + "/" + files[latest]}).EscapedPath(), true
}
