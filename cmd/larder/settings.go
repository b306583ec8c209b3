package main

import (
	"log/slog"
	"net"
	"time"

	"github.com/spf13/pflag"

	"github.com/larder-cdn/larder/server/cachetag"
	"github.com/larder-cdn/larder/server/purge"
)

// settings is everything that can be configured. The flag set that newSettings returns is the one source of names,
// kinds, defaults and meanings: the commands take their flags from it, the configuration file and the environment set
// values through it, and the table in docs/configuration.md is printed from it.
type settings struct {
	config string

	data      string
	readyFile string

	listen         string
	privateListen  string
	tlsCert        string
	tlsKey         string
	h2c            bool
	fastLane       bool
	maxConnections int
	cache          int64
	sending        int64
	storeCache     int64
	drain          time.Duration

	assetBase string
	siteBase  string
	apiHost   string
	name      string

	cacheTags string
	purgeHook string
	hook      purge.Hook // purgeHook, by check

	catalogueSettings
	releases   int
	interval   time.Duration
	downloads  int
	memory     int64
	allowHosts []string

	downloadsURL string

	roomSettings
	signingSettings
	githubSettings
	reviewSettings

	logFormat string
	logLevel  slog.Level

	flags   *pflag.FlagSet
	origins map[string]string // where a value that is not the default came from, as errors name it
}

// The flags that commands share, by what they are for.
var (
	dataFlags  = []string{"config", "data", "log-format", "log-level"}
	serveFlags = []string{"listen", "tls-cert", "tls-key", "h2c", "fast-lane", "max-connections", "cache", "sending", "store-cache", "drain", "ready-file", "private-listen",
		"asset-base", "site-base", "api-host", "name", "cache-tags", "purge-hook", "rooms"}
	botFlags = []string{"catalogue", "releases", "downloads", "memory", "allow-host", "github-url"}
)

const (
	mebibyte = 1 << 20

	defaultListen        = "127.0.0.1:8080"
	defaultPrivateListen = "127.0.0.1:8081"
)

func newSettings() *settings {
	s := &settings{
		data:              "./data",
		listen:            defaultListen,
		privateListen:     defaultPrivateListen,
		fastLane:          true,
		maxConnections:    10_000,
		cache:             256 * mebibyte,
		sending:           256 * mebibyte,
		storeCache:        128 * mebibyte,
		drain:             15 * time.Second,
		name:              "Larder",
		cacheTags:         string(cachetag.Both),
		catalogueSettings: catalogueSettings{catalogue: "starter", catalogueInterval: 5 * time.Minute},
		releases:          10,
		interval:          time.Hour,
		downloads:         4,
		memory:            512 * mebibyte,
		logFormat:         "text",
		flags:             pflag.NewFlagSet("settings", pflag.ContinueOnError),
		origins:           map[string]string{},
	}
	f := s.flags
	f.SortFlags = false

	f.Var(textValue(&s.config, "file"), "config", "configuration `FILE` (YAML); a key is a flag's name without the dashes in front")
	f.Var(requiredValue(&s.data, "folder"), "data", "data `DIR`; it holds the store and belongs to one process at a time")

	f.Var(addressValue(&s.listen), "listen", "public `ADDRESS`; port 0 picks a free one")
	f.Var(textValue(&s.tlsCert, "file"), "tls-cert", "certificate chain `FILE` (PEM); with --tls-key, serves HTTPS and HTTP/2")
	f.Var(textValue(&s.tlsKey, "file"), "tls-key", "private key `FILE` (PEM) of --tls-cert")
	f.Var(boolValue(&s.h2c), "h2c", "accept HTTP/2 without TLS too, for a proxy in front that speaks it")
	f.Lookup("h2c").NoOptDefVal = "true"
	f.Var(boolValue(&s.fastLane), "fast-lane", "answer simple requests for files over HTTP/1.1 in front of the general HTTP server, in less than half of the processor time; false has all go through that")
	f.Lookup("fast-lane").NoOptDefVal = "true"
	f.Var(countValue(&s.maxConnections, 1), "max-connections", "most public connections at once, `N`; more wait to be accepted, and idle ones are closed to make room; less where the limit of open files is lower")
	f.Var(sizeValue(&s.cache, mebibyte), "cache", "`SIZE` of the memory cache of files being served")
	f.Var(sizeValue(&s.sending, mebibyte), "sending", "`SIZE` of the memory for files on their way to clients that the cache does not hold; more answer 503")
	f.Var(sizeValue(&s.storeCache, mebibyte), "store-cache", "`SIZE` of the memory cache of the store, which finds files fast while it holds about 80 bytes for each")
	f.Var(durationValue(&s.drain, 0), "drain", "`DURATION` that clients have to take what is being sent when the process is told to end")
	f.Var(textValue(&s.readyFile, "file"), "ready-file", "write the public address to `FILE` once it serves; the file is removed when it ends")
	f.Var(optionalAddressValue(&s.privateListen), "private-listen", "private `ADDRESS` of /metrics, /debug/pprof/, /livez and /readyz, or off; never expose it")

	f.Var(baseValue(&s.assetBase), "asset-base", "`URL` that the files are reached under, in front of /ajax/libs/, as tags and the API tell it; where it is not given, the address that was asked")
	f.Var(baseValue(&s.siteBase), "site-base", "`URL` that the pages are reached under; where it is not given, the address that was asked")
	f.Var(hostValue(&s.apiHost), "api-host", "`HOST` that is for the API alone, as api.cdnjs.com is: /, /about, /api and /robots.txt answer there as clients of that expect; without a port, on any")
	f.Var(labelValue(&s.name, 60), "name", "`NAME` of the service in pages and in the API's description")

	f.Var(choiceValue(&s.cacheTags, string(cachetag.None), string(cachetag.CacheTag), string(cachetag.SurrogateKey), string(cachetag.Both)), "cache-tags",
		"`FIELDS` of files' answers that tell a CDN what to purge when a release is withdrawn: cache-tag, surrogate-key (for Fastly), both or none")
	f.Var(textValue(&s.purgeHook, "hook"), "purge-hook",
		"what to call when a release is withdrawn, `[METHOD ]URL`: with {url} or {path} in it once for each file (PURGE), else once with all of them (POST, JSON)")

	s.catalogueSettings.addTo(f)
	f.Var(countValue(&s.releases, 1), "releases", "newest releases that a new package starts with, `N`")
	f.Var(durationValue(&s.interval, time.Second), "interval", "`DURATION` between two looks at a package's upstream")
	f.Var(countValue(&s.downloads, 1), "downloads", "most downloads at once, `N`")
	f.Var(sizeValue(&s.memory, 16*mebibyte), "memory", "`SIZE` of the file contents that the bot holds in memory at once")
	f.Var(&listValue{target: &s.allowHosts, kind: "host"}, "allow-host", "`HOST` that may be fetched from although its address is private or it has no https; repeatable")

	f.Var(baseValue(&s.downloadsURL), "downloads-url", "`URL` of an API like npm's that counts downloads, for the popularity of what is submitted; where it is not given, they are not looked at")

	s.roomSettings.addTo(f)
	s.signingSettings.addTo(f)
	s.githubSettings.addTo(f)
	s.reviewSettings.addTo(f)

	f.Var(choiceValue(&s.logFormat, "text", "json"), "log-format", "`FORMAT` of the log on standard error: text or json")
	f.Var(levelValue(&s.logLevel), "log-level", "least `LEVEL` that is logged: debug, info, warn or error; where it is not given, less is logged to who watches a terminal")
	return s
}

// set gives one setting a value and remembers where it came from.
func (s *settings) set(name, origin, text string) error {
	if err := s.flags.Lookup(name).Value.Set(text); err != nil {
		return err
	}
	s.origins[name] = origin
	return nil
}

// origin names where a setting's value came from, for messages: the flag, a variable, a line of a file.
func (s *settings) origin(name string) string {
	if origin, ok := s.origins[name]; ok {
		return origin
	}
	return "--" + name
}

// given tells whether somebody asked for this value, rather than leaving the default.
func (s *settings) given(name string) bool {
	_, ok := s.origins[name]
	return ok || s.flags.Lookup(name).Changed
}

// assetBaseAt is the asset base of a process that serves at address, "" for one that does not serve: then it is where
// a process with these settings would. Nothing is known where the port is left to chance.
func (s *settings) assetBaseAt(address string) string {
	host, port, err := net.SplitHostPort(s.listen)
	switch {
	case s.assetBase != "":
		return s.assetBase
	case address != "":
		return address
	case err != nil || port == "0":
		return ""
	}
	return siteURL(s.tlsCert != "", host, port)
}

// siteURL is the URL at which a program on this machine reaches what listens on host, "" for all of its addresses.
func siteURL(tls bool, host, port string) string {
	scheme := "http"
	if tls {
		scheme = "https"
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}
