package catalogue

import (
	"log/slog"
	"net/http"

	"github.com/larder-cdn/larder/bot/git"
)

// HookPath is the path of [Watcher.Hook].
const HookPath = "/hooks/catalogue"

// maxPush bounds a push event in bytes. GitHub's lists two thousand commits at most.
const maxPush = 8 << 20

// Hook returns the webhook by which a git host reports pushes to the catalogue, in deliveries with a secret.
func (k *Watcher) Hook(secret string, logger *slog.Logger) http.Handler {
	return &git.Webhook{
		Secret: secret, MaxBytes: maxPush, Logger: logger,
		Handle: func(d git.Delivery) (int, string) { return handlePush(d, k.State().Branch, k.Refresh) },
	}
}

// handlePush handles an event, and calls refresh if it is a push to the catalogue's branch, "" for any.
func handlePush(d git.Delivery, branch string, refresh func()) (status int, message string) {
	switch d.Event {
	case "ping":
		return http.StatusOK, "the secret is right"
	case "push":
		to, ok := git.PushedBranch(d.Payload)
		if !ok || branch != "" && to != branch {
			return http.StatusOK, "nothing to do: it is not a push to the branch of the catalogue"
		}
		refresh()
		return http.StatusAccepted, "the catalogue is polled next"
	}
	return http.StatusOK, "nothing to do for this event; the catalogue needs push events"
}
