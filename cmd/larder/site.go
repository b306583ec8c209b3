package main

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/server"
)

// newSite returns what answers on the public address, over the open folder. filler, where there is one, hears which
// files are in demand.
func (p *daemon) newSite(filler *bot.Bot) (*server.Server, error) {
	s := p.settings
	logger := p.logger.With("part", "server")
	options := server.Options{Store: p.folder.store, CacheBytes: s.cache, SendBytes: s.sending, Logger: logger, Registerer: p.metrics}
	if filler != nil {
		options.Hot = filler.Hot
	}
	assets, err := server.New(options)
	if err != nil {
		return nil, err
	}
	public := api.Public(api.PublicOptions{Examples: remembered(examplesFor, p.folder.examples), Logger: logger})
	httpOptions := server.HTTPOptions{H2C: s.h2c, MaxConnections: s.maxConnections, Logger: logger}
	if s.tlsCert != "" {
		if httpOptions.TLS, err = server.Certificate(s.tlsCert, s.tlsKey, logger); err != nil {
			return nil, fmt.Errorf("%w; both files must be PEM and belong together", err)
		}
	}
	return server.NewHTTPServer(server.Route(assets, public), httpOptions), nil
}

// address is the URL at which a program on this machine reaches site on l.
func address(site *server.Server, l net.Listener) string {
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

// examplesFor is how long examples are shown before they are looked for again.
const examplesFor = 5 * time.Second

// remembered returns what look returned, which is called again when that is older than age, and once at a time.
func remembered[T any](age time.Duration, look func() T) func() T {
	var (
		mu     sync.Mutex
		last   T
		looked time.Time
	)
	return func() T {
		mu.Lock()
		defer mu.Unlock()
		if looked.IsZero() || time.Since(looked) >= age {
			last, looked = look(), time.Now()
		}
		return last
	}
}

// examples returns paths of default files in the latest version of some packages, of the first ones in the store.
func (f *folder) examples() []string {
	const most, mostLooked = 10, 1000
	snapshot := f.store.Snapshot()
	defer snapshot.Close()
	var paths []string
	looked := 0
	for item, err := range snapshot.Scan(kvstore.Packages, kvstore.Range{}) {
		if err != nil || len(paths) == most || looked == mostLooked {
			break // they are a courtesy; what is wrong shows elsewhere
		}
		looked++
		if path, ok := example(snapshot, string(item.Key)); ok {
			paths = append(paths, path)
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
	return (&url.URL{Path: server.Prefix + pkg + "/" + latest + "/" + files[latest]}).EscapedPath(), true
}
