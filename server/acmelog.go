package server

import (
	"context"
	"log/slog"

	"go.uber.org/zap/zapcore"
)

// A zapCore passes certmagic's log on at level DEBUG, because certmagic logs every step, and clients can provoke errors.
// The CertificateManager logs what an operator has to know.
type zapCore struct{ logger *slog.Logger }

// Enabled implements zapcore.LevelEnabler: all levels are enabled if the logger has level DEBUG.
func (c *zapCore) Enabled(zapcore.Level) bool {
	return c.logger.Enabled(context.Background(), slog.LevelDebug)
}

// With implements zapcore.Core. It returns a core whose entries have the fields too.
func (c *zapCore) With(fields []zapcore.Field) zapcore.Core {
	return &zapCore{c.logger.With(zapAttributes(fields)...)}
}

// Check implements zapcore.Core. It adds the core to the entry's writers if level DEBUG is enabled.
func (c *zapCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !c.Enabled(e.Level) {
		return checked
	}
	return checked.AddCore(e, c)
}

// Write implements zapcore.Core. It logs the entry at level DEBUG.
func (c *zapCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.logger.Debug("certmagic: "+e.Message, zapAttributes(fields)...)
	return nil
}

// Sync implements zapcore.Core. It does nothing.
func (c *zapCore) Sync() error { return nil }

// zapAttributes returns the fields of a zap log entry for slog: each name, followed by its value. The order of the pairs varies.
func zapAttributes(fields []zapcore.Field) []any {
	named := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(named)
	}
	all := make([]any, 0, 2*len(named.Fields))
	for name, value := range named.Fields {
		all = append(all, name, value)
	}
	return all
}
