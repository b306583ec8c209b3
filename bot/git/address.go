package git

import (
	"net/url"
	"regexp"
	"strings"
)

// scpLike is git's short form of an ssh address: [user@]host:path.
var scpLike = regexp.MustCompile(`^(?:[A-Za-z0-9._-]+@)?([A-Za-z0-9.-]+):([^/:\s]\S*)$`)

// maxAddress is the longest address of a repository, in bytes.
const maxAddress = 2048

// parseAddress reads the address of a repository in any of git's forms, and returns where it is over
// https. Old package JSONs have git://, which hosts have stopped to answer, and ssh, which wants a key
// that nobody here has; the same repositories answer over https.
func parseAddress(target string) (*url.URL, error) {
	target = strings.TrimSpace(target)
	if len(target) > maxAddress {
		return nil, refuse("the address of the repository has %d bytes, over the limit of %d", len(target), maxAddress)
	}
	if !strings.Contains(target, "://") {
		if m := scpLike.FindStringSubmatch(target); m != nil {
			target = "ssh://" + m[1] + "/" + m[2]
		}
	}
	at, err := url.Parse(strings.TrimPrefix(target, "git+"))
	if err != nil || at.Hostname() == "" || strings.Trim(at.Path, "/") == "" {
		// url.Error repeats the URL, which may hold credentials.
		return nil, refuse("the address of the repository is no URL such as https://example.com/owner/name.git")
	}
	switch at.Scheme {
	case "git", "ssh":
		at.Scheme, at.User = "https", nil
		at.Host = at.Hostname() // their ports are not that of https
		if strings.Contains(at.Host, ":") {
			at.Host = "[" + at.Host + "]"
		}
	case "https", "http":
	default:
		return nil, refuse("the address of the repository begins with %.20q; https: is what can be asked", at.Scheme+":")
	}
	if at.User != nil {
		return nil, refuse("the address of the repository has a user or a password in it, which are sent to nobody")
	}
	at.Host = strings.ToLower(at.Host)
	at.RawQuery, at.Fragment, at.RawFragment = "", "", ""
	at.Path, at.RawPath = strings.TrimRight(at.Path, "/"), ""
	return at, nil
}
