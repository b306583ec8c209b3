package accesslog

import "github.com/larder-cdn/larder/internal/parts"

// Part closes the log.
func (l *Log) Part() parts.Part { return parts.Part{Name: "access log", Stop: l.Close} }
