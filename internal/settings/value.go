package settings

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"

	"github.com/larder-cdn/larder/internal/lazyregexp"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/gitlog"
	"github.com/larder-cdn/larder/logs/signing"
)

// value is a setting's value as pflag wants it: text that is checked when it is set, whether it comes from a flag,
// the environment or the configuration file.
type value[T comparable] struct {
	target *T
	parse  func(string) (T, error)
	format func(T) string
	kind   string // what --help and the documentation call it
	isBool bool   // may stand without a value
}

func (v *value[T]) Set(text string) error {
	parsed, err := v.parse(text)
	if err == nil {
		*v.target = parsed
	}
	return err
}

func (v *value[T]) String() string {
	if v.target == nil { // pflag asks a zero value for its text
		return ""
	}
	return v.format(*v.target)
}

// takeFrom has it be what another setting of the same name is, and reports whether it was that before.
func (v *value[T]) takeFrom(other pflag.Value) (same bool) {
	o := other.(*value[T])
	same = *v.target == *o.target
	*v.target = *o.target
	return same
}

func (v *value[T]) Type() string     { return v.kind }
func (v *value[T]) IsBoolFlag() bool { return v.isBool }

func verbatim(s string) string { return s }

// optional makes a parser of one that does not take an empty text, which then stands for nothing.
func optional[T any](parse func(string) (T, error)) func(string) (T, error) {
	return func(s string) (nothing T, err error) {
		if s == "" {
			return nothing, nil
		}
		return parse(s)
	}
}

func textValue(target *string, kind string) *value[string] {
	return &value[string]{target: target, kind: kind, format: verbatim,
		parse: func(s string) (string, error) { return s, nil }}
}

// requiredValue is text that cannot be empty.
func requiredValue(target *string, kind string) *value[string] {
	return &value[string]{target: target, kind: kind, format: verbatim, parse: func(s string) (string, error) {
		if s == "" {
			return "", errors.New("must not be empty")
		}
		return s, nil
	}}
}

// Choice is one of several words.
func Choice(target *string, choices ...string) pflag.Value {
	return &value[string]{target: target, kind: strings.Join(choices, "|"), format: verbatim, parse: func(s string) (string, error) {
		for _, c := range choices {
			if strings.EqualFold(s, c) {
				return c, nil
			}
		}
		return "", fmt.Errorf("must be one of %s", strings.Join(choices, ", "))
	}}
}

func boolValue(target *bool) *value[bool] {
	return &value[bool]{target: target, kind: "bool", isBool: true, format: strconv.FormatBool, parse: func(s string) (bool, error) {
		parsed, err := strconv.ParseBool(s)
		if err != nil {
			return false, errors.New("must be true or false")
		}
		return parsed, nil
	}}
}

// Count is a whole number, least or more.
func Count(target *int, least int) pflag.Value {
	return &value[int]{target: target, kind: "int", format: strconv.Itoa, parse: func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < least {
			return 0, fmt.Errorf("must be a whole number, %d or more", least)
		}
		return n, nil
	}}
}

// Duration is a length of time, least or more.
func Duration(target *time.Duration, least time.Duration) pflag.Value {
	return &value[time.Duration]{target: target, kind: "duration", format: shortDuration, parse: func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		if err != nil || d < least {
			return 0, fmt.Errorf("must be a duration such as 90s, 15m or 1h, at least %s", shortDuration(least))
		}
		return d, nil
	}}
}

// shortDuration drops the zeros that time.Duration prints: 1h rather than 1h0m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// sizeValue is a number of bytes, least or more, written with or without a unit.
func sizeValue(target *int64, least int64) *value[int64] {
	format := func(n int64) string { return strings.ReplaceAll(humanize.IBytes(uint64(n)), " ", "") }
	return &value[int64]{target: target, kind: "size", format: format, parse: func(s string) (int64, error) {
		n, err := humanize.ParseBytes(s)
		if err != nil || n > math.MaxInt64 || int64(n) < least {
			return 0, fmt.Errorf("must be a size such as 256MiB or 1GB, at least %s", format(least))
		}
		return int64(n), nil
	}}
}

// checkAddress looks at a public address, which may be a Unix socket's.
func checkAddress(s string) error {
	path, isUnix := strings.CutPrefix(s, unixPrefix)
	switch {
	case !isUnix:
		_, err := parseAddress(s)
		return err
	case path == "" || strings.HasPrefix(path, "@"):
		return errors.New("must name the path of a Unix socket, such as unix:/run/larder/public.sock")
	case len(path) > mostSocketPath:
		return fmt.Errorf("names a path of %d bytes, and a socket's has %d at most", len(path), mostSocketPath)
	}
	return nil
}

// unixPrefix begins the address of a Unix socket.
const unixPrefix = "unix:"

// mostSocketPath is what a socket's address holds on every system we know.
const mostSocketPath = 103

// optionalAddressValue also accepts off, and nothing at all, for no listener.
func optionalAddressValue(target *string) *value[string] {
	return &value[string]{target: target, kind: "address|off", format: verbatim, parse: func(s string) (string, error) {
		if s == "" || s == Off {
			return Off, nil
		}
		return parseAddress(s)
	}}
}

// optionalAddress may be empty, for no listener.
func optionalAddress(target *string) *value[string] {
	return &value[string]{target: target, kind: "address", format: verbatim, parse: optional(parseAddress)}
}

// Off is the address of a listener that is turned off.
const Off = "off"

func parseAddress(s string) (string, error) {
	const want = "must be an address such as 127.0.0.1:8080, or :8080 for every interface"
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", errors.New(want)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > math.MaxUint16 {
		return "", fmt.Errorf("%s; %q is not a port", want, port)
	}
	return s, nil
}

// Base is a URL that paths are put behind, without the slash at its end; or nothing.
func Base(target *string) pflag.Value {
	return &value[string]{target: target, kind: "url", format: verbatim, parse: parseBase}
}

func parseBase(s string) (string, error) {
	const want = "must be a URL such as https://cdn.example.com"
	if s == "" {
		return "", nil
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Opaque != "" || u.Host == "" || u.Scheme != "http" && u.Scheme != "https": // url.Parse has lowered the scheme
		return "", errors.New(want)
	case u.User != nil:
		return "", fmt.Errorf("%s; a name or password would be sent to every visitor", want)
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(s, "#"):
		return "", fmt.Errorf("%s; paths are put behind it, so it can have no query and no fragment", want)
	}
	host, err := parseHost(u.Host)
	if err != nil {
		return "", fmt.Errorf("%s; its host %w", want, err)
	}
	path := strings.TrimRight(u.EscapedPath(), "/")
	for segment := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		segment = strings.ReplaceAll(strings.ToLower(segment), "%2e", ".")
		if path != "" && (segment == "" || segment == "." || segment == "..") {
			return "", fmt.Errorf("%s; its path must be one that a browser leaves as it is", want)
		}
	}
	return u.Scheme + "://" + host + path, nil
}

// hostValue is a host as clients send it, with or without a port; or nothing.
func hostValue(target *string) *value[string] {
	return &value[string]{target: target, kind: "host", format: verbatim, parse: optional(parseHost)}
}

// hostName is what RFC 1123 has for names, and what people have besides: underscores, and a dot at the end. The names of
// the rest of the world are written in Punycode.
var hostName = lazyregexp.New(`^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.?$`)

// parseHost returns a host, with or without a port, in lower case.
func parseHost(s string) (string, error) {
	const want = "must be a host such as api.example.com or api.example.com:8080"
	s = strings.ToLower(s)
	host, port := s, ""
	if i := strings.LastIndexByte(s, ':'); i > strings.LastIndexByte(s, ']') && !strings.Contains(s, "/") {
		host, port = s[:i], s[i+1:]
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "", fmt.Errorf("%s; %q is not a port", want, port)
		}
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		if address, err := netip.ParseAddr(strings.TrimSuffix(inner, "]")); err == nil && address.Is6() && address.Zone() == "" && strings.HasSuffix(inner, "]") {
			return s, nil
		}
	} else if len(host) <= 253 && hostName.MatchString(host) {
		return s, nil
	}
	return "", errors.New(want)
}

// checkHost accepts a host as clients send it, with or without a port.
func checkHost(s string) error {
	_, err := parseHost(s)
	return err
}

// checkDomain accepts a name that certificates can be for, without a wildcard, which would need DNS-01.
func checkDomain(s string) error {
	host, err := parseHost(s)
	if _, address := netip.ParseAddr(s); err != nil || address == nil || host != s || strings.ContainsAny(s, ":_") || !strings.Contains(strings.TrimRight(s, "."), ".") || strings.HasSuffix(s, ".") {
		return fmt.Errorf("must be a domain such as cdn.example.com, in small letters, without a port and without *; %q is not", s)
	}
	return nil
}

// labelValue is a line of text for people, of at most most characters.
func labelValue(target *string, most int) *value[string] {
	return &value[string]{target: target, kind: "text", format: verbatim, parse: func(s string) (string, error) {
		s = strings.TrimSpace(s)
		if s == "" || !utf8.ValidString(s) || utf8.RuneCountInString(s) > most || s != text.Plain(s) {
			return "", fmt.Errorf("must be text of one line, at most %d characters", most)
		}
		return s, nil
	}}
}

// originValue is what a log may be called; or nothing.
func originValue(target *string) *value[string] {
	return &value[string]{target: target, kind: "name", format: verbatim, parse: optional(func(s string) (string, error) {
		return s, signing.CheckOrigin(s)
	})}
}

// remoteValue is a branch of a repository on GitHub; or nothing.
func remoteValue(target *gitlog.Remote) *value[gitlog.Remote] {
	format := func(r gitlog.Remote) string {
		if r == (gitlog.Remote{}) {
			return ""
		}
		return r.String()
	}
	return &value[gitlog.Remote]{target: target, kind: "repository", format: format, parse: optional(gitlog.ParseRemote)}
}

func levelValue(target *slog.Level) *value[slog.Level] {
	format := func(l slog.Level) string { return strings.ToLower(l.String()) }
	return &value[slog.Level]{target: target, kind: "debug|info|warn|error", format: format, parse: func(s string) (slog.Level, error) {
		var l slog.Level
		if err := l.UnmarshalText([]byte(s)); err != nil {
			return 0, errors.New("must be one of debug, info, warn, error")
		}
		return l, nil
	}}
}

// listValue is a setting that may be given several times. What is set first replaces the default; in the environment
// the members are separated by commas.
type listValue struct {
	target *[]string
	kind   string
	check  func(string) error // of each member; nil where any text will do
	set    bool
}

func (v *listValue) Set(text string) error {
	if !v.set {
		*v.target, v.set = nil, true
	}
	for member := range strings.SplitSeq(text, ",") {
		if member = strings.TrimSpace(member); member == "" {
			return errors.New("must not be empty")
		}
		if v.check != nil {
			if err := v.check(member); err != nil {
				return err
			}
		}
		*v.target = append(*v.target, member)
	}
	return nil
}

func (v *listValue) String() string {
	if v.target == nil {
		return ""
	}
	return strings.Join(*v.target, ",")
}

func (v *listValue) takeFrom(other pflag.Value) (same bool) {
	o := other.(*listValue)
	same = slices.Equal(*v.target, *o.target)
	*v.target, v.set = slices.Clone(*o.target), o.set
	return same
}

func (v *listValue) Type() string { return v.kind }

// bucketValue is the URL of a bucket.
func bucketValue(target *string) pflag.Value {
	return &value[string]{target: target, kind: "bucket", format: verbatim, parse: func(s string) (string, error) {
		if s == "" {
			return "", nil
		}
		return s, bucket.CheckURL(s)
	}}
}

// nodeValue is the URL of a node, which has nothing but a host and a port.
func nodeValue(target *string) pflag.Value {
	return &value[string]{target: target, kind: "url", format: verbatim, parse: func(s string) (string, error) {
		if s == "" {
			return "", nil
		}
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || s != "https://"+u.Host {
			return "", errors.New("must be a URL such as https://10.0.0.5:8443: https, a host, a port, and nothing else")
		}
		return s, nil
	}}
}
