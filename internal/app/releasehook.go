package app

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/internal/text"
)

// releasePath is where it is said that packages have a release.
const releasePath = "/hooks/release"

// The bounds of a delivery. npm's has the whole packument in it, of which only the name counts.
const (
	mostReleased = 8 << 20 // bytes
	mostNamed    = 1000    // packages
	mostUnknown  = 10      // names that an answer repeats
)

// releaseHook is the webhook that has packages looked at. It takes names only; everything else is asked of upstream.
func releaseHook(b *bot.Bot, secret string, logger *slog.Logger) http.Handler {
	return &git.Webhook{
		Secret: secret, MaxBytes: mostReleased, Logger: logger,
		Take: func(d git.Delivery) (int, string) { return released(b, d) },
	}
}

// released takes an event: from GitHub about a repository, from a npm registry about a package, or a list of packages.
func released(b *bot.Bot, d git.Delivery) (status int, message string) {
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
		addresses, ok := git.ReleasedIn(d.Event, d.Payload)
		if !ok {
			return http.StatusOK, "nothing to do: it is no push of a tag, and no release"
		}
		for _, address := range addresses {
			found = append(found, b.DevelopedAt(address)...)
		}
	case about.Event != "":
		found = b.Followers(about.Name)
	case len(about.Packages) == 0 || len(about.Packages) > mostNamed:
		return http.StatusBadRequest, fmt.Sprintf(`want {"packages": ["jquery"]} with 1 to %d names`, mostNamed)
	default:
		return announced(b, about.Packages)
	}
	if len(found) == 0 {
		return http.StatusOK, "nothing to do: no package of the catalogue comes from there"
	}
	return announce(b, found, "")
}

// announced takes a list of names. One that is not known at all is an error of the caller.
func announced(b *bot.Bot, names []string) (status int, message string) {
	var found, unknown []string
	for _, name := range names {
		here := b.Named(name)
		if len(here) == 0 {
			unknown = append(unknown, text.Short(name, 100))
		}
		found = append(found, here...)
	}
	if unknown == nil {
		return announce(b, found, "")
	}
	lacks := fmt.Sprintf("the catalogue has no package %s", strings.Join(unknown[:min(len(unknown), mostUnknown)], ", "))
	if n := len(unknown) - mostUnknown; n > 0 {
		lacks += fmt.Sprintf(" and %d others", n)
	}
	if len(found) == 0 {
		return http.StatusNotFound, lacks
	}
	return announce(b, found, "; "+lacks)
}

func announce(b *bot.Bot, names []string, besides string) (status int, message string) {
	slices.Sort(names)
	names = slices.Compact(names)
	if err := b.Announce(context.Background(), names...); err != nil {
		return http.StatusServiceUnavailable, "the packages are looked at, but a restart would forget that: " + err.Error()
	}
	if len(names) == 1 {
		return http.StatusAccepted, names[0] + " is about to be looked at" + besides
	}
	return http.StatusAccepted, fmt.Sprintf("%d packages are about to be looked at", len(names)) + besides
}
