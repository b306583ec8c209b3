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
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/larder-cdn/larder/bot/notify"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/gitlog"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// Settings are the values of all settings. Those that are a path or an address may be empty, for none.
type Settings struct {
	// ConfigFile is the YAML file that values were read from. Default: none.
	ConfigFile string

	// Profile names presets of other settings; see [Profiles]. Default: none.
	Profile string

	// Data is the folder of store, catalogue and admin socket; one process at a time has it. Default: ./data.
	Data string
	// ReadyFile gets the public address once it serves, and goes when the process ends. Default: none.
	ReadyFile string

	// Listen are the public addresses; port 0 picks a free one, and unix:PATH is a Unix socket. Default: 127.0.0.1:8080.
	Listen []string
	// PrivateListen is the address of metrics and profiles, or [Off]. They reveal everything, so it must not be exposed. Default:
	// 127.0.0.1:8081, or no address if another process listens there.
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
	// HTTPListen is an address without TLS that responds to ACME's challenges and redirects all other requests to HTTPS. Default: none.
	HTTPListen string
	// H2C accepts HTTP/2 without TLS, for a proxy in front that speaks it. Default: false.
	H2C bool
	// FastLane serves simple requests for files in front of net/http; without, they take twice the processor time.
	// Default: true.
	FastLane bool
	// Dictionaries stores deltas between the versions of a file and sends them to browsers that have the older one. Default: true.
	Dictionaries bool
	// OtherCDNURLs redirects the addresses of files at other CDNs, such as /npm/jquery@3.7.1/dist/jquery.js. Default: true.
	OtherCDNURLs bool
	// MaxConnections is the most public connections at once; more wait to be accepted. Default: 10,000, or what the limit
	// of open files allows.
	MaxConnections int
	// TrustedProxies are the networks of proxies that are trusted to name the client. Default: none.
	TrustedProxies []string
	// ForwardedHeader is the field in which they name the client's address. Default: [requests.DefaultForwardedField].
	ForwardedHeader string
	// ProxyProtocol has trusted proxies begin each connection with the PROXY protocol. Default: false.
	ProxyProtocol bool
	// Proxies are both, once the settings are loaded.
	Proxies *requests.Proxies
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
	// LameDuck is how long a process that has received a signal to stop continues serving while /readyz says that it stops. Default: 0.
	LameDuck time.Duration

	// AssetBase, SiteBase and APIHost are where files, pages and the API are reached. Default: the address of the request.
	AssetBase, SiteBase, APIHost string
	// Name is what pages and the API call the service. Default: Larder.
	Name string

	// PurgeHook is what is called when a release is withdrawn, and Hook the same, read by Load. Default: none.
	PurgeHook string
	Hook      notify.PurgeHook

	// Catalogue is where package JSONs are: a git repository, a folder, an archive. Default: starter, the one in the
	// binary.
	Catalogue string
	// HookSecretFile has the secret of webhooks; without a secret none is taken. Default: none.
	HookSecretFile string
	// Releases is how many of the newest releases a new package starts with. Default: 10.
	Releases int
	// Interval is the longest time between two looks at a package's upstream. Default: 1 hour.
	Interval time.Duration
	// Feed is the change feed of a registry, whose events are followed. Default: none.
	Feed string
	// Memory is the bytes that releases being processed, squeezing and their child processes take; a file that needs more
	// is worked on alone. Default: 512 MiB.
	Memory int64
	// AllowHosts are hosts that may be fetched from although their address is private or they have no https. Default:
	// none.
	AllowHosts []string

	// Fallback are the origins from which missing releases of the catalogue are fetched: larder:URL or cdnjs:URL.
	// Default: none.
	Fallback []string
	// FallbackKey is the verifier key of the log of a larder: origin. Default: what that says the first time.
	FallbackKey string
	// FallbackRoot is the verifier key of the offline root key of a larder: origin's log, whose list of keys counts in place of
	// FallbackKey. Default: none.
	FallbackRoot string
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
	// Rooms in the configuration file itself: parsed, as YAML, and the name of that file. inline is nil where
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
	// WitnessPolicy is a file that says which witnesses are queried and which are required, instead of Witnesses. Default: none.
	WitnessPolicy string

	// Bucket is what the nodes of a cluster share: s3://NAME[/PREFIX], or file:///DIR. BucketEndpoint is the URL of the object
	// store, and BucketRegion, which Load reads, the region in AWS's usual variables. Default: none, and one machine.
	Bucket, BucketEndpoint, BucketRegion string
	// NodeURL is where the other nodes of the cluster reach this one, and where it listens for them. Default: nowhere.
	NodeURL string

	// Backup is where backups are made on schedule, every BackupEvery: s3://NAME[/PREFIX], at BucketEndpoint, or file:///DIR. The newest
	// BackupKeep states can be restored. Default: none, 24 hours, 30.
	Backup      string
	BackupEvery time.Duration
	BackupKeep  int

	// LogRepository is the branch on GitHub that the log is pushed to. Default: none.
	LogRepository gitlog.Remote
	// GitHubURL is that of GitHub's API. Default: github.com's.
	GitHubURL string
	// Token is GitHub's, and TokenFrom the variable that has it; Load reads them. A token is neither a flag, which lists
	// of processes show, nor in a file that is read for other things.
	Token, TokenFrom string

	// Vulnerabilities is a file in the OSV format, the URL of an OSV API, or [Off]. Default: with up, OSV's own API.
	Vulnerabilities string

	// AccessLog is a file to which a line is appended for each request, - for standard output. Default: none.
	AccessLog string
	// AccessLogFormat is json or combined, AccessLogAddresses hashed, plain or none. Default: json, hashed.
	AccessLogFormat, AccessLogAddresses string

	// LogFormat is text or json. Default: text.
	LogFormat string
	// LogLevel is the least that is logged. Default: info, and less on a terminal.
	LogLevel slog.Level

	// Flags has a flag for each setting, in the order of the documentation.
	Flags *pflag.FlagSet

	// MemoryLimit is what the process may have of the machine's memory, in bytes; 0 if that is not bounded. A process that
	// starts sets it.
	MemoryLimit int64
	// MemoryLacking is by how many bytes the settings exceed what the process should use of MemoryLimit. FitMemory sets it.
	MemoryLacking int64

	level   *slog.LevelVar    // of the logs that were made
	least   slog.Level        // where log-level is not given
	origins map[string]string // where a value that is not the default came from, as errors name it
	environ []string          // by Load
	files   map[string]file   // by the setting that names them; nil before ReadFiles
}

// Mebibyte is the unit of the defaults of memory.
const Mebibyte = 1 << 20

// New returns settings with their defaults.
func New() *Settings {
	s := &Settings{
		Data:               "./data",
		Listen:             []string{"127.0.0.1:8080"},
		PrivateListen:      "127.0.0.1:8081",
		FastLane:           true,
		Dictionaries:       true,
		OtherCDNURLs:       true,
		MaxConnections:     10_000,
		ForwardedHeader:    requests.DefaultForwardedField,
		Cache:              256 * Mebibyte,
		Sending:            256 * Mebibyte,
		StoreCache:         128 * Mebibyte,
		Drain:              15 * time.Second,
		Name:               "Larder",
		Catalogue:          "starter",
		Releases:           10,
		Interval:           time.Hour,
		Memory:             512 * Mebibyte,
		AccessLogFormat:    server.AccessLogJSON,
		AccessLogAddresses: server.AccessLogHashed,
		FallbackQuota:      10 << 30,
		BackupEvery:        24 * time.Hour,
		BackupKeep:         30,
		ACMEDirectory:      server.LetsEncrypt,
		LogFormat:          "text",
		Flags:              pflag.NewFlagSet("settings", pflag.ContinueOnError),
		level:              new(slog.LevelVar),
		origins:            map[string]string{},
	}
	s.addFlags()
	return s
}

// addFlags adds a flag for each setting to s.Flags. Parsing the flag sets the field.
func (s *Settings) addFlags() {
	f := s.Flags
	f.SortFlags = false

	f.Var(textValue(&s.ConfigFile, "file"), "config", "configuration `FILE` (YAML); its keys are the flags' names")
	f.Var(parsedValue(&s.Data, "folder", checked(checkNotEmpty)), "data", "data `DIR` with the store; one process at a time")

	f.Var(ChoiceValue(&s.Profile, slices.Sorted(maps.Keys(Profiles))...), "profile", "presets of other settings for a `KIND` of service: team, public or mirror; see docs/configuration.md")
	f.Var(&listValue{target: &s.Listen, kind: "address", check: checkAddress}, "listen", "public `ADDRESS`; port 0 picks a free one, unix:PATH is a Unix socket; repeatable")
	f.Var(textValue(&s.TLSCert, "file"), "tls-cert", "certificate chain `FILE` (PEM); with --tls-key, serves HTTPS and HTTP/2")
	f.Var(textValue(&s.TLSKey, "file"), "tls-key", "private key `FILE` (PEM) of --tls-cert")
	f.Var(&listValue{target: &s.ACMEDomains, kind: "domain", check: checkDomain}, "acme-domain", "`DOMAIN` of a certificate to get and renew from an ACME server, instead of --tls-cert, agreeing to its terms; repeatable, the first is the default")
	f.Var(textValue(&s.ACMEEmail, "address"), "acme-email", "contact `ADDRESS` of the ACME account")
	f.Var(BaseURLValue(&s.ACMEDirectory), "acme-directory", "`URL` of the ACME server's directory")
	f.Var(parsedValue(&s.HTTPListen, "address", optional(parseAddress)), "http-listen", "plain `ADDRESS`, usually :80, for HTTP-01 challenges; redirects everything else to HTTPS")
	f.Var(boolValue(&s.H2C), "h2c", "accept HTTP/2 without TLS too, from a proxy in front")
	f.Var(boolValue(&s.FastLane), "fast-lane", "answer simple requests for files in front of the general HTTP server, in less than half of the processor time")
	f.Var(boolValue(&s.Dictionaries), "dictionaries", "send browsers that have another version of a file only the difference (RFC 9842); off stores and sends none")
	f.Var(boolValue(&s.OtherCDNURLs), "other-cdn-urls", "redirect addresses as at jsDelivr and unpkg, such as /npm/jquery@3.7.1/dist/jquery.js, to the same file here")
	f.Var(CountValue(&s.MaxConnections, 1), "max-connections", "most public connections at once, `N`; near it new ones close useless and idle ones; lowered to the limit of open files")
	f.Var(&listValue{target: &s.TrustedProxies, kind: "network"}, "trusted-proxies", "`NETWORK` of proxies trusted to name the client, such as 10.0.0.0/8, or unix: for a Unix socket; repeatable")
	f.Var(parsedValue(&s.ForwardedHeader, "field", checked(checkNotEmpty)), "forwarded-header", "`FIELD` in which trusted proxies name the client: a list of addresses, or Forwarded")
	f.Var(boolValue(&s.ProxyProtocol), "proxy-protocol", "require the PROXY protocol (version 1 or 2) on connections of trusted proxies")
	f.Var(sizeValue(&s.Cache, Mebibyte), "cache", "`SIZE` of the memory cache of files")
	f.Var(sizeValue(&s.Sending, Mebibyte), "sending", "`SIZE` of the memory for responses that the cache does not hold; more get 503")
	f.Var(sizeValue(&s.StoreCache, Mebibyte), "store-cache", "`SIZE` of the store's memory cache; about 80 bytes for each file make look-ups fast")
	f.Var(DurationValue(&s.Drain, 0), "drain", "`DURATION` that clients have to finish when the process stops")
	f.Var(DurationValue(&s.LameDuck, 0), "lame-duck", "`DURATION` to serve on before a stop while /readyz is 503, so that load balancers notice")
	f.Var(textValue(&s.ReadyFile, "file"), "ready-file", "write the public address to `FILE` while it serves")
	f.Var(parsedValue(&s.PrivateListen, "address|off", parsePrivateAddress), "private-listen", "private `ADDRESS` of /metrics, /rooms, /nodes, /debug/pprof/, /livez and /readyz, or off; never expose it")
	f.Var(&listValue{target: &s.PrivateHosts, kind: "host", check: checkHost}, "private-hosts", "`HOST` of --private-listen besides addresses and localhost; other names are refused (DNS rebinding); without a port, any; repeatable")

	f.Var(BaseURLValue(&s.AssetBase), "asset-base", "`URL` in front of /ajax/libs/ in tags and the API; default: the request's address")
	f.Var(BaseURLValue(&s.SiteBase), "site-base", "`URL` of the pages; default: the request's address")
	f.Var(parsedValue(&s.APIHost, "host", optional(parseHost)), "api-host", "`HOST` for the API alone, as api.cdnjs.com is; without a port, any")
	f.Var(parsedValue(&s.Name, "text", parseName), "name", "`NAME` of the service in pages and in the API's description")

	f.Var(textValue(&s.PurgeHook, "hook"), "purge-hook",
		"request after a withdrawal, `[METHOD ]URL`: with {url} or {path} once for each file (PURGE), else once with all (POST, JSON)")

	f.Var(textValue(&s.Catalogue, "source"), "catalogue", "catalogue `SOURCE`: https URL of a git repository (#BRANCH if not the default), a local bare one, a folder, a .tar.gz or .zip archive, or starter for the built-in one")
	f.Var(textValue(&s.HookSecretFile, "file"), "hook-secret-file", "`FILE` with the secret of incoming webhooks (POST /hooks/catalogue, POST /hooks/release); or in LARDER_HOOK_SECRET")
	f.Var(CountValue(&s.Releases, 1), "releases", "newest releases that a new package starts with, `N`")
	f.Var(DurationValue(&s.Interval, time.Second), "interval", "longest `DURATION` between two polls of a package and of the catalogue; active packages and the catalogue are polled up to every 5 minutes")
	f.Var(BaseURLValue(&s.Feed), "feed", "`URL` of the registry's change feed (CouchDB's _changes); packages in it are polled at once")
	f.Var(sizeValue(&s.Memory, 16*Mebibyte), "memory", "`SIZE` of the memory for processing and recompressing releases, with child processes")
	f.Var(&listValue{target: &s.AllowHosts, kind: "host"}, "allow-host", "`HOST` that may be fetched from despite a private address or plain http; repeatable")

	f.Var(textValue(&s.SigstoreRoot, "file"), "sigstore-root", "`FILE` with Sigstore's trusted root (trusted_root.json), to verify provenance; default: the built-in one")

	f.Var(&listValue{target: &s.Fallback, kind: "origin"}, "fallback", "`ORIGIN` of missing releases of the catalogue: larder:URL, proven by its log, or cdnjs:URL, whose API gives integrities; repeatable, the first with the release counts")
	f.Var(textValue(&s.FallbackKey, "key"), "fallback-key", "verifier `KEY` of the log of larder: origins; default: the first one seen")
	f.Var(textValue(&s.FallbackRoot, "key"), "fallback-root", "verifier `KEY` of the offline root key of larder: origins, whose list of keys counts in place of fallback-key; default: none")
	f.Var(sizeValue(&s.FallbackQuota, Mebibyte), "fallback-quota", "`SIZE` of all releases taken from other origins")

	f.Var(BaseURLValue(&s.DownloadsURL), "downloads-url", "`URL` of an API like npm's for download counts, which rank search; up and bot request sixty packages an hour; default: none")

	f.Var(textValue(&s.Rooms, "file|off"), "rooms", "`FILE` (YAML) of waiting rooms, or off; the configuration file may have the rooms themselves. Default: one over /download/ with generous limits")

	f.Var(textValue(&s.Keys, "folder"), "keys", "key `DIR`: the log's signing key and last signed checkpoint; default: beside the data folder, keys for data, else its name and -keys")
	f.Var(parsedValue(&s.LogOrigin, "name", optional(checked(signing.CheckOrigin))), "log-origin", "`NAME` of the log for verifiers, such as cdn.example.com/log; fixed when the key is created")
	f.Var(&listValue{target: &s.Witnesses, kind: "url#key"}, "witness", "`URL#KEY` of a witness; a checkpoint is published when more than half of the witnesses have cosigned it; repeatable")
	f.Var(textValue(&s.WitnessPolicy, "file"), "witness-policy", "`FILE` with the witnesses and the quorum of a checkpoint (C2SP tlog-policy), instead of --witness")

	f.Var(parsedValue(&s.Bucket, "bucket", optional(checked(bucket.CheckURL))), "bucket", "shared `BUCKET` of a cluster: s3://NAME[/PREFIX], with credentials and AWS_REGION as for AWS's tools, or file:///DIR")
	f.Var(BaseURLValue(&s.BucketEndpoint), "bucket-endpoint", "`URL` of the bucket's object store, such as https://s3.eu-central-1.amazonaws.com")
	f.Var(parsedValue(&s.NodeURL, "url", optional(checked(checkNodeURL))), "node-url", "`URL` of this node for others of the cluster, such as https://10.0.0.5:8443; it listens there, for nodes with the cluster.key")

	f.Var(parsedValue(&s.Backup, "bucket", optional(checked(bucket.CheckURL))), "backup", "make backups on schedule in a bucket or folder: `TARGET` s3://NAME[/PREFIX] or file:///DIR; the leader of a cluster makes them")
	f.Var(DurationValue(&s.BackupEvery, time.Minute), "backup-every", "`DURATION` between two backups; once a month a backup is restored to a temporary folder")
	f.Var(CountValue(&s.BackupKeep, 1), "backup-keep", "backups that are kept, `N`; the contents of releases withdrawn since the oldest are kept too")

	f.Var(remoteValue(&s.LogRepository), "log-repository", "push the log to the GitHub repository `OWNER/NAME[@BRANCH]`; the token is in LARDER_GITHUB_TOKEN or GITHUB_TOKEN")
	f.Var(BaseURLValue(&s.GitHubURL), "github-url", "`URL` of GitHub's API; for GitHub Enterprise Server https://HOST/api/v3")

	f.Var(textValue(&s.Vulnerabilities, "source"), "vulnerabilities", "`SOURCE` of known vulnerabilities of npm packages for pages: a file (OSV: JSON or .zip), the URL of an OSV API, or off; default: api.osv.dev for up with npm's own registry")
	f.Var(textValue(&s.AccessLog, "file|-"), "access-log", "append a line for each request to `FILE`, - for standard output; default: none")
	f.Var(ChoiceValue(&s.AccessLogFormat, server.AccessLogJSON, server.AccessLogCombined), "access-log-format", "`FORMAT` of --access-log: json, or combined as of nginx and Apache")
	f.Var(ChoiceValue(&s.AccessLogAddresses, server.AccessLogHashed, server.AccessLogPlain, server.AccessLogNone), "access-log-addresses", "`WHAT` --access-log has of clients: hashed (a pseudonym for a day), plain (the address), or none")
	f.Var(ChoiceValue(&s.LogFormat, "text", "json"), "log-format", "`FORMAT` of the log on standard error: text or json")
	f.Var(levelValue(&s.LogLevel), "log-level", "least `LEVEL` logged: debug, info, warn or error; default: fewer on a terminal")
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Value.Type() == "bool" {
			flag.NoOptDefVal = "true" // it may stand without a value
		}
	})
}

// set parses text as the value of the setting name, and records origin, where the value comes from, for messages. After an error
// the former origin stays.
func (s *Settings) set(name, origin, text string) error {
	if err := s.Flags.Lookup(name).Value.Set(text); err != nil {
		return err
	}
	s.origins[name] = origin
	return nil
}

// Origin returns where the value of the setting name came from, for messages: a variable, a line of a file, or else the flag, also
// for a default.
func (s *Settings) Origin(name string) string {
	if origin, ok := s.origins[name]; ok {
		return origin
	}
	return "--" + name
}

// IsSet reports whether the operator has set the setting name, with a flag, a variable or in the configuration file. Presets of a
// profile do not count. A name that no setting has panics.
func (s *Settings) IsSet(name string) bool {
	_, ok := s.origins[name]
	return ok || s.Flags.Lookup(name).Changed
}

// AssetBaseAt returns the URL in front of the files' paths: the one of the settings, or else address, the URL at which the process
// serves. If address is "", it is the URL at which a process with these settings would serve; "" if the system chooses the port,
// or it is a Unix socket.
func (s *Settings) AssetBaseAt(address string) string {
	host, port, err := net.SplitHostPort(s.Listen[0])
	switch {
	case s.AssetBase != "":
		return s.AssetBase
	case address != "":
		return address
	case err != nil || port == "0" || strings.HasPrefix(s.Listen[0], "unix:"):
		return ""
	}
	return s.URLAt(host, port)
}

// URLAt returns the URL, http or https, at which a program on this machine reaches a public listener on host ("" for all
// addresses) and port.
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

// HTTPS reports whether the public address serves HTTPS: the settings name a certificate or a domain for one.
func (s *Settings) HTTPS() bool { return s.TLSCert != "" || len(s.ACMEDomains) > 0 }

// KeyFolder returns the absolute path of the key folder, which need not exist. [Settings.CheckKeyFolder] says whether it may be
// there.
func (s *Settings) KeyFolder() string {
	data := Absolute(s.Data)
	switch {
	case s.Keys != "":
		return Absolute(s.Keys)
	case filepath.Base(data) != "data":
		return data + "-keys"
	}
	return filepath.Join(filepath.Dir(data), "keys")
}

// Absolute returns the absolute form of a path; the path itself if the working directory is gone.
func Absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// CheckKeyFolder returns a [Mistake] if the key folder is the data folder or below it: restoring a backup would take the last signed
// checkpoint back, and a fork of the log would go unnoticed. It is not for a witness, whose keys have nothing to do with a data
// folder.
func (s *Settings) CheckKeyFolder() error {
	below, err := filepath.Rel(Absolute(s.Data), s.KeyFolder())
	if err == nil && below != ".." && !strings.HasPrefix(below, ".."+string(filepath.Separator)) {
		return Mistakef("%s: the key folder must not be in the data folder, because a backup of that must not take the last signed checkpoint back", s.Origin("keys"))
	}
	return nil
}

// NewLogger returns a logger that writes to w as text or JSON. Its level is --log-level, or least if that was not set. A reload
// changes the level, also of loggers that were returned before. Warnings and errors that repeat are counted instead of written each
// time: see [repeatHandler].
func (s *Settings) NewLogger(w io.Writer, least slog.Level) *slog.Logger {
	s.least = least
	s.ApplyLogLevel()
	options := &slog.HandlerOptions{Level: s.level}
	var handler slog.Handler = slog.NewTextHandler(w, options)
	if s.LogFormat == "json" {
		handler = slog.NewJSONHandler(w, options)
	}
	return slog.New(newRepeatHandler(handler))
}

// A Mistake is an error in the settings or the command line that shows only later: running the same again cannot help.
type Mistake struct{ Err error }

// Mistakef returns a Mistake with the error of [fmt.Errorf].
func Mistakef(format string, args ...any) Mistake { return Mistake{fmt.Errorf(format, args...)} }

// Error returns the text of the mistake.
func (m Mistake) Error() string { return m.Err.Error() }

// Unwrap returns the error that describes the mistake.
func (m Mistake) Unwrap() error { return m.Err }
