package api

import (
	"net/http"
	"strings"

	"github.com/larder-cdn/larder/api/address"
)

// origin returns the scheme and host under which a client reached us, or badHost.
func origin(r *http.Request) (string, error) {
	o, ok := address.Origin(r)
	if !ok {
		return "", badHost
	}
	return o, nil
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
