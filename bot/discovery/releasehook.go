package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/internal/text"
)

// ReleaseHookPath is the path of [Scheduler.ReleaseHook].
const ReleaseHookPath = "/hooks/release"

// The bounds of a delivery. npm's contains the complete packument, of which only the name counts.
const (
	mostReleased = 8 << 20 // bytes
	mostNamed    = 1000    // packages
	mostUnknown  = 10      // names that a response repeats
)

// ReleaseHook returns the handler of the webhook by which git hosts, npm registries and others report new releases. It accepts
// only deliveries that are signed with secret. The bot takes only the names of packages from them, and requests everything else
// from upstream.
func (sc *Scheduler) ReleaseHook(secret string, logger *slog.Logger) http.Handler {
	return &git.Webhook{
		Secret: secret, MaxBytes: mostReleased, Logger: logger,
		Handle: sc.handleReleaseEvent,
	}
}

// handleReleaseEvent announces the packages of the catalogue that a delivery is about: an event of GitHub about a repository, one
// of an npm registry about a package, or a list of packages. It returns HTTP status and message of the response to the sender.
func (sc *Scheduler) handleReleaseEvent(d git.Delivery) (status int, message string) {
	if d.Event == "ping" {
		return http.StatusOK, "the secret is right"
	}
	var about struct {
		Packages []string `json:"packages"` // names here, or else in npm
		Event    string   `json:"event"`    // npm's
		Name     string   `json:"name"`
	}
	if err := json.Unmarshal(d.Payload, &about); err != nil {
		return http.StatusBadRequest, `want JSON such as {"packages": ["jquery"]}`
	}
	var found []string
	switch {
	case d.Event != "":
		addresses, ok := git.ParseReleaseEvent(d.Event, d.Payload)
		if !ok {
			return http.StatusOK, "nothing to do: neither a push of a tag nor a release"
		}
		for _, address := range addresses {
			found = append(found, sc.PackagesFromRepository(address)...)
		}
	case about.Event != "":
		found = sc.PackagesFromNpm(about.Name)
	case len(about.Packages) == 0 || len(about.Packages) > mostNamed:
		return http.StatusBadRequest, fmt.Sprintf(`want {"packages": ["jquery"]} with 1 to %d names`, mostNamed)
	default:
		return sc.announceNamed(about.Packages)
	}
	if len(found) == 0 {
		return http.StatusOK, "nothing to do: no package of the catalogue comes from there"
	}
	return sc.announceAll(found, "")
}

// announceNamed announces packages by their names in the catalogue or in npm. It returns status and message of the response to
// the sender, which lists unknown names; the status is 404 if it finds no package.
func (sc *Scheduler) announceNamed(names []string) (status int, message string) {
	var found, unknown []string
	for _, name := range names {
		here := sc.PackagesNamed(name)
		if len(here) == 0 {
			unknown = append(unknown, text.Short(name, 100))
		}
		found = append(found, here...)
	}
	if unknown == nil {
		return sc.announceAll(found, "")
	}
	lacks := fmt.Sprintf("the catalogue has no package %s", strings.Join(unknown[:min(len(unknown), mostUnknown)], ", "))
	if n := len(unknown) - mostUnknown; n > 0 {
		lacks += fmt.Sprintf(" and %d others", n)
	}
	if len(found) == 0 {
		return http.StatusNotFound, lacks
	}
	return sc.announceAll(found, "; "+lacks)
}

// announceAll announces packages of the catalogue, so that they are polled next, and returns status and message of the response
// to the sender. The message ends with besides.
func (sc *Scheduler) announceAll(names []string, besides string) (status int, message string) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if err := sc.Announce(context.Background(), names...); err != nil {
		return http.StatusServiceUnavailable, "the packages are polled, but not after a restart: " + err.Error()
	}
	if len(names) == 1 {
		return http.StatusAccepted, names[0] + " is polled next" + besides
	}
	return http.StatusAccepted, fmt.Sprintf("%d packages are polled next", len(names)) + besides
}
