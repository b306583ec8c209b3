// Package settings is everything that can be configured: the names, kinds, defaults and meanings of all settings, and
// their values from flags, the environment and a configuration file.
//
// What it guarantees: a flag counts before the environment, that before the file; each value is checked where it is set,
// and a mistake is reported with its place. [Settings.Flags] is the one source: commands take their flags
// from it, file and environment set values through it, and the table in docs/configuration.md is printed from it.
//
// It must not know the processes: which command uses a setting, and what is opened with it.
package settings

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/larder-cdn/larder/internal/client"
	"github.com/larder-cdn/larder/logs/gitlog"
	"github.com/larder-cdn/larder/server/accesslog"
	"github.com/larder-cdn/larder/server/acme"
	"github.com/larder-cdn/larder/server/purge"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// Settings are the values of all settings. Those that are a path or an address may be empty, for none.
type Settings struct {
	// ConfigFile is the YAML file that values were read from. Default: none.
	ConfigFile string

	// Data is the folder of store, catalogue and admin socket; one process at a time has it. Default: ./data.
	Data string
	// ReadyFile gets the public address once it serves, and goes when the process ends. Default: none.
	ReadyFile string

	// Listen are the public addresses; port 0 picks a free one, and unix:PATH is a Unix socket. Default: 127.0.0.1:8080.
	Listen []string
	// PrivateListen is the address of metrics and profiles, or [Off]. They reveal everything, so it must not be exposed. Default:
	// 127.0.0.1:8081; where that is taken and was not asked for, there is none.
	PrivateListen string
	// PrivateHosts are the names by which that address is reached, beside addresses and localhost. Default: none.
	PrivateHosts []string
	// TLSCert and TLSKey are PEM files; both or neither. With them the public address speaks HTTPS and HTTP/2. Default:
	// none.
	TLSCert, TLSKey string
	// ACMEDomains are names for which certificates come from an ACME server, in the place of TLSCert. Default: none.
	ACMEDomains []string
	// ACMEEmail is where the ACME server writes to. Default: none.
	ACMEEmail string
	// ACMEDirectory is the URL of the ACME server. Default: that of Let's Encrypt.
	ACMEDirectory string
	// HTTPListen is an address without TLS that answers ACME's challenges and leads all else to HTTPS. Default: none.
	HTTPListen string
	// H2C accepts HTTP/2 without TLS, for a proxy in front that speaks it. Default: false.
	H2C bool
	// FastLane answers simple requests for files in front of net/http; without, they take twice the processor time.
	// Default: true.
	FastLane bool
	// MaxConnections is the most public connections at once; more wait to be accepted. Default: 10,000, or what the limit
	// of open files allows.
	MaxConnections int
	// TrustedProxies are the networks of proxies whose word on clients counts. Default: none.
	TrustedProxies []string
	// ForwardedHeader is the field in which they tell the client's address. Default: [client.DefaultField].
	ForwardedHeader string
	// ProxyProtocol has trusted proxies begin each connection with the PROXY protocol. Default: false.
	ProxyProtocol bool
	// Proxies are both, once the settings are loaded.
	Proxies *client.Proxies
	// Cache is the memory of files being served, in bytes. Default: 256 MiB.
	Cache int64
	// Sending is the memory of files on their way to clients that the cache does not hold, in bytes; more requests answer
	// 503. Default: 256 MiB.
	Sending int64
	// StoreCache is the memory cache of the store, in bytes; about 80 for each file find it fast. Default: 128 MiB.
	StoreCache int64
	// Drain is how long clients have to send their request and take the response when the process ends; then they are cut off.
	// Default: 15 s.
	Drain time.Duration
	// LameDuck is how long a process that is asked to stop goes on serving while /readyz says that it stops. Default: 0.
	LameDuck time.Duration

	// AssetBase, SiteBase and APIHost are where files, pages and the API are reached. Default: the address that was asked.
	AssetBase, SiteBase, APIHost string
	// Name is what pages and the API call the service. Default: Larder.
	Name string

	// CacheTags says which fields of answers tell a CDN what to purge; see [purge.TagHeaders]. Default: both.
	CacheTags string
	// PurgeHook is what is called when a release is withdrawn, and Hook the same, read by Load. Default: none.
	PurgeHook string
	Hook      purge.Hook

	// Catalogue is where package JSONs are: a git repository, a folder, an archive. Default: starter, the one in the
	// binary.
	Catalogue string
	// CatalogueInterval is the time between two looks at the catalogue. Default: 5 minutes.
	CatalogueInterval time.Duration
	// HookSecretFile has the secret of webhooks; without a secret none is taken. Default: none.
	HookSecretFile string
	// Releases is how many of the newest releases a new package starts with. Default: 10.
	Releases int
	// Interval is the longest time between two looks at a package's upstream. Default: 1 hour.
	Interval time.Duration
	// Feed is the change feed of a registry, whose events are followed. Default: none.
	Feed string
	// Downloads is the most downloads at once. Default: 4.
	Downloads int
	// Memory is the bytes that releases being processed, squeezing and their child processes take; a file that needs more
	// is worked on alone. Default: 512 MiB.
	Memory int64
	// AllowHosts are hosts that may be fetched from although their address is private or they have no https. Default:
	// none.
	AllowHosts []string

	// Fallback are the origins that are asked for releases of the catalogue that are not here: larder:URL or cdnjs:URL.
	// Default: none.
	Fallback []string
	// FallbackKey is the verifier key of the log of a larder: origin. Default: what that says the first time.
	FallbackKey string
	// FallbackQuota is the bytes of all releases that may be taken from them. Default: 10 GiB.
	FallbackQuota int64

	// SigstoreRoot is a file with Sigstore's trusted root. Default: the embedded one.
	SigstoreRoot string
	// DownloadsURL is an API that counts downloads, for the popularity of submissions. Default: none, so it is not looked
	// at.
	DownloadsURL string

	// Rooms is a file of waiting rooms, or [Off]; the configuration file may have the rooms themselves. Default: one room
	// over /download/. See [Settings.ReadRooms].
	Rooms string
	// Rooms that stand in the configuration file itself: parsed, as YAML, and the name of that file. inline is nil where
	// it has none.
	inline          []config.Room
	inlineText      []byte
	inlineFile      string
	inlineCanonical []byte

	// Keys is the folder of the key that signs the log. Default: beside the data folder, see [Settings.KeyFolder].
	Keys string
	// LogOrigin is the log's name for its verifiers; its key is made with it, and keeps it. Default: a name that is made up.
	LogOrigin string
	// Witnesses sign each checkpoint too, as URL#KEY, and more than half of them are needed. Default: none.
	Witnesses []string
	// WitnessPolicy is a file that says which witnesses are asked and which are needed, instead of Witnesses. Default: none.
	WitnessPolicy string

	// Bucket is what the nodes of a cluster share: s3://NAME[/PREFIX], or file:///DIR. BucketEndpoint is the URL of the object
	// store, and BucketRegion, which Load reads, the region in AWS's usual variables. Default: none, and one machine.
	Bucket, BucketEndpoint, BucketRegion string
	// NodeURL is where the other nodes of the cluster reach this one, and where it listens for them. Default: nowhere.
	NodeURL string

	// LogRepository is the branch on GitHub that the log is pushed to. Default: none.
	LogRepository gitlog.Remote
	// GitHubURL is that of GitHub's API. Default: github.com's.
	GitHubURL string
	// Token is GitHub's, and TokenFrom the variable that has it; Load reads them. A token is neither a flag, which lists
	// of processes show, nor in a file that is read for other things.
	Token, TokenFrom string

	// Vulnerabilities is a file in the OSV format. Default: none.
	Vulnerabilities string

	// AccessLog is a file to which a line is appended for each request, - for standard output. Default: none.
	AccessLog string
	// AccessLogFormat is json or combined, AccessLogAddresses hashed, plain or none. Default: json, hashed.
	AccessLogFormat, AccessLogAddresses string
	// AccessLogSample has one of so many requests logged. Default: 1.
	AccessLogSample int

	// LogFormat is text or json. Default: text.
	LogFormat string
	// LogLevel is the least that is logged. Default: info, and less on a terminal.
	LogLevel slog.Level

	// Flags has a flag for each setting, in the order of the documentation.
	Flags *pflag.FlagSet

	// MemoryLimit is what the process may have of the machine's memory, in bytes; 0 where that is not bounded. A process that
	// starts sets it.
	MemoryLimit int64

	level   *slog.LevelVar    // of the logs that were made
	least   slog.Level        // where log-level is not given
	origins map[string]string // where a value that is not the default came from, as errors name it
	environ []string          // by Load
	files   map[string]file   // by the setting that names them; nil before ReadFiles
}

// Mebibyte is the unit of the defaults of memory.
const Mebibyte = 1 << 20

// New returns the defaults.
func New() *Settings {
	s := &Settings{
		Data:               "./data",
		Listen:             []string{"127.0.0.1:8080"},
		PrivateListen:      "127.0.0.1:8081",
		FastLane:           true,
		MaxConnections:     10_000,
		ForwardedHeader:    client.DefaultField,
		Cache:              256 * Mebibyte,
		Sending:            256 * Mebibyte,
		StoreCache:         128 * Mebibyte,
		Drain:              15 * time.Second,
		Name:               "Larder",
		CacheTags:          string(purge.BothTags),
		Catalogue:          "starter",
		CatalogueInterval:  5 * time.Minute,
		Releases:           10,
		Interval:           time.Hour,
		Downloads:          4,
		Memory:             512 * Mebibyte,
		AccessLogFormat:    accesslog.JSON,
		AccessLogAddresses: accesslog.Hashed,
		AccessLogSample:    1,
		FallbackQuota:      10 << 30,
		ACMEDirectory:      acme.LetsEncrypt,
		LogFormat:          "text",
		Flags:              pflag.NewFlagSet("settings", pflag.ContinueOnError),
		level:              new(slog.LevelVar),
		origins:            map[string]string{},
	}
	s.addFlags()
	return s
}

func (s *Settings) addFlags() {
	f := s.Flags
	f.SortFlags = false

	f.Var(textValue(&s.ConfigFile, "file"), "config", "configuration `FILE` (YAML); a key is a flag's name without the dashes in front")
	f.Var(requiredValue(&s.Data, "folder"), "data", "data `DIR`; it holds the store and belongs to one process at a time")

	f.Var(&listValue{target: &s.Listen, kind: "address", check: checkAddress}, "listen", "public `ADDRESS`; port 0 picks a free one, and unix:PATH is a Unix socket; repeatable")
	f.Var(textValue(&s.TLSCert, "file"), "tls-cert", "certificate chain `FILE` (PEM); with --tls-key, serves HTTPS and HTTP/2")
	f.Var(textValue(&s.TLSKey, "file"), "tls-key", "private key `FILE` (PEM) of --tls-cert")
	f.Var(&listValue{target: &s.ACMEDomains, kind: "domain", check: checkDomain}, "acme-domain", "`DOMAIN` to get a certificate for from an ACME server, and to renew, in the place of --tls-cert; that is to agree to the server's terms. Repeatable; the first is for clients that name none")
	f.Var(textValue(&s.ACMEEmail, "address"), "acme-email", "`ADDRESS` that the ACME server may write to when something is wrong with the account")
	f.Var(Base(&s.ACMEDirectory), "acme-directory", "`URL` of the ACME server's directory")
	f.Var(optionalAddress(&s.HTTPListen), "http-listen", "plain `ADDRESS` beside HTTPS, usually :80, that answers the ACME server's HTTP-01 challenges and leads everything else to HTTPS")
	f.Var(boolValue(&s.H2C), "h2c", "accept HTTP/2 without TLS too, for a proxy in front that speaks it")
	f.Lookup("h2c").NoOptDefVal = "true"
	f.Var(boolValue(&s.FastLane), "fast-lane", "answer simple requests for files over HTTP/1.1 in front of the general HTTP server, in less than half of the processor time; false has all go through that")
	f.Lookup("fast-lane").NoOptDefVal = "true"
	f.Var(Count(&s.MaxConnections, 1), "max-connections", "most public connections at once, `N`; near that the client with the most gives way to others, and idle connections are closed to make room; less where the limit of open files is lower")
	f.Var(&listValue{target: &s.TrustedProxies, kind: "network"}, "trusted-proxies", "`NETWORK` of proxies in front, such as 10.0.0.0/8, whose word on who the client is counts, or unix: for what connects to a Unix socket; repeatable")
	f.Var(requiredValue(&s.ForwardedHeader, "field"), "forwarded-header", "`FIELD` in which the trusted proxies tell the client's address: a list of addresses, or Forwarded")
	f.Var(boolValue(&s.ProxyProtocol), "proxy-protocol", "have the trusted proxies begin each connection with the PROXY protocol (version 1 or 2), which tells the client's address; one that does not is refused")
	f.Lookup("proxy-protocol").NoOptDefVal = "true"
	f.Var(sizeValue(&s.Cache, Mebibyte), "cache", "`SIZE` of the memory cache of files being served")
	f.Var(sizeValue(&s.Sending, Mebibyte), "sending", "`SIZE` of the memory for files on their way to clients that the cache does not hold; more answer 503")
	f.Var(sizeValue(&s.StoreCache, Mebibyte), "store-cache", "`SIZE` of the memory cache of the store, which finds files fast while it holds about 80 bytes for each")
	f.Var(Duration(&s.Drain, 0), "drain", "`DURATION` that clients have to send their request and take the response when the process is told to end")
	f.Var(Duration(&s.LameDuck, 0), "lame-duck", "`DURATION` that the process goes on serving when it is told to end, while /readyz already says so, for load balancers that have to notice")
	f.Var(textValue(&s.ReadyFile, "file"), "ready-file", "write the public address to `FILE` once it serves; the file is removed when it ends")
	f.Var(optionalAddressValue(&s.PrivateListen), "private-listen", "private `ADDRESS` of /metrics, /rooms, /nodes, /debug/pprof/, /livez and /readyz, or off; never expose it")
	f.Var(&listValue{target: &s.PrivateHosts, kind: "host", check: checkHost}, "private-hosts", "`HOST` by which --private-listen is reached, beside any address and localhost; it refuses requests to other names, so that no web page can reach it through a name of its own (DNS rebinding); without a port, on any; repeatable")

	f.Var(Base(&s.AssetBase), "asset-base", "`URL` that the files are reached under, in front of /ajax/libs/, as tags and the API tell it; where it is not given, the address that was asked")
	f.Var(Base(&s.SiteBase), "site-base", "`URL` that the pages are reached under; where it is not given, the address that was asked")
	f.Var(hostValue(&s.APIHost), "api-host", "`HOST` that is for the API alone, as api.cdnjs.com is: /, /about, /api and /robots.txt answer there as clients of that expect; without a port, on any")
	f.Var(labelValue(&s.Name, 60), "name", "`NAME` of the service in pages and in the API's description")

	f.Var(Choice(&s.CacheTags, string(purge.NoTags), string(purge.CacheTag), string(purge.SurrogateKey), string(purge.BothTags)), "cache-tags",
		"`FIELDS` of files' answers that tell a CDN what to purge when a release is withdrawn: cache-tag, surrogate-key (for Fastly), both or none")
	f.Var(textValue(&s.PurgeHook, "hook"), "purge-hook",
		"what to call when a release is withdrawn, `[METHOD ]URL`: with {url} or {path} in it once for each file (PURGE), else once with all of them (POST, JSON)")

	f.Var(textValue(&s.Catalogue, "source"), "catalogue", "catalogue `SOURCE`: the https URL of a git repository (with #BRANCH where it is not the default branch), a bare one on this machine, a folder, a .tar.gz or .zip archive, or starter for the one in the binary")
	f.Var(Duration(&s.CatalogueInterval, time.Second), "catalogue-interval", "`DURATION` between two looks at the catalogue")
	f.Var(textValue(&s.HookSecretFile, "file"), "hook-secret-file", "`FILE` with the secret of the webhooks that a git host sends, so that a push to the catalogue (POST /hooks/catalogue) and releases (POST /hooks/release) are handled at once; it may be in the environment instead, in LARDER_HOOK_SECRET")
	f.Var(Count(&s.Releases, 1), "releases", "newest releases that a new package starts with, `N`")
	f.Var(Duration(&s.Interval, time.Second), "interval", "longest `DURATION` between two looks at a package's upstream; what has releases often is looked at more often, up to every 5 minutes")
	f.Var(Base(&s.Feed), "feed", "`URL` of the registry's change feed (CouchDB's _changes), where it has one: packages that it names are looked at at once")
	f.Var(Count(&s.Downloads, 1), "downloads", "most downloads at once, `N`")
	f.Var(sizeValue(&s.Memory, 16*Mebibyte), "memory", "`SIZE` of the memory for releases being processed, squeezing and their child processes")
	f.Var(&listValue{target: &s.AllowHosts, kind: "host"}, "allow-host", "`HOST` that may be fetched from although its address is private or it has no https; repeatable")

	f.Var(textValue(&s.SigstoreRoot, "file"), "sigstore-root", "`FILE` with Sigstore's trusted root (trusted_root.json), by which attestations of where releases were built are verified; by default the one in the binary")

	f.Var(&listValue{target: &s.Fallback, kind: "origin"}, "fallback", "`ORIGIN` that is asked for a release of the catalogue that is not here when a file of it is: larder:URL, another Larder, whose log proves it, or cdnjs:URL, whose API gives the integrities; repeatable, the first that has it counts")
	f.Var(textValue(&s.FallbackKey, "key"), "fallback-key", "verifier `KEY` of the log of the larder: origins; where it is not given, what an origin says the first time is remembered in the key folder")
	f.Var(sizeValue(&s.FallbackQuota, Mebibyte), "fallback-quota", "`SIZE` of all releases that may be taken from other origins")

	f.Var(Base(&s.DownloadsURL), "downloads-url", "`URL` of an API like npm's that counts downloads, for the popularity of what is submitted, and for the order of search: up and bot ask it for sixty packages an hour; where it is not given, they are not looked at")

	f.Var(textValue(&s.Rooms, "file|off"), "rooms", "`FILE` (YAML) of the waiting rooms, or off; in the configuration file the rooms themselves may stand here. By default there is one over /download/ with generous limits")

	f.Var(textValue(&s.Keys, "folder"), "keys", "key `DIR`: the key that signs the log, and the last signed checkpoint; where it is not given, it is beside the data folder: keys for one that is called data, else its name and -keys")
	f.Var(originValue(&s.LogOrigin), "log-origin", "`NAME` of the log for the clients that verify it, such as cdn.example.com/log; its key is made with it, and keeps it")
	f.Var(&listValue{target: &s.Witnesses, kind: "url#key"}, "witness", "`URL#KEY` of a witness; a checkpoint of the log is shown once more than half of the witnesses have signed it too; repeatable")
	f.Var(textValue(&s.WitnessPolicy, "file"), "witness-policy", "`FILE` that says which witnesses sign the log's checkpoints, and which of them have to before one is shown (C2SP tlog-policy); in the place of --witness")

	f.Var(bucketValue(&s.Bucket), "bucket", "be a node of the cluster that shares this `BUCKET`: s3://NAME[/PREFIX], with the credentials and AWS_REGION in AWS's usual variables or files, or file:///DIR for a folder that all nodes reach")
	f.Var(Base(&s.BucketEndpoint), "bucket-endpoint", "`URL` of the object store that has the bucket, such as https://s3.eu-central-1.amazonaws.com")
	f.Var(nodeValue(&s.NodeURL), "node-url", "`URL` at which the other nodes of the cluster reach this one, such as https://10.0.0.5:8443: they pass on to it what is to be published; it listens there, and takes only nodes that have the key folder's cluster.key")

	f.Var(remoteValue(&s.LogRepository), "log-repository", "push the log to the GitHub repository `OWNER/NAME[@BRANCH]`, one commit for each entry; the token is in the environment, in LARDER_GITHUB_TOKEN or GITHUB_TOKEN")
	f.Var(Base(&s.GitHubURL), "github-url", "`URL` of GitHub's API; that of GitHub Enterprise Server is https://HOST/api/v3")

	f.Var(textValue(&s.Vulnerabilities, "file"), "vulnerabilities", "`FILE` in the OSV format with the known vulnerabilities of npm packages, of which pages tell: JSON or a .zip of it, as osv.dev exports; it is read again when it changes")
	f.Var(textValue(&s.AccessLog, "file|-"), "access-log", "append a line for each request to `FILE`, - for standard output; by default there is none")
	f.Var(Choice(&s.AccessLogFormat, accesslog.JSON, accesslog.Combined), "access-log-format", "`FORMAT` of --access-log: json, or combined as of nginx and Apache")
	f.Var(Choice(&s.AccessLogAddresses, accesslog.Hashed, accesslog.Plain, accesslog.None), "access-log-addresses", "`WHAT` --access-log says of who asked: hashed (the same for a client on one day and until the process ends, with a key that is nowhere written), plain (the address), or none")
	f.Var(Count(&s.AccessLogSample, 1), "access-log-sample", "log one of `N` requests")
	f.Var(Choice(&s.LogFormat, "text", "json"), "log-format", "`FORMAT` of the log on standard error: text or json")
	f.Var(levelValue(&s.LogLevel), "log-level", "least `LEVEL` that is logged: debug, info, warn or error; where it is not given, less is logged to a terminal")
}

// set gives one setting a value and remembers where it came from.
func (s *Settings) set(name, origin, text string) error {
	if err := s.Flags.Lookup(name).Value.Set(text); err != nil {
		return err
	}
	s.origins[name] = origin
	return nil
}

// Origin names where a setting's value came from, for messages: the flag, a variable, a line of a file.
func (s *Settings) Origin(name string) string {
	if origin, ok := s.origins[name]; ok {
		return origin
	}
	return "--" + name
}

// Given reports whether the operator has set this value, rather than leaving the default.
func (s *Settings) Given(name string) bool {
	_, ok := s.origins[name]
	return ok || s.Flags.Lookup(name).Changed
}

// AssetBaseAt is the asset base of a process that serves at address, "" for one that does not serve: then it is where
// a process with these settings would. Nothing is known where the port is left to chance.
func (s *Settings) AssetBaseAt(address string) string {
	host, port, err := net.SplitHostPort(s.Listen[0])
	switch {
	case s.AssetBase != "":
		return s.AssetBase
	case address != "":
		return address
	case err != nil || port == "0":
		return ""
	}
	return s.URLAt(host, port)
}

// URLAt is the URL at which a program on this machine reaches what listens publicly on host, "" for all addresses.
func (s *Settings) URLAt(host, port string) string {
	scheme := "http"
	if s.HTTPS() {
		scheme = "https"
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// HTTPS reports whether the public address speaks TLS.
func (s *Settings) HTTPS() bool { return s.TLSCert != "" || len(s.ACMEDomains) > 0 }

// KeyFolder returns where the keys are. It must not be in the data folder: what is restored there from a backup would
// take the last signed checkpoint back with it, and a fork of the log would go unnoticed.
func (s *Settings) KeyFolder() (string, error) {
	data, err := filepath.Abs(s.Data)
	if err != nil {
		return "", err
	}
	if s.Keys == "" {
		if name := filepath.Base(data); name != "data" {
			return data + "-keys", nil
		}
		return filepath.Join(filepath.Dir(data), "keys"), nil
	}
	keys, err := filepath.Abs(s.Keys)
	if err != nil {
		return "", err
	}
	if below, err := filepath.Rel(data, keys); err == nil && below != ".." && !strings.HasPrefix(below, ".."+string(filepath.Separator)) {
		return "", Mistakef("%s: the key folder must not be in the data folder, because a backup of that must not take the last signed checkpoint back", s.Origin("keys"))
	}
	return keys, nil
}

// NewLogger returns a log that goes to w: from --log-level on where that was given, from least on otherwise.
func (s *Settings) NewLogger(w io.Writer, least slog.Level) *slog.Logger {
	s.least = least
	s.SetLevel()
	options := &slog.HandlerOptions{Level: s.level}
	if s.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// A Mistake is an error in the settings or the command line that shows only later: running the same again cannot help.
type Mistake struct{ Err error }

// Mistakef makes one, as [fmt.Errorf] does.
func Mistakef(format string, args ...any) Mistake { return Mistake{fmt.Errorf(format, args...)} }

func (m Mistake) Error() string { return m.Err.Error() }

// Unwrap returns what is wrong.
func (m Mistake) Unwrap() error { return m.Err }
