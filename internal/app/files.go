package app

import (
	"log/slog"

	"github.com/larder-cdn/larder/internal/settings"
)

// reservedFiles is how many of the files that a process may have open are not for public connections: the store's
// tables, of which it keeps up to 1000 open, downloads, child processes, the other listeners.
func reservedFiles(most uint64) uint64 { return min(most/2, 1536) }

// limitConnections makes the number of public connections fit into the number of files that the process may have open.
func limitConnections(s *settings.Settings, logger *slog.Logger) error {
	most, ok := maxFiles()
	if !ok {
		return nil
	}
	fit := max(1, most-reservedFiles(most))
	if uint64(s.MaxConnections) <= fit {
		return nil
	}
	if s.Given("max-connections") {
		return settings.Mistakef("%s: %d connections do not fit into the limit of %d open files, of which %d are needed for other things; raise the limit (ulimit -n, LimitNOFILE=) or ask for %d",
			s.Origin("max-connections"), s.MaxConnections, most, most-fit, fit)
	}
	logger.Warn("fewer public connections than by default, because the limit of open files is low; raise it (ulimit -n, LimitNOFILE=)",
		"connections", fit, "default", s.MaxConnections, "files", most)
	s.MaxConnections = int(fit)
	return nil
}
