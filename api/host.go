package api

import (
	"net/http"
	"regexp"
	"strings"
)

// plausibleHost is a Host header that may become part of a URL: a name or an address, and a port.
var plausibleHost = regexp.MustCompile(`^(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?$`)

// origin returns the scheme and host under which a client reached us, or badHost. What a proxy in front says of itself
// is not heard, because any client can say it too: behind one, the bases are configured.
func origin(r *http.Request) (string, error) {
	if !plausibleHost.MatchString(r.Host) {
		return "", badHost
	}
	if r.TLS != nil {
		return "https://" + strings.ToLower(r.Host), nil
	}
	return "http://" + strings.ToLower(r.Host), nil
}

// baseOr returns base where it is configured, else the request's origin.
func baseOr(base string, r *http.Request) (string, error) {
	if base != "" {
		return base, nil
	}
	return origin(r)
}

// isHost reports whether a Host header names want. The port counts only where want has one.
func isHost(host, want string) bool {
	if want == "" {
		return false
	}
	if _, port := splitPort(want); port == "" {
		host, _ = splitPort(host)
	}
	return strings.EqualFold(host, want)
}

// splitPort cuts the port off, which is "" where there is none. The colons of an address in brackets are its own.
func splitPort(host string) (name, port string) {
	i := strings.LastIndexByte(host, ':')
	if i < 0 || strings.IndexByte(host[i:], ']') >= 0 {
		return host, ""
	}
	return host[:i], host[i+1:]
}
