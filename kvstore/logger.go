package kvstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"
)

// pebbleLogger gives Pebble's lines to slog: its daily work at debug level.
type pebbleLogger struct{ log *slog.Logger }

func (l pebbleLogger) Infof(format string, args ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug(fmt.Sprintf(format, args...))
	}
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.log.Warn(fmt.Sprintf(format, args...))
}

// Fatalf must not return. With the guard keeping the disk's errors away, what
// is left is a broken invariant: Pebble can't go on, and says so loudly.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	f := fatal{message: fmt.Sprintf(format, args...)}
	for _, arg := range args {
		if err, ok := arg.(error); ok {
			f.cause = err
		}
	}
	l.log.Error("the store cannot go on", "err", f)
	panic(f)
}

// fatal is what Fatalf panics with.
type fatal struct {
	message string
	cause   error
}

func (f fatal) Error() string { return f.message }
func (f fatal) Unwrap() error { return f.cause }

// listener reports what concerns an operator. What Pebble would end the
// process for, damage found while reading, is an error to whoever reads.
func listener(log *slog.Logger) *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: func(err error) {
			if !errors.Is(err, pebble.ErrCancelledCompaction) {
				log.Warn("the store will try again", "err", plain(err))
			}
		},
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			log.Error("the store is damaged", "file", info.Path, "err", plain(info.Details))
		},
		WriteStallBegin: func(info pebble.WriteStallBeginInfo) {
			log.Debug("writes wait", "reason", info.Reason)
		},
		WriteStallEnd: func() { log.Debug("writes go on") },
	}
}
