package settings

import (
	"context"
	"log/slog"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// LimitMemory sets Go's memory limit by the settings in force until ctx ends, and then restores the limit before. If GOMEMLIMIT is
// set, it returns at once. Without a limit, the garbage collector lets as much garbage accumulate as there is memory in use, so a
// process could take twice its memory. Near the limit it collects more often. If more memory is in use than the settings plan,
// LimitMemory logs that once and raises the limit, up to nine tenths of MemoryLimit, so that a quarter of it is free for garbage:
// else the collector would run all the time. It checks that every five seconds. serve says that the process serves, with the memory
// for that.
func LimitMemory(ctx context.Context, inForce func() *Settings, serve bool, logger *slog.Logger) {
	s := inForce()
	if limit, _ := s.lookupEnv("GOMEMLIMIT"); limit != "" {
		return
	}
	m := memoryLimit{budget: s.MemoryBudget(serve), most: s.MemoryLimit / 10 * 9}
	limit := m.budget
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(limit))
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		// The memory that Go has from the system, and the parts of it that are the heap's.
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
		m.budget = inForce().MemoryBudget(serve)
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

// A memoryLimit is a limit that is raised if more is in use.
type memoryLimit struct {
	budget   int64 // in bytes
	most     int64 // in bytes, to which it is raised at most; 0 for any
	exceeded bool  // whether more has been used
}

// next returns the limit in bytes for a process that uses used bytes: the budget, or four thirds of used if that is more, but at
// most m.most. exceeded reports whether this is the first time that used exceeds the budget.
func (m *memoryLimit) next(used int64) (limit int64, exceeded bool) {
	exceeded = used > m.budget && !m.exceeded
	m.exceeded = m.exceeded || exceeded
	limit = max(m.budget, used+used/3)
	if m.most > 0 {
		limit = min(limit, m.most)
	}
	return limit, exceeded
}
