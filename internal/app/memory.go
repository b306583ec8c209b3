package app

import (
	"context"
	"log/slog"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/settings"
)

// limitMemory keeps the process near what its settings come to until ctx ends, unless GOMEMLIMIT says otherwise. Left
// alone, Go's garbage collector lets as much garbage pile up as there is in use, so a process all of whose memory is in
// use would take twice that. Under a limit it collects earlier the nearer it comes.
//
// A limit below what is in use would have it collect all the time. So where more is in use than was thought of, the
// limit gives way: a quarter of it is always left for garbage.
func limitMemory(ctx context.Context, c *settings.Settings, serve bool, logger *slog.Logger) {
	if c.Environment("GOMEMLIMIT") {
		return
	}
	m := memoryLimit{budget: c.MemoryBudget(serve), most: c.MemoryLimit / 10 * 9}
	limit := m.budget
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(limit))
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		// What Go has of the system, and what of that is the heap's.
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(samples)
		value := func(i int) int64 { return int64(samples[i].Value.Uint64()) }
		used := value(0) + value(1)
		for i := 2; i < len(samples); i++ {
			used -= value(i)
		}
		next, exceeded := m.next(used)
		if exceeded {
			logger.Warn("more memory is in use than the settings come to", "used", used, "settings", m.budget)
		}
		if next != limit {
			limit = next
			debug.SetMemoryLimit(limit)
		}
	}
}

// addMemoryLimit adds the part that limits the memory of the process.
func (r *roleRun) addMemoryLimit(serve bool) {
	r.parts.Add(parts.Part{Name: "limit of memory", Run: parts.Until(func(ctx context.Context) { limitMemory(ctx, r.settings, serve, r.logger) })})
}

// A memoryLimit is one that gives way.
type memoryLimit struct {
	budget   int64 // in bytes
	most     int64 // in bytes, what it gives way to at most; 0 for any
	exceeded bool  // whether more has been used
}

// next returns the limit for a process that uses so much, and whether that is the first time that it is more than the
// budget.
func (m *memoryLimit) next(used int64) (limit int64, exceeded bool) {
	exceeded = used > m.budget && !m.exceeded
	m.exceeded = m.exceeded || exceeded
	limit = max(m.budget, used+used/3)
	if m.most > 0 {
		limit = min(limit, m.most)
	}
	return limit, exceeded
}
