package usage

import (
	"log/slog"

	"github.com/larder-cdn/larder/internal/parts"
)

// Part returns the part of a role that stores the counts of requests for files every minute, and for the last time when it
// stops. It must stop after all requests have been answered. It logs a failure of the last write to logger, and does not
// return it.
func (u *Usage) Part(logger *slog.Logger) parts.Part {
	return parts.Part{Name: "usage", Run: parts.RunUntilDone(u.Run), Stop: func() error {
		if err := u.Save(); err != nil {
			logger.Warn("the last minute's counts of requests are lost", "err", err)
		}
		return nil
	}}
}
