package bot

import (
	"context"
	"time"
)

// WakeAlarms has the alarms of the poll schedule read an injected clock now, instead of within a minute.
func (b *Bot) WakeAlarms() {
	b.Reschedule(context.Background(), "none of the catalogue", time.Unix(1, 0))
}

// NpmIsDown reports whether the circuit breaker of the npm registry, or that of its archives, is open.
func (b *Bot) NpmIsDown() bool {
	return b.breakers.IsDown("npm") || b.breakers.IsDown("archives of npm")
}
