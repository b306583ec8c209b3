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

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs/gitlog"
)

// value is a setting's value as pflag wants it: text that is checked when it is set, whether it comes from a flag,
// the environment or the configuration file.
type value[T comparable] struct {
	target *T
	parse  func(string) (T, error)
	format func(T) string
	kind   string // what --help and the documentation call it
}

// Set implements pflag.Value: it parses text and sets the target. After an error the target stays.
func (v *value[T]) Set(text string) error {
	parsed, err := v.parse(text)
	if err == nil {
		*v.target = parsed
	}
	return err
}

// String implements pflag.Value: it returns the text of the present value; "" if there is no target, as pflag makes one to compare.
func (v *value[T]) String() string {
	if v.target == nil { // pflag formats a zero value
		return ""
	}
	return v.format(*v.target)
}

// copyFrom implements [copied]: it copies the value of other, the same setting of another version, and reports whether this one
// had that value before.
func (v *value[T]) copyFrom(other pflag.Value) (same bool) {
	o := other.(*value[T])
	same = *v.target == *o.target
	*v.target = *o.target
	return same
}

// Type implements pflag.Value: it returns what --help calls the kind of value, such as "duration".
func (v *value[T]) Type() string { return v.kind }

// optional returns a parser that returns the zero value and no error for "", and parses other texts with parse.
func optional[T any](parse func(string) (T, error)) func(string) (T, error) {
	return func(s string) (nothing T, err error) {
		if s == "" {
			return nothing, nil
		}
		return parse(s)
	}
}

// checked returns a parser that returns texts unchanged, or the error of check.
func checked(check func(string) error) func(string) (string, error) {
	return func(s string) (string, error) { return s, check(s) }
}

// parsedValue returns a setting that is text, of which target receives what parse returns. kind is what --help calls the value.
func parsedValue(target *string, kind string, parse func(string) (string, error)) *value[string] {
	return &value[string]{target: target, kind: kind, format: func(s string) string { return s }, parse: parse}
}

// textValue returns a setting that may be any text, which target receives. kind is what --help calls the value.
func textValue(target *string, kind string) *value[string] {
	return parsedValue(target, kind, checked(func(string) error { return nil }))
}

// checkNotEmpty returns an error for "".
func checkNotEmpty(s string) error {
	if s == "" {
		return errors.New("must not be empty")
	}
	return nil
}

// ChoiceValue returns a setting that is one of several words, with letters of any case. target receives the word as it is in
// choices.
func ChoiceValue(target *string, choices ...string) pflag.Value {
	return parsedValue(target, strings.Join(choices, "|"), func(s string) (string, error) {
		for _, c := range choices {
			if strings.EqualFold(s, c) {
				return c, nil
			}
		}
		return "", fmt.Errorf("must be one of %s", strings.Join(choices, ", "))
	})
}

// boolValue returns a setting that is a bool, as [strconv.ParseBool] reads it, or on or off. target receives it.
func boolValue(target *bool) *value[bool] {
	return &value[bool]{target: target, kind: "bool", format: strconv.FormatBool, parse: func(s string) (bool, error) {
		switch s {
		case "on":
			return true, nil
		case Off:
			return false, nil
		}
		parsed, err := strconv.ParseBool(s)
		if err != nil {
			return false, errors.New("must be true or false")
		}
		return parsed, nil
	}}
}

// CountValue returns a setting that is a whole number of least or more, which target receives.
func CountValue(target *int, least int) pflag.Value {
	return &value[int]{target: target, kind: "int", format: strconv.Itoa, parse: func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < least {
			return 0, fmt.Errorf("must be a whole number, %d or more", least)
		}
		return n, nil
	}}
}

// DurationValue returns a setting that is a duration such as 15m, of least or more, which target receives.
func DurationValue(target *time.Duration, least time.Duration) pflag.Value {
	return &value[time.Duration]{target: target, kind: "duration", format: formatDuration, parse: func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		if err != nil || d < least {
			return 0, fmt.Errorf("must be a duration such as 90s, 15m or 1h, at least %s", formatDuration(least))
		}
		return d, nil
	}}
}

// formatDuration returns a duration as text without the zeros that time.Duration prints: 1h rather than 1h0m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// sizeValue returns a setting that is a number of bytes, of least or more, written with or without a unit, such as 256MiB. target
// receives it.
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

// checkAddress returns an error unless s is a public address: host and port, or unix: and the path of a socket.
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

// parsePrivateAddress returns s unchanged if it is the address of a listener, HOST:PORT; [Off] for off or "".
func parsePrivateAddress(s string) (string, error) {
	if s == "" || s == Off {
		return Off, nil
	}
	return parseAddress(s)
}

// Off is the address of a listener that is turned off.
const Off = "off"

// parseAddress returns s unchanged if it is HOST:PORT with a number as port, 0 included, else an error. The host may be empty, and is
// not checked.
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

// BaseURLValue returns a setting that is an http or https URL to which paths are appended, or "". target receives it without a
// slash at its end.
func BaseURLValue(target *string) pflag.Value {
	return parsedValue(target, "url", parseBaseURL)
}

// parseBaseURL returns an http or https URL to which paths can be appended, without a slash at its end; "" for "". A URL with a
// user, a query or a fragment is an error.
func parseBaseURL(s string) (string, error) {
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
	if port := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]; strings.HasSuffix(host, port) {
		host = strings.TrimSuffix(host, port) // as browsers write it
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

// hostName is what RFC 1123 has for names, and what people have besides: underscores, and a dot at the end. The names of
// the rest of the world are written in Punycode.
var hostName = text.NewRegexp(`^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.?$`)

// parseHost checks that s is a host, a name or an IP address, with or without a port, and returns it in lower case.
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

// checkHost returns an error unless s is a host, a name or an IP address, with or without a port.
func checkHost(s string) error {
	_, err := parseHost(s)
	return err
}

// checkDomain returns an error unless s is a domain that certificates can be for. Wildcards are refused, because they would need
// DNS-01.
func checkDomain(s string) error {
	host, err := parseHost(s)
	if _, address := netip.ParseAddr(s); err != nil || address == nil || host != s || strings.ContainsAny(s, ":_") || !strings.Contains(strings.TrimRight(s, "."), ".") || strings.HasSuffix(s, ".") {
		return fmt.Errorf("must be a domain such as cdn.example.com, in small letters, without a port and without *; %q is not", s)
	}
	return nil
}

// maxName limits the name of the service, in characters.
const maxName = 60

// parseName returns s without spaces around it if it is a line of text for people, from one to maxName characters.
func parseName(s string) (string, error) {
	s = strings.TrimSpace(s)
	if s == "" || !utf8.ValidString(s) || utf8.RuneCountInString(s) > maxName || s != text.Plain(s) {
		return "", fmt.Errorf("must be text of one line, at most %d characters", maxName)
	}
	return s, nil
}

// remoteValue returns a setting that is a branch of a repository on GitHub, or "". target receives it.
func remoteValue(target *gitlog.Remote) *value[gitlog.Remote] {
	format := func(r gitlog.Remote) string {
		if r == (gitlog.Remote{}) {
			return ""
		}
		return r.String()
	}
	return &value[gitlog.Remote]{target: target, kind: "repository", format: format, parse: optional(gitlog.ParseRemote)}
}

// levelValue returns a setting that is a log level: debug, info, warn or error, in any case and, as for [slog.Level], perhaps with an
// offset such as info+2. target receives it.
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

// Set implements pflag.Value: it adds the members in text, which are separated by commas. The first call removes the default.
// After an error the members before the wrong one stay.
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

// String implements pflag.Value: it returns the members, separated by commas.
func (v *listValue) String() string {
	if v.target == nil {
		return ""
	}
	return strings.Join(*v.target, ",")
}

// copyFrom implements [copied]: it copies the members of other, the same setting of another version, and reports whether this one
// had the same members before.
func (v *listValue) copyFrom(other pflag.Value) (same bool) {
	o := other.(*listValue)
	same = slices.Equal(*v.target, *o.target)
	*v.target, v.set = slices.Clone(*o.target), o.set
	return same
}

// Type implements pflag.Value: it returns what --help calls a member, such as "address".
func (v *listValue) Type() string { return v.kind }

// checkNodeURL returns an error unless s is the URL of a cluster node: https, a host and a port.
func checkNodeURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || s != "https://"+u.Host {
		return errors.New("must be a URL such as https://10.0.0.5:8443: https, a host, a port, and nothing else")
	}
	return nil
}
