package server

import (
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
)

// RedirectToHTTPS returns a handler that redirects (308) GET and HEAD requests to the same URL by HTTPS. It responds 403 to other methods, and 400 if
// the Host field is missing or malformed. A request whose Host has a port has not come through a port forwarding, so it is redirected to the port of
// public; nil means the default port, 443.
func RedirectToHTTPS(public *net.TCPAddr) http.Handler {
	port := ""
	if public != nil && public.Port != 443 {
		port = strconv.Itoa(public.Port)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin, ok := requests.Origin(r)
		switch {
		case !ok:
			(&answers.Failure{Status: http.StatusBadRequest, Message: "the Host field is missing or malformed"}).SendJSON(w, r)
			return
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			(&answers.Failure{Status: http.StatusForbidden, Message: "this needs https"}).SendJSON(w, r)
			return
		}
		_, host, _ := strings.Cut(origin, "://")
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
			if strings.Contains(name, ":") {
				host = "[" + name + "]"
			}
			if port != "" {
				host = net.JoinHostPort(name, port)
			}
		}
		answers.NoStore.SetHeader(w.Header())
		w.Header().Set("Location", "https://"+host+r.URL.RequestURI())
		w.WriteHeader(http.StatusPermanentRedirect)
	})
}
