package bot

import (
	"log/slog"
	"net/http"

	"github.com/larder-cdn/larder/bot/git"
)

// CatalogueHookPath is the path of [CatalogueWatcher.Hook].
const CatalogueHookPath = "/hooks/catalogue"

// maxCataloguePush bounds a push event in bytes. GitHub's lists two thousand commits at most.
const maxCataloguePush = 8 << 20

// Hook returns the handler of the webhook by which a git host reports pushes to the catalogue. It accepts only deliveries that
// are signed with secret. A push to the branch of the catalogue makes Run poll soon.
func (w *CatalogueWatcher) Hook(secret string, logger *slog.Logger) http.Handler {
	return &git.Webhook{
		Secret: secret, MaxBytes: maxCataloguePush, Logger: logger,
		Handle: func(d git.Delivery) (int, string) { return handleCataloguePush(d, w.State().Branch, w.Refresh) },
	}
}

// handleCataloguePush handles an event of a git host, and calls refresh if it is a push to the branch; for the branch "", a push
// to any. It returns HTTP status and message of the response, 200 if it does nothing.
func handleCataloguePush(d git.Delivery, branch string, refresh func()) (status int, message string) {
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
