package packages

import (
	"strings"

	"github.com/larder-cdn/larder/internal/text"
)

var gitHubAddress = text.NewRegexp(`(?i)^(?:git\+)?(?:(?:https?|git|ssh)://)?(?:[^@/]*@)?(?:www\.)?github\.com[/:]([A-Za-z0-9-]{1,100})/([A-Za-z0-9._-]{1,100}?)(?:\.git)?(?:[/#?].*)?$`)

// ParseGitHubAddress returns owner and name of the repository at GitHub that an address names, in any of the forms that package
// JSONs and npm have. ok is false if the address is of another host, or names no repository.
func ParseGitHubAddress(address string) (owner, name string, ok bool) {
	m := gitHubAddress.FindStringSubmatch(strings.TrimSpace(address))
	if m == nil || strings.Trim(m[2], ".") == "" {
		return "", "", false
	}
	return m[1], m[2], true
}
