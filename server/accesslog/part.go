package accesslog

import "github.com/larder-cdn/larder/internal/parts"

// Part returns the part of a role that closes the log when the role stops.
func (l *Log) Part() parts.Part { return parts.Part{Name: "access log", Stop: l.Close} }
